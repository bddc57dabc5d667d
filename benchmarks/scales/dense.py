"""The choice of the twelfth round of PROTOCOL.md: learning rate 3e-4 where rewards are dense, from runs of two rounds.

    python benchmarks/scales/dense.py

Where rewards are rare, the candidate is the former default, to the bit: its difference is 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scales.analyse import load, over_tasks, print_table, text  # noqa: E402
from scales.factorial import scores_of  # noqa: E402

ROUNDS = {"tenth": ["learning_rate", "step_size", "trust_region"], "eleventh": ["learning_rate", "clip"]}
RARE = ("Table-v0", "FrozenLake8x8-v1")


def main() -> None:
    more: dict[str, list[np.ndarray]] = {}
    for name, factors in ROUNDS.items():
        for task, runs in load([ROOT / "results" / "scales" / name]).items():
            scores = scores_of(task, runs, factors)
            only_rate = (True, *[False] * (len(factors) - 1))
            difference = scores[only_rate] - scores[(False,) * len(factors)]
            more.setdefault(task, []).append(0 * difference if task in RARE else difference)
    by_task = {task: np.concatenate(each) for task, each in more.items()}
    rows = [[task, str(len(each)), text(over_tasks([each], 80), 3)] for task, each in by_task.items()]
    print_table(["task", "pairs", "more than the default, 80 %"], rows)
    print(f"all {len(by_task)} tasks: {text(over_tasks(list(by_task.values()), 80), 3)}")


if __name__ == "__main__":
    main()
