"""Kernels for many runs against kernels for few: mean returns by seed, paired, as PROTOCOL.md says.

python benchmarks/scales/instrument.py results/instrument/few results/instrument/many
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scales.analyse import History, interval, load

TASK, FIRST_STEP = "LunarLander-v3", 5_000


def histories(folder: Path) -> dict[int, History]:
    """By seed."""
    return load([folder])[TASK]["paper"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("few", type=Path)
    parser.add_argument("many", type=Path)
    options = parser.parse_args()
    few, many = histories(options.few), histories(options.many)
    last = min(max(history.steps[-1] for history in runs.values()) for runs in (few, many))
    means = []
    for seed in sorted(few.keys() & many.keys()):
        pair = []
        for runs in (few, many):
            history = runs[seed]
            pair.append(history.returns[(history.steps > FIRST_STEP) & (history.steps <= last)])
        if all(len(returns) for returns in pair):
            means.append([returns.mean() for returns in pair])
    table = np.array(means)
    difference, low, high = interval(table[:, 1] - table[:, 0])
    print(f"{len(table)} seeds, steps {FIRST_STEP} to {last:.0f}")
    print(f"few {table[:, 0].mean():.1f}, many {table[:, 1].mean():.1f}")
    print(f"many - few: {difference:.1f} [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main()
