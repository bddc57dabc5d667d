"""The README's figure and table: the default configuration, the paper's, and tuned peers, counted in steps.

    python benchmarks/scales/compare.py

Draws docs/benchmark.png and prints the tables of docs/benchmark.md, from results/scales and results/benchmark/peers.
Runs of the default configuration have seeds 148 to 163 (results/default-2), those of the former one 100 to 115, and for
LunarLander also 116 to 131 and 132 to 147 (results/default); nothing was chosen with these.
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
from bdpi.runs.results import read_runs  # noqa: E402
from scales import tasks  # noqa: E402
from scales.analyse import History, Results, _median, interval, load, print_table, text, total_of  # noqa: E402

#: task: threshold, steps in the figure
TASKS = {
    "CartPole-v1": (475.0, 50_000),
    "Acrobot-v1": (-100.0, 30_000),
    "MountainCar-v0": (-130.0, 60_000),
    "PendulumTorques-v0": (-200.0, 20_000),
}
FORMER, SECOND, LANDER = "BDPI, former default", "second report", "LunarLander-v3"
NAMES = {"dqn": "DQN (RL Zoo)", "qr-dqn": "QR-DQN (RL Zoo)", "ppo": "PPO (RL Zoo)", "sac": "SAC (RL Zoo), any torque"}
COLOURS = {
    "BDPI": "#0072b2",
    "BDPI, paper": "#56b4e9",
    "DQN": "#d55e00",
    "QR-DQN": "#e69f00",
    "PPO": "#6b6b6b",
    "SAC": "#009e73",
}
WINDOWS = {"Table-v0": ((50, 75), (75, 100)), "FrozenLake8x8-v1": ((200, 300),)}  # of episodes


def series() -> dict[str, dict[str, list[History]]]:
    """Runs by task and by name."""
    report, papers = (load([ROOT / "results" / "scales" / name]) for name in ("report", "screen"))
    found: dict[str, dict[str, list[History]]] = {}
    for task in TASKS:
        found[task] = {
            "BDPI": archived("default-2", task),
            FORMER: histories(report, task),
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


def archived(archive: str, task: str) -> list[History]:
    """All runs of a task that ``bdpi report`` has put into results/."""
    runs = read_runs(ROOT / "results" / archive)[1]
    return [History(np.cumsum(run.lengths).astype(float), run.returns) for run in runs if run.place.environment == task]


def histories(report: Results, task: str) -> list[History]:
    """All runs of a task; the report has one configuration."""
    (runs,) = report[task].values()
    return list(runs.values())


def draw(found: dict[str, dict[str, list[History]]], path: Path) -> None:
    """Mean returns against steps."""
    figure, axes = plt.subplots(1, len(TASKS), figsize=(13, 3.2), layout="constrained")
    for axis, (task, (threshold, steps)) in zip(axes, TASKS.items(), strict=True):
        for name, runs in found[task].items():
            if name == FORMER:
                continue
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
        for name, of_agent in runs.items():
            rows.append([task, *reached(of_agent, TASKS[task][0], name)])
    report = load([ROOT / "results" / "scales" / "report"])
    second = load([ROOT / "results" / "scales" / "report-2"])
    landers = {
        FORMER: histories(report, LANDER),
        f"{FORMER}, {SECOND}": histories(second, LANDER),
        f"{FORMER}, third report": archived("default", LANDER),
    }
    for threshold in (100.0, 200.0):
        rows += [[LANDER, *reached(runs, threshold, name)] for name, runs in landers.items()]
    header = ["task", "threshold", "agent", "runs that reach it", "median steps until then", "median episodes"]
    print_table([*header, "steps made"], rows)
    rows = []
    for first, last in ((20_000, 25_000), (48_000, 60_000)):
        for name, runs in landers.items():
            ended = [history.returns[(history.steps > first) & (history.steps <= last)] for history in runs]
            if all(len(returns) for returns in ended):
                means = np.array([returns.mean() for returns in ended])
                rows.append([LANDER, f"{first} to {last}", name, text(interval(means), 0), f"{means.min():.0f}"])
    print_table(["task", "steps", "agent", "mean return", "lowest run"], rows)
    tables = {"BDPI": archived("default-2", "Table-v0"), FORMER: histories(report, "Table-v0")}
    lakes = {FORMER: histories(report, "FrozenLake8x8-v1")}  # which today's default learns to the bit
    rows = []
    for task, runs in (("Table-v0", tables), ("FrozenLake8x8-v1", lakes)):
        for first, last in WINDOWS[task]:
            for name, of_agent in runs.items():
                means = np.array([history.returns[first:last].mean() for history in of_agent])
                rows.append([task, name, f"{first} to {last}", text(interval(means), 2), f"{means.min():.2f}"])
    print_table(["task", "agent", "episodes", "mean return", "lowest run"], rows)
    for name, of_agent in tables.items():
        docks = [(history.returns[:100] > 50).any() for history in of_agent]
        print(f"Table-v0, {name}: {sum(docks)} of {len(docks)} runs dock by episode 100\n")
    print_table(
        ["task", "steps", "score", "unit of the environment", "within", "return in the last fifth"],
        units(report, second),
    )


def units(report: Results, second: Results) -> list[list[str]]:
    """Scores of all tasks, and of those in other units whether they are within the interval of the unscaled runs."""
    rows = []
    both = [(task, task, report) for task in report] + [
        (task, f"{task}, {SECOND}" if task in report else task, second) for task in second
    ]
    for task, name, results in sorted(both, key=lambda each: each[1]):
        plain = task.split("@")[0]
        total = total_of(task, results[task])
        if task != plain:
            total = min(total, total_of(plain, report[plain]))
        scores, unscaled = (
            np.array([history.score(tasks.find(plain).task, total) for history in histories(*each)])
            for each in ((results, task), (report, plain))
        )
        cells = ["", ""]
        if task != plain:
            expected = interval(unscaled)
            cells = [text(expected, 3), "yes" if expected[1] <= scores.mean() <= expected[2] else "no"]
        finals = np.array([history.final(total) for history in histories(results, task)])
        rows.append([name, str(total), text(interval(scores), 3), *cells, text(interval(finals), 1)])
    return rows


def reached(runs: list[History], threshold: float, name: str) -> list[str]:
    """Cells of the table: when runs reach a threshold, in steps and in episodes."""
    steps = np.array([history.steps_to(threshold) for history in runs])
    episodes = np.array(
        [
            np.searchsorted(history.steps, at) + 1 if np.isfinite(at) else np.inf
            for history, at in zip(runs, steps, strict=True)
        ]
    )
    cells = [text(interval(when, _median), 0) if len(when) >= 4 else "" for when in (steps, episodes)]
    made = int(np.median([history.steps[-1] for history in runs]))
    return [f"{threshold:g}", name, f"{np.isfinite(steps).sum()} of {len(steps)}", *cells, str(made)]


if __name__ == "__main__":
    main()
