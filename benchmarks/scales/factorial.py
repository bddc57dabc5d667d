"""Effects of settings that were varied together, each combination with the same seeds: the tenth round of PROTOCOL.md.

    python benchmarks/scales/factorial.py results/scales/tenth learning_rate step_size trust_region

A factor's effect on a task is the mean difference of scores between runs with and without the setting, over all
combinations of the others, by seed; its effect is the mean over tasks.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scales import tasks
from scales.analyse import History, load, over_tasks, print_table, text, total_of

Combination = tuple[bool, ...]


def combination(name: str, factors: list[str]) -> Combination:
    """Which of the factors a candidate's name sets."""
    settings = {part.partition("=")[0] for part in name.split("/")}
    return tuple(factor in settings for factor in factors)


def scores_of(task: str, runs: dict[str, dict[int, History]], factors: list[str]) -> dict[Combination, np.ndarray]:
    """Scores of each combination by seed."""
    total = total_of(task, runs)
    found = {}
    for name, seeds in runs.items():
        found[combination(name, factors)] = np.array(
            [seeds[seed].score(tasks.find(task).task, total) for seed in sorted(seeds)]
        )
    if len(found) != 2 ** len(factors):
        raise SystemExit(f"{task} has {len(found)} combinations of {', '.join(factors)}, not {2 ** len(factors)}")
    return found


def effect(scores: dict[Combination, np.ndarray], factor: int) -> np.ndarray:
    """Of one factor on one task, by seed."""
    differences = [
        scores[(*key[:factor], True, *key[factor + 1 :])] - each for key, each in scores.items() if not key[factor]
    ]
    return np.mean(differences, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("factors", nargs="+", help="settings that a candidate's name has or has not")
    options = parser.parse_args()
    results = load([options.folder])
    scores = {task: scores_of(task, runs, options.factors) for task, runs in results.items()}
    rows = []
    for number, factor in enumerate(options.factors):
        of_tasks = {task: effect(each, number) for task, each in scores.items()}
        cells = [text(over_tasks([each], 80), 2) for each in of_tasks.values()]
        rows.append([factor, text(over_tasks(list(of_tasks.values()), 80), 3), *cells])
    print_table(["effect, 80 %", "all tasks", *(f"{task}, {total_of(task, results[task])}" for task in results)], rows)
    rows = []
    for key in itertools.product((False, True), repeat=len(options.factors)):
        name = ", ".join(factor for factor, is_set in zip(options.factors, key, strict=True) if is_set)
        of_tasks = [each[key] for each in scores.values()]
        means = [f"{each.mean():.2f}" for each in of_tasks]
        rows.append([name or "none", text(over_tasks(of_tasks, 80), 3), *means])
    print_table(["set", "mean score, 80 %", *results], rows)


if __name__ == "__main__":
    main()
