"""Tables from what run.py has written.

    python benchmarks/scales/analyse.py results/scales/first results/scales/second --baseline paper

Several folders count as one. The score of a run is the area under its curve of returns against steps, from 0 (what a
random policy gets) to 1 (solved). Intervals are 95 % bootstrap intervals over seeds, stratified by task.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scales import tasks

BLOCKS = 20  # of steps, that make up a curve
WINDOW = 20  # episodes whose mean has to reach the threshold
FEWEST = 5  # episodes of each run that show what a rule is worth
RESAMPLED = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """The episodes of one run: steps so far at the end of each, and returns."""

    steps: Floats
    returns: Floats

    def curve(self, total: int, blocks: int = BLOCKS) -> Floats:
        """Mean return of the episodes that end in each block of steps; where none does, of the one that goes on."""
        edges = np.linspace(0, total, blocks + 1)
        found = np.full(blocks, np.nan)
        for block in range(blocks):
            is_in = (self.steps > edges[block]) & (self.steps <= edges[block + 1])
            later = np.flatnonzero(self.steps > edges[block])
            if is_in.any():
                found[block] = self.returns[is_in].mean()
            elif len(later):
                found[block] = self.returns[later[0]]
            elif block:
                found[block] = found[block - 1]
        return found

    def score(self, task: tasks.Task, total: int) -> float:
        """Area under the curve, 0 to 1."""
        curve = np.nan_to_num(self.curve(total), nan=task.random)
        return float(np.clip((curve - task.random) / (task.solved - task.random), 0, 1).mean())

    def final(self, total: int) -> float:
        """Mean return in the last fifth of the steps."""
        return float(self.curve(total)[-BLOCKS // 5 :].mean())

    def steps_to(self, threshold: float) -> float:
        """Steps until the mean of the last episodes reaches the threshold; infinite if it never does."""
        if len(self.returns) < WINDOW:
            return np.inf
        sums = np.cumsum(np.concatenate([[0.0], self.returns]))
        means = (sums[WINDOW:] - sums[:-WINDOW]) / WINDOW
        reached = np.flatnonzero(means >= threshold)
        return float(self.steps[reached[0] + WINDOW - 1]) if len(reached) else np.inf


#: histories by task, candidate and seed
Results = dict[str, dict[str, dict[int, History]]]


def rows_of(folders: list[Path], name: str) -> Iterator[dict[str, str]]:
    """Rows of the files with this name."""
    for folder in folders:
        path = folder / name
        if path.exists():
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt", newline="") as file:
                yield from csv.DictReader(file)


def load(folders: list[Path]) -> Results:
    """All runs."""
    columns: dict[tuple[str, str, int], tuple[list[float], list[float]]] = {}
    for row in rows_of(folders, "episodes.csv.gz"):
        steps, returns = columns.setdefault((row["task"], row["candidate"], int(row["seed"])), ([], []))
        steps.append(float(row["steps"]))
        returns.append(float(row["return"]))
    results: Results = {}
    for (task, candidate, seed), (steps, returns) in columns.items():
        if np.any(np.diff(steps) <= 0):
            raise ValueError(f"{task}, {candidate}, seed {seed} is in several folders")
        history = History(np.array(steps), np.array(returns))
        results.setdefault(task, {}).setdefault(candidate, {})[seed] = history
    return results


def interval(samples: Floats, statistic: Callable[..., Any] = np.mean) -> tuple[float, float, float]:
    """The statistic with its bootstrap interval."""
    drawn = np.random.default_rng(0).integers(0, len(samples), (RESAMPLED, len(samples)))
    low, high = np.percentile(statistic(samples[drawn], axis=1), [2.5, 97.5], method="closest_observation")
    return float(statistic(samples)), float(low), float(high)


def over_tasks(scores: list[Floats], level: float = 95.0) -> tuple[float, float, float]:
    """Mean over tasks, with the interval of a bootstrap that draws runs within each task."""
    rng = np.random.default_rng(0)
    means = [task[rng.integers(0, len(task), (RESAMPLED, len(task)))].mean(axis=1) for task in scores]
    low, high = np.percentile(np.mean(means, axis=0), [50 - level / 2, 50 + level / 2])
    return float(np.mean([task.mean() for task in scores])), float(low), float(high)


def text(estimate: tuple[float, float, float], digits: int = 2) -> str:
    """An estimate with its interval."""
    value, low, high = (f"{number:.{digits}f}" if np.isfinite(number) else "never" for number in estimate)
    return f"{value} [{low}, {high}]"


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """As markdown."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def total_of(name: str, runs: dict[str, dict[int, History]]) -> int:
    """Steps that count: the task's, or as many as all candidates have made, give or take an episode."""
    reached = min(max(history.steps[-1] for history in seeds.values()) for seeds in runs.values())
    return int(min(tasks.find(name).task.steps, reached))


