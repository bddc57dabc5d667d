"""Put runs of the protocol into the archives of results/, in the place of older ones.

    bdpi study figure2 --env frozenlake --first-seed 100 --seeds 8 --out runs
    python benchmarks/replication/adopt.py runs/figure2

The archive keeps what it has, but for runs of the same series that are not the protocol's: seeds 100 to 107, of a clean
commit. They go when all eight of the protocol are there; git has them. Then ``make figures`` writes the pages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bdpi.runs.config import Place
from bdpi.runs.results import StoredRun, read_runs, with_archived, write_archive
from replication.curves import RESULTS, SEEDS, is_clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of a study")
    folder = parser.parse_args().runs
    archive = RESULTS / folder.name
    title, found, problems = read_runs(folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    new = [run for run in found if is_of_protocol(run)]
    whole = {series for series, seeds in seeds_of(new).items() if seeds == SEEDS}
    before = read_runs(archive)[1] if archive.exists() else []
    kept = [run for run in before if is_of_protocol(run) or series_of(run) not in whole]
    taken_out = len(before) - len(kept)
    if taken_out:
        write_archive(archive, title, kept)
    write_archive(archive, title, with_archived(new, archive))
    print(f"{archive}: {len(new)} runs of the protocol, {taken_out} older ones taken out")
    name = f"results/{folder.name}"
    subprocess.run([sys.executable, "-m", "bdpi.cli", "report", name, "--out", name], check=True, cwd=RESULTS.parent)


def is_of_protocol(run: StoredRun) -> bool:
    """Whether a run may be part of a complete curve."""
    return run.status == "finished" and run.place.seed in SEEDS and is_clean(run)


def series_of(run: StoredRun) -> Place:
    """What a run has in common with those that differ in the seed only."""
    return replace(run.place, seed=0)


def seeds_of(runs: Iterable[StoredRun]) -> dict[Place, set[int]]:
    """Of each series."""
    found: dict[Place, set[int]] = defaultdict(set)
    for run in runs:
        found[series_of(run)].add(run.place.seed)
    return found


if __name__ == "__main__":
    main()
