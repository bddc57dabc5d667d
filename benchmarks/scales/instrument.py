"""Kernels for many runs against kernels for few: mean returns by seed, paired, as PROTOCOL.md says.

    python benchmarks/scales/instrument.py

Prints each of the three rounds, and the paired differences of all of them together.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scales.analyse import History, interval, load

TASK, FIRST_STEP = "LunarLander-v3", 5_000
RESULTS = Path(__file__).resolve().parents[2] / "results" / "instrument"


def histories(folder: Path) -> dict[int, History]:
    """By seed."""
    return load([folder])[TASK]["paper"]


def paired(few: Path, many: Path) -> np.ndarray:
    """Mean returns of each seed, by kernels for few and for many; prints what they say."""
    by_few, by_many = histories(few), histories(many)
    last = min(max(history.steps[-1] for history in runs.values()) for runs in (by_few, by_many))
    means = []
    for seed in sorted(by_few.keys() & by_many.keys()):
        pair = []
        for runs in (by_few, by_many):
            history = runs[seed]
            pair.append(history.returns[(history.steps > FIRST_STEP) & (history.steps <= last)])
        if all(len(returns) for returns in pair):
            means.append([returns.mean() for returns in pair])
    table = np.array(means)
    print(f"{few.name}, {many.name}: {len(table)} seeds, steps {FIRST_STEP} to {last:.0f}")
    print(f"few {table[:, 0].mean():.1f}, many {table[:, 1].mean():.1f}; {difference(table)}")
    return table


def difference(table: np.ndarray) -> str:
    """With its interval."""
    mean, low, high = interval(table[:, 1] - table[:, 0])
    return f"many - few: {mean:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    rounds = [paired(RESULTS / f"few{suffix}", RESULTS / f"many{suffix}") for suffix in ("", "-again", "-third")]
    together = np.concatenate(rounds)
    print(f"all {len(together)} seeds: {difference(together)}")


if __name__ == "__main__":
    main()
