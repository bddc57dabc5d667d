"""The seventh and the eighth round of PROTOCOL.md together: scores of seven tasks, and what the rule compares.

    python benchmarks/scales/rounds.py

LunarLander has networks eight times as wide, so ``return_size`` is eight times as large there; its rewards are not
rare, so the configuration without ``rare`` stands for the one with it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scales import tasks  # noqa: E402
from scales.analyse import load, over_tasks, print_table, text, total_of  # noqa: E402
from scales.candidates import find  # noqa: E402

LANDER = "LunarLander-v3"


def settings(name: str) -> frozenset[str]:
    """What identifies a configuration of LunarLander, whatever the order of its settings."""
    size = find(name).return_size
    kept = [part for part in name.split("/")[1:] if not re.match("return_size|rare", part)]
    return frozenset([*kept, f"return_size={size}"])


def main() -> None:
    results = load([ROOT / "results" / "scales" / name for name in ("seventh", "eighth")])
    totals = {task: total_of(task, runs) for task, runs in results.items()}
    landers = {settings(name): runs for name, runs in results[LANDER].items()}
    small = [task for task in results if task != LANDER]
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in dict.fromkeys(name for task in small for name in results[task]):
        runs = {task: results[task][name] for task in small if name in results[task]}
        wide = frozenset(
            f"return_size={8 * float(part.split('=')[1])}" if part.startswith("return_size") else part
            for part in settings(name)
        )
        if wide in landers:
            runs[LANDER] = landers[wide]
        found[name] = {
            task: np.array([seeds[seed].score(tasks.find(task).task, totals[task]) for seed in sorted(seeds)])
            for task, seeds in runs.items()
        }
    rows = []
    for name, scores in sorted(found.items(), key=lambda item: -np.mean([each.mean() for each in item[1].values()])):
        more = text(over_tasks([each - found["base"][task] for task, each in scores.items()], 80), 3)
        cells = [f"{scores[task].mean():.2f}" if task in scores else "" for task in results]
        mean = np.mean([each.mean() for each in scores.values()])
        rows.append([name, str(len(scores)), f"{mean:.3f}", more, *cells])
    print_table(["configuration", "tasks", "mean score", "more than base, 80 %", *results], rows)


if __name__ == "__main__":
    main()
