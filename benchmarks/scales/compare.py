"""The README's figure and table: the default configuration, the paper's, and tuned peers, counted in steps.

    python benchmarks/scales/compare.py

Draws docs/benchmark.png and prints the tables of docs/benchmark.md, from results/scales and results/benchmark/peers.
"""

from __future__ import annotations

import csv
import gzip
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scales.analyse import History, _median, interval, load, print_table, text  # noqa: E402

#: task: threshold, steps in the figure
TASKS = {
    "CartPole-v1": (475.0, 50_000),
    "Acrobot-v1": (-100.0, 30_000),
    "MountainCar-v0": (-130.0, 60_000),
    "PendulumTorques-v0": (-200.0, 20_000),
}
NAMES = {"dqn": "DQN (RL Zoo)", "qr-dqn": "QR-DQN (RL Zoo)", "ppo": "PPO (RL Zoo)", "sac": "SAC (RL Zoo), any torque"}
COLOURS = {
    "BDPI": "#0072b2",
    "BDPI, paper": "#56b4e9",
    "DQN": "#d55e00",
    "QR-DQN": "#e69f00",
    "PPO": "#6b6b6b",
    "SAC": "#009e73",
}
#: Runs of the first round were shorter there.
LATER_ROUND_ONLY = "Acrobot-v1", "PendulumTorques-v0"


def series() -> dict[str, dict[str, list[History]]]:
    """Runs by task and by name."""
    again, papers = (load([ROOT / "results" / "scales" / name]) for name in ("fourth", "screen"))
    found: dict[str, dict[str, list[History]]] = {}
    for task in TASKS:
        found[task] = {
            "BDPI": [
                history
                for rounds in ((again,) if task in LATER_ROUND_ONLY else (papers, again))
                for history in rounds[task]["base"].values()
            ],
            "BDPI, paper": list(papers[task]["paper"].values()),
        }
    rows: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with gzip.open(ROOT / "results" / "benchmark" / "peers" / "episodes.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            task = row["task"].replace("Pendulum-v1", "PendulumTorques-v0")  # SAC has no discrete actions
            key = task, row["peer"], row["seed"]
            rows.setdefault(key, []).append((float(row["steps"]), float(row["return"])))
    for (task, peer, _), episodes in rows.items():
        if task in found and peer in NAMES:
            columns = np.array(episodes).T
            found[task].setdefault(NAMES[peer], []).append(History(*columns))
    return found


def draw(found: dict[str, dict[str, list[History]]], path: Path) -> None:
    """Mean returns against steps."""
    figure, axes = plt.subplots(1, len(TASKS), figsize=(13, 3.2), layout="constrained")
    for axis, (task, (threshold, steps)) in zip(axes, TASKS.items(), strict=True):
        for name, runs in found[task].items():
            reached = int(min(steps, min(history.steps[-1] for history in runs)))  # no run is longer than its curve
            blocks = max(4, round(40 * reached / steps))
            curves = np.array([history.curve(reached, blocks) for history in runs])
            x = (np.arange(blocks) + 0.5) * reached / blocks
            mean = np.nanmean(curves, axis=0)
            colour = COLOURS[name.split(" (")[0]]
            axis.plot(x, mean, color=colour, label=name, linewidth=2.2 if name == "BDPI" else 1.3)
            spread = np.nanstd(curves, axis=0) / np.sqrt(len(runs))
            axis.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(threshold, color="black", linewidth=0.6, linestyle=":")
        axis.set(title=task, xlabel="environment steps", xlim=(0, steps))
    axes[0].set_ylabel("return per episode")
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    others = [line for line in axes[-1].get_lines() if str(line.get_label()).startswith("SAC")]
    axes[-1].legend(handles=others, fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    found = series()
    draw(found, ROOT / "docs" / "benchmark.png")
    rows = []
    for task, runs in found.items():
        threshold, _ = TASKS[task]
        for name, histories in runs.items():
            when = np.array([history.steps_to(threshold) for history in histories])
            steps = int(np.median([history.steps[-1] for history in histories]))
            estimate = text(interval(when, _median), 0) if len(when) >= 4 else text((_median(when),) * 3, 0).split()[0]
            rows.append(
                [task, f"{threshold:g}", name, f"{np.isfinite(when).sum()} of {len(when)}", estimate, str(steps)]
            )
    print_table(["task", "threshold", "agent", "runs that reach it", "median steps until then", "steps made"], rows)
    rounds = [load([ROOT / "results" / "scales" / name])["Table-v0"] for name in ("screen", "fourth")]
    for name in ("base", "paper"):
        runs = [history for each in rounds for history in each.get(name, {}).values()]
        docked = sum(bool((history.returns[:100] > 50).any()) for history in runs)
        means = np.array([history.returns[75:100].mean() for history in runs if len(history.returns) > 75])
        late = text(interval(means), 1)
        print(
            f"Table-v0, {name}: {docked} of {len(runs)} dock by episode 100; episodes 75-100 {late} ({len(means)} runs)"
        )


if __name__ == "__main__":
    main()
