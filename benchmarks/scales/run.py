"""Train many runs of BDPI at once on one GPU: tasks times candidates times seeds.

    python benchmarks/scales/run.py --tasks Table-v0 CartPole-v1@obs1000 --candidates paper base/trust_region=0.02 \
        --seeds 0-7 --minutes 9 --out results/scales/first

A candidate may be for some tasks only: LunarLander-v3:base/return_size=80, or [!L]*:base. Writes episodes.csv.gz,
deploy.csv (with --deploy) and run.json. tasks.py and candidates.py say what there is.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

PROGRESS_EVERY = 20.0  # seconds
MOST_RECORDING = 32  # groups, if some record CUDA graphs: PyTorch has so many streams, and they must not share one
EPISODE_COLUMNS = ("task", "candidate", "seed", "episode", "steps", "return", "length", "real_steps")
DEPLOY_COLUMNS = ("task", "candidate", "seed", "rule", "episode", "return", "length")


def main() -> None:
    options = parse()
    # Processes that step environments import this file, too: PyTorch is imported only here.
    import torch

    from scales import candidates, loop, tasks

    started = time.monotonic()
    names = [tasks.find(name).name for name in options.tasks]
    chosen = [(only or "*", candidates.find(text)) for only, _, text in (c.rpartition(":") for c in options.candidates)]
    for only, candidate in chosen:
        if not fnmatch.filter(names, only):
            raise SystemExit(f"{candidate.name} is for {only}, which no task of --tasks is")
    planned = loop.groups_of(names, chosen, seeds_of(options.seeds), options.parts)
    if options.emulate:
        emulate()
    sharing = {"few": 1, "many": 10_000}.get(options.kernels, sum(len(runs) for _, _, runs in planned))
    settings = loop.Settings(
        device=torch.device("cpu" if options.emulate else "cuda"),
        sharing=sharing,
        n_workers=options.workers,
        steps=options.steps,
        deadline=started + 60 * options.minutes,
        deploy=options.deploy,
        deploy_seconds=60 * options.deploy_minutes,
        plain=options.plain,
    )
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    sys.setswitchinterval(0.001)
    plain = options.plain or any(candidate.is_plain for _, candidate in chosen)
    if plain and not options.emulate and len(planned) > MOST_RECORDING:
        raise SystemExit(f"{len(planned)} groups: with critics that PyTorch trains, at most {MOST_RECORDING}")
    groups = [loop.Group(*plan, settings) for plan in planned]
    print(f"{len(groups)} groups, {sum(len(group.runs) for group in groups)} runs", flush=True)
    episodes = Table(out / "episodes.csv.gz", EPISODE_COLUMNS)
    deployed = Table(out / "deploy.csv", DEPLOY_COLUMNS) if options.deploy else None
    stop = threading.Event()
    threads = [
        threading.Thread(target=group.run, args=(stop, episodes.write, deployed.write if deployed else None))
        for group in groups
    ]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: write what there is
    try:
        watch(groups, started)
    except KeyboardInterrupt:
        print("stopping", flush=True)
        stop.set()
    for thread in threads:
        thread.join()
    write_summary(out / "run.json", groups, options, started)
    progress(groups, started, {})
    for group in groups:
        if group.failure:
            print(f"{group.name} failed:\n{group.failure}", file=sys.stderr, flush=True)
    if any(group.failure for group in groups):
        raise SystemExit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--candidates", nargs="+", required=True)
    parser.add_argument("--seeds", default="0-7", help="as 0-7 or 0,3,5")
    parser.add_argument("--minutes", type=float, default=9.0, help="of training, at most")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, help="instead of each task's own number")
    parser.add_argument("--kernels", choices=["auto", "few", "many"], default="auto", help="for more than 32 units")
    parser.add_argument("--parts", type=int, default=1, help="divide each group into so many")
    parser.add_argument("--workers", type=int, help="processes per group")
    parser.add_argument("--deploy", type=int, default=0, help="episodes per rule after training")
    parser.add_argument("--deploy-minutes", type=float, default=2.0, help="at most, per group")
    parser.add_argument("--plain", action="store_true", help="critics by PyTorch, also where the kernels could")
    parser.add_argument("--emulate", action="store_true", help="the kernels on the CPU, to try out; very slow")
    return parser.parse_args()


def seeds_of(text: str) -> list[int]:
    """Seeds as the command line gives them."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def emulate() -> None:
    """Run the kernels on the CPU."""
    import tempfile

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "learner"))
    from bdpi.learner import fused
    from emulator import Emulator

    fused.kernels = Emulator(Path(tempfile.mkdtemp()))


class Table:
    """A CSV file that grows, written by several threads.

    :param path: compressed if it ends in .gz
    :param columns: their names
    """

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path, self._lock = path, threading.Lock()
        path.unlink(missing_ok=True)
        self.write([columns])

    def write(self, rows: list[Any]) -> None:
        """Append rows."""
        with self._lock, (gzip.open if self._path.suffix == ".gz" else open)(self._path, "at", newline="") as file:
            csv.writer(file).writerows(rows)


def watch(groups: list[Any], started: float) -> None:
    """Say from time to time how far groups are, until all have ended."""
    before: dict[str, tuple[int, float]] = {}
    said = time.monotonic()
    while not all(group.is_ended for group in groups):
        time.sleep(0.2)
        if time.monotonic() - said > PROGRESS_EVERY:
            said = time.monotonic()
            progress(groups, started, before)


def progress(groups: list[Any], started: float, before: dict[str, tuple[int, float]]) -> None:
    """Print steps and milliseconds per step of each group, since the last time."""
    parts = []
    for group in groups:
        now = time.monotonic()
        steps, at = before.get(group.name, (0, 0.0))
        pace = 1000 * (now - at) / (group.steps - steps) if at and group.steps > steps else group.milliseconds
        before[group.name] = group.steps, now
        parts.append(f"{group.name} {group.steps}/{group.goal} {pace:.1f} ms")
    print(f"{time.monotonic() - started:.0f} s: " + "; ".join(parts), flush=True)


def write_summary(path: Path, groups: list[Any], options: argparse.Namespace, started: float) -> None:
    import torch

    described = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(described, capture_output=True, text=True, cwd=Path(__file__).parent)
    summary = {
        "commit": found.stdout.strip() or os.environ.get("COMMIT", ""),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - started, 1),
        "options": vars(options),
        "groups": [
            {
                "name": group.name,
                "task": group.variant.name,
                "runs": len(group.runs),
                "candidates": list(dict.fromkeys(candidate.name for candidate, _ in group.runs)),
                "steps": group.steps,
                "goal": group.goal,
                "milliseconds_per_step": round(group.milliseconds, 3) if group.began else None,
                "seconds_to_first_epoch": round(group.began - started, 1) if group.began else None,
                "diverged": group.diverged,
                "failure": group.failure,
            }
            for group in groups
        ],
    }
    path.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
