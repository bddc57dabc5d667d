"""Milliseconds per step of all runs of a study, end to end: environments, recorders and checkpoints included.

    python benchmarks/population.py                 # on a GPU; 128 runs of each task, 90 s each

Runs have BDPI's default configuration. The first third of the time, in which processes start and kernels are compiled,
is not counted; after it, the steps of all episodes that end are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bdpi.runs.campaign import run_campaign
from bdpi.runs.config import Place, RunConfig
from bdpi.runs.executors import make_executor
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job

TASKS = ("Table-v0", "FrozenLake8x8-v1", "LunarLander-v3")


def milliseconds(environment: str, runs: int, seconds: float, folder: Path, executor: str) -> float:
    """Per step of all runs."""
    jobs = [
        Job(
            Place("population", "speed", environment, "BDPI", seed),
            RunConfig(environment=environment, agent="bdpi", seed=seed, episodes=1_000_000),
            folder / f"{environment}-{seed}",
        )
        for seed in range(runs)
    ]
    began = time.time()
    run_campaign(jobs, make_executor(executor, runs), say=print, should_stop=lambda: time.time() > began + seconds)
    first, last = began + seconds / 3, began + seconds
    steps = 0
    for job in jobs:
        header, _, *rows = RunFolder(job.folder).monitor.read_text().splitlines()
        start = json.loads(header[1:])["t_start"]
        episodes = [(int(row.split(",")[1]), start + float(row.split(",")[2])) for row in rows]
        steps += sum(length for length, ended in episodes if first < ended <= last)
    return 1000 * (last - first) * runs / max(1, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--executor", default="population", choices=["population", "processes"])
    options = parser.parse_args()
    for task in options.tasks:
        with tempfile.TemporaryDirectory() as folder:
            ms = milliseconds(task, options.runs, options.seconds, Path(folder), options.executor)
        print(f"{task:<20} {options.runs:>4} runs {ms:>8.2f} ms per step of all", flush=True)


if __name__ == "__main__":
    main()