def print_task(name: str, runs: dict[str, dict[int, History]]) -> None:
    """One table per task."""
    task, total = tasks.find(name).task, total_of(name, runs)
    print(f"## {name}: {total} steps, from {task.random:g} to {task.solved:g}\n")
    rows = []
    for candidate, seeds in runs.items():
        histories = list(seeds.values())
        when = np.array([history.steps_to(task.solved) for history in histories])
        rows.append(
            [
                candidate,
                text(interval(np.array([history.score(task, total) for history in histories]))),
                text(interval(np.array([history.final(total) for history in histories]))),
                f"{np.isfinite(when).sum()} of {len(when)}",
                text(interval(when, _median), 0),
            ]
        )
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    print_table(["candidate", "score", "return at the end", "solved", "median steps until then"], rows)


def _median(values: Floats, axis: int | None = None) -> Any:
    """The median of numbers that may be infinite: always one of them."""
    return np.percentile(values, 50, axis=axis, method="higher")


def print_curves(name: str, runs: dict[str, dict[int, History]], blocks: int, episodes: int) -> None:
    """Mean returns per block of steps, and of episodes."""
    total = total_of(name, runs)
    rows = []
    for candidate, seeds in runs.items():
        curves = np.array([history.curve(total, blocks) for history in seeds.values()])
        rows.append([candidate, *(f"{value:.4g}" for value in np.nanmean(curves, axis=0))])
    print_table([f"{name}: until step", *(str(total * (block + 1) // blocks) for block in range(blocks))], rows)
    rows = []
    for candidate, seeds in runs.items():
        cells = []
        for block in range(blocks):
            part = [history.returns[block * episodes : (block + 1) * episodes] for history in seeds.values()]
            full = [returns.mean() for returns in part if len(returns) == episodes]
            cells.append(f"{np.mean(full):.4g} ({len(full)})" if full else "")
        rows.append([candidate, *cells])
    print_table([f"{name}: until episode (runs)", *(str(episodes * (block + 1)) for block in range(blocks))], rows)


def print_overall(results: Results, baseline: str | None) -> None:
    """Candidates over all tasks that all of them have learned."""
    names = list(dict.fromkeys(candidate for runs in results.values() for candidate in runs))
    scores: dict[str, dict[str, dict[int, float]]] = {name: {} for name in names}
    for task, runs in results.items():
        total = total_of(task, runs)
        for candidate, seeds in runs.items():
            found = {seed: history.score(tasks.find(task).task, total) for seed, history in seeds.items()}
            scores[candidate][task] = found
    base = scores[baseline if baseline is not None else names[0]]
    rows = []
    for candidate, of_tasks in scores.items():
        estimate = over_tasks([np.array(list(seeds.values())) for seeds in of_tasks.values()])
        paired = []
        for task, seeds in of_tasks.items():
            common = [seed for seed in seeds if seed in base.get(task, {})]
            if common:
                paired.append(np.array([seeds[seed] - base[task][seed] for seed in common]))
        worst = f"{min(part.mean() for part in paired):.3f}" if paired else ""
        both = [text(over_tasks(paired, level), 3) if paired else "" for level in (95, 80)]
        rows.append([candidate, text(estimate, 3), *both, worst])
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    print(f"## All tasks: {', '.join(results)}\n")
    more = f"more than {baseline or names[0]}"
    print_table(["candidate", "mean score", f"{more}, 95 %", f"{more}, 80 %", "task that loses most"], rows)


def print_deployed(folders: list[Path]) -> None:
    """Returns of trained agents by the rule that chooses their actions."""
    found: dict[tuple[str, str], dict[str, dict[int, list[float]]]] = {}
    for row in rows_of(folders, "deploy.csv"):
        rules = found.setdefault((row["task"], row["candidate"]), {})
        rules.setdefault(row["rule"], {}).setdefault(int(row["seed"]), []).append(float(row["return"]))
    if not found:
        return
    names = list(dict.fromkeys(rule for rules in found.values() for rule in rules))
    more: dict[str, list[Floats]] = {rule: [] for rule in names}
    rows = []
    for (name, candidate), rules in found.items():
        task, cells, scores = tasks.find(name).task, [], dict[str, Floats]()
        for rule in names:
            episodes = list(rules.get(rule, {}).values())
            if len(episodes) < len(rules["drawn"]) or min(map(len, episodes)) < FEWEST:
                cells.append("")  # the time was over
                continue
            means = np.array([np.mean(returns) for returns in episodes])
            scores[rule] = np.clip((means - task.random) / (task.solved - task.random), 0, 1)
            more[rule].append(scores[rule] - scores["drawn"])
            cells.append(f"{means.mean():.4g}")
        rows.append([name, candidate, *cells])
    print("## Deployed: mean returns by rule\n")
    print_table(["task", "candidate", *names], rows)
    compared = [[rule, str(len(parts)), text(over_tasks(parts), 3)] for rule, parts in more.items() if parts]
    print_table(["rule", "tasks", "score, more than drawn actions"], compared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--baseline", help="candidate to compare with; default: the first")
    parser.add_argument("--curves", action="store_true", help="mean returns per block of steps and of episodes")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=25, help="per block")
    options = parser.parse_args()
    results = load(options.folders)
    for name, runs in results.items():
        print_task(name, runs)
        if options.curves:
            print_curves(name, runs, options.blocks, options.episodes)
    print_overall(results, options.baseline)
    print_deployed(options.folders)


if __name__ == "__main__":
    main()
