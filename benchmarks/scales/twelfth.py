"""The choices of the twelfth round of PROTOCOL.md, from runs of earlier rounds.

    python benchmarks/scales/twelfth.py

Where rewards are dense, learning rate 3e-4 against 1e-4; where they are rare, the former default is kept to the bit: no
difference. And on Table, where rewards are rare, inputs within ±1 against ±2, by runs that dock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scales.analyse import interval, load, over_tasks, print_table, text  # noqa: E402
from scales.factorial import scores_of  # noqa: E402

FACTORS = {"tenth": ["learning_rate", "step_size", "trust_region"], "eleventh": ["learning_rate", "clip"]}
RARE = ("Table-v0", "FrozenLake8x8-v1")
#: returns of 10 / 3 and of 3, which are nearly the same
INPUTS = {
    "±2": "base/input_size=2/rare=0.1/persistence=32/persistence_trials=true",
    "±1": "base/observations=bounds/return_size=3",
    "±1, kept draws": "base/observations=bounds/return_size=3/persistence=32",
    "±1, kept draws with trials": "base/observations=bounds/return_size=3/persistence=32/persistence_trials=true",
}
ROUNDS = ("fourth", "fifth", "seventh", "eighth", "ninth", "tenth", "eleventh")


def rates() -> None:
    """Scores with learning rate 3e-4 where rewards are dense, beside those with 1e-4."""
    more: dict[str, list[np.ndarray]] = {}
    for name, factors in FACTORS.items():
        for task, runs in load([ROOT / "results" / "scales" / name]).items():
            scores = scores_of(task, runs, factors)
            only_rate = (True, *[False] * (len(factors) - 1))
            difference = scores[only_rate] - scores[(False,) * len(factors)]
            more.setdefault(task, []).append(0 * difference if task in RARE else difference)
    by_task = {task: np.concatenate(each) for task, each in more.items()}
    rows = [[task, str(len(each)), text(over_tasks([each], 80), 3)] for task, each in by_task.items()]
    print_table(["task", "pairs", "more than the default, 80 %"], rows)
    print(f"all {len(by_task)} tasks: {text(over_tasks(list(by_task.values()), 80), 3)}\n")


def inputs() -> None:
    """Runs of Table that dock by episode 100, and their returns in episodes 75 to 100."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in ROUNDS:
        runs = load([ROOT / "results" / "scales" / name])["Table-v0"]
        for size, candidate in INPUTS.items():
            for history in runs.get(candidate, {}).values():
                docks = float((history.returns[:100] > 50).any())
                found.setdefault(size, []).append((docks, float(history.returns[75:100].mean())))
    found["±1, all"] = [each for size, runs in found.items() if size.startswith("±1") for each in runs]
    rows = []
    for size, of_runs in found.items():
        docks, returns = np.array(of_runs).T
        rows.append([size, f"{docks.sum():.0f} of {len(docks)}", text(interval(docks)), text(interval(returns), 0)])
    print_table(["inputs", "runs that dock", "share", "return in episodes 75-100"], rows)
    former, all_of = (np.array(found[size])[:, 0] for size in ("±2", "±1, all"))
    rng = np.random.default_rng(0)
    drawn = [each[rng.integers(0, len(each), (20_000, len(each)))].mean(axis=1) for each in (all_of, former)]
    low, high = np.percentile(drawn[0] - drawn[1], [10, 90])
    print(f"more runs dock within ±1: {all_of.mean() - former.mean():.2f}, 80 % [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    rates()
    inputs()
