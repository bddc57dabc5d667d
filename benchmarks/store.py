"""What the runs of a large study cost beside their training, and how quickly they are listed, read and reported on.

    make bench-store

The 2 000 finished runs are made up, but their files are those of real ones, of 200 episodes each: one study with random
configurations, one with learning curves. Their seconds are those of the processor, so that whatever else the machine
does counts little. The short runs are real, and have one episode each.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bdpi.report import write_report
from bdpi.runs.campaign import run_campaign
from bdpi.runs.config import Place, RunConfig, RunRecord, RunStatus
from bdpi.runs.episodes import Episodes, summarize
from bdpi.runs.executors import make_executor
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, execute
from bdpi.runs.results import read_runs, write_archive, write_index
from bdpi.runs.versions import versions
from bdpi.studies import Study, load_study

RESULT = Path(__file__).parents[1] / "results" / "speed" / "store-two-cores.json"
RUNS, EPISODES, SHORT = 2_000, 200, 200


def make_up(study: Study, root: Path) -> list[Job]:
    """The first runs of a study, as if they had been trained."""
    jobs = study.jobs(root)[:RUNS]
    paths = {job.folder for job in jobs}
    write_index(root / study.name, study.title, [entry for entry in study.folders(root) if entry[1] in paths])
    rng = np.random.default_rng(0)
    for job in jobs:
        folder = RunFolder(job.folder)
        folder.make()
        lengths = rng.integers(9, 500, job.config.episodes)
        result = summarize(Episodes([float(length) for length in lengths]), int(lengths.sum()), 60.0)
        status = RunStatus(status="finished", result=result, versions=versions(), learner="made up", study=job.place)
        status.configuration = job.configuration
        folder.write(RunRecord(job.config, status))
        rows = "".join(f"{length}.0,{length},{0.3 * i:.6f}\n" for i, length in enumerate(lengths))
        folder.monitor.write_text('#{"t_start": 1.0, "env_id": "CartPole-v1"}\nr,l,t\n' + rows)
    return jobs


def measure(name: str, action: Callable[[], object]) -> float:
    """Processor seconds of an action."""
    before = time.process_time()
    action()
    taken = round(time.process_time() - before, 2)
    print(f"{name:<34} {taken:6.2f} s", flush=True)
    return taken


def stored_runs(root: Path) -> dict[str, float]:
    """Seconds for the runs of two studies."""
    random = load_study("robustness").smaller(environments=("CartPole-v1",), configs=334, episodes=EPISODES)
    jobs = make_up(random, root)
    curves = load_study("figure2").smaller(seeds=42, episodes=EPISODES)
    make_up(curves, root)
    read: list[Any] = []
    taken = {
        "list": measure("list", lambda: run_campaign(jobs, make_executor("local"))),
        "read": measure("read", lambda: read.extend(read_runs(root / random.name))),
        "report, random configurations": measure(
            "report, random configurations", lambda: report(root / random.name, root / "report")
        ),
        "report, learning curves": measure(
            "report, learning curves", lambda: report(root / curves.name, root / "report")
        ),
        "write an archive": measure("write an archive", lambda: write_archive(root / "archive", read[0], read[1])),
        "read an archive": measure("read an archive", lambda: read_runs(root / "archive")),
    }
    assert len(read[1]) == RUNS
    return taken


def report(study: Path, out: Path) -> None:
    """What ``bdpi report`` does."""
    title, runs, _ = read_runs(study)
    write_report(runs, out, title=title, command="bdpi report")


def short_run(root: Path) -> float:
    """Milliseconds of the processor per run of one episode, once everything is imported."""
    small = {"n_critics": 2, "critic_iterations": 1, "fit_steps": 2, "batch_size": 16}
    plans = [
        RunConfig(environment="CartPole-v1", seed=seed, episodes=1, hyperparameters=small)
        for seed in range(1, SHORT + 2)
    ]
    jobs = [Job(Place("short", "", "", "", plan.seed), plan, root / "short" / str(plan.seed)) for plan in plans]
    execute(jobs[0])
    seconds = measure(f"{SHORT} short runs", lambda: [execute(job) for job in jobs[1:]])
    return round(1000 * seconds / SHORT, 1)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("BDPI_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        result = {
            "runs": RUNS,
            "seconds": stored_runs(root),
            "short run, milliseconds": short_run(root),
        }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
