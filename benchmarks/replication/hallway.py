"""The page about Hallway: which pixels and learning rates were tried, from results/hallway, pixels and hidden-units."""

from __future__ import annotations

import csv

import numpy as np

from bdpi.report.panels import StoredSeries, rows_of
from bdpi.report.paper import paper_curve
from bdpi.report.statistics import mean
from bdpi.report.tables import estimate_text
from bdpi.runs.episodes import read_monitor
from bdpi.runs.results import read_runs
from replication.curves import RESULTS, table

HALLWAY, MINIWORLD = "Hallway-v0", "miniworld:MiniWorld-Hallway-v0"
EPISODES, BLOCK = 150, 25

PAGE = """# Hallway: pixels and learning rates

Written by `make figures` from [results/hallway](../results/hallway/tables.md), [pixels](../results/pixels/) and
[hidden-units](../results/hidden-units/hallway.csv).

The authors' published code has what their text does not say: it runs on MiniWorld's own Hallway, where the robot starts
looking towards the box, with pixels from 0 to 255, not divided by 255 as SB3 does it, a learning rate of 1e-5, not
1e-4, γ = 0.999, and 32 filters in the last convolution. Pixels and learning rate were tried
(`bdpi study benchmarks/hallway.yaml`); γ and filters are the text's. Mean returns in bfloat16, {block} episodes at a
time:

{hallway}
A random policy has {theirs} on MiniWorld's own Hallway, and {ours} on ours,
which follows the paper's text: every room has another size, box and robot are anywhere in it, an episode has 500 steps
(`python benchmarks/random_policy.py Hallway-v0 --episodes 1000`). Few runs say little; where learning from pictures
does not get on, try `--agent bdpi-paper --set normalize_images=false --set learning_rate=1e-5`.

## Why pixels may matter

The hidden units of fresh critics hardly differ between pictures that are divided by 255: their standard deviation over
pictures, a mean over units and critics, is {divided}, and {raw} if pixels are left as they are
(`python benchmarks/pixels.py MiniWorld-Hallway-v0 --spread`). With one critic and batches of 64, which a CPU can train,
on MiniWorld's own Hallway, as far as each run came
(`python benchmarks/pixels.py MiniWorld-Hallway-v0 --learning-rate 1e-5 --raw`):

{pixels}
## Why hidden units are tanh units

Critics with rectified hidden units can diverge. Where they learn from the steps of a random policy, the largest
Q-values by amount within {epochs} epochs are {rectified}, and with tanh units {tanh}; no more than 1 is possible
(`python benchmarks/hidden_units.py --epochs {epochs} --seeds 3`).
"""


def hallway_page() -> str:
    """All of it."""
    ours, theirs = random_policy(HALLWAY), random_policy(MINIWORLD)
    return PAGE.format(block=BLOCK, ours=ours, theirs=theirs, hallway=runs(), **pixels(), **hidden_units())


def random_policy(environment: str) -> str:
    """What benchmarks/random_policy.py found."""
    returns = np.loadtxt(RESULTS / "random" / f"{environment.rpartition(':')[2]}.csv")
    return f"{estimate_text(mean(returns))} in {len(returns)} episodes"


def hidden_units() -> dict[str, str]:
    """What benchmarks/hidden_units.py found, for the text."""
    with (RESULTS / "hidden-units" / "hallway.csv").open() as file:
        lines = list(csv.DictReader(file))
    largest: dict[tuple[str, str], float] = {}
    for line in lines:
        which = line["units"], line["seed"]
        largest[which] = max(largest.get(which, 0.0), -float(line["least"]), float(line["largest"]))
    found = {"epochs": lines[-1]["epoch"]}
    for units in ("rectified", "tanh"):
        found[units] = ", ".join(
            f"{value:.2g}" if value < 10 else f"{value:.0f}" for (its, _), value in largest.items() if its == units
        )
    return found


def pixels() -> dict[str, str]:
    """What benchmarks/pixels.py found, for the text."""
    folder, name = RESULTS / "pixels", "MiniWorld-Hallway-v0"
    with (folder / f"{name}-spread.csv").open() as file:
        lines = list(csv.DictReader(file))
    found = {
        kind: f"{np.mean([float(line['spread']) for line in lines if line['pixels'] == kind]):.2g}"
        for kind in ("raw", "divided")
    }
    rows = []
    for path in sorted(folder.glob(f"{name}-*.monitor.csv")):
        kind, rate = path.name.removeprefix(f"{name}-").removesuffix("-seed0.monitor.csv").split("-", 1)
        episodes = read_monitor(path)
        reached = np.array(episodes.returns) > 0
        blocks = ", ".join(str(int(block.sum())) for block in np.split(reached, range(10, len(reached), 10)))
        what = "0 to 255" if kind == "raw" else "divided by 255"
        rows.append((what, f"{float(rate):g}", str(sum(episodes.lengths)), str(len(reached)), blocks))
    columns = ("pixels", "learning rate", "steps", "episodes", "episodes that reached the box, ten at a time")
    return {**found, "pixels": table(columns, rows)}


def runs() -> str:
    """Runs of both Hallways beside the paper's curve."""
    rows = rows_of(read_runs(RESULTS / "figure2")[1] + read_runs(RESULTS / "hallway")[1])
    found = {
        (panel.environment, series.name): series
        for row in rows
        if row.name in ("algorithms", "pixels")
        for panel in row.panels
        for series in panel.series
    }
    curve = paper_curve("algorithms", HALLWAY, "BDPI")
    assert curve is not None
    drawn = ", ".join(f"{curve.mean(first, first + BLOCK):.2f}" for first in range(0, EPISODES, BLOCK))
    lines = [("the paper's curve", "", "", "", drawn, "")]
    for environment, series, *what in (
        (MINIWORLD, "divided, 1e-4", "MiniWorld's", "divided by 255", "1e-4"),
        (MINIWORLD, "raw, 1e-5", "MiniWorld's", "0 to 255", "1e-5"),
        (HALLWAY, "BDPI", "ours", "divided by 255", "1e-4"),
        (HALLWAY, "raw, 1e-5", "ours", "0 to 255", "1e-5"),
        (HALLWAY, "divided, 1e-5", "ours", "divided by 255", "1e-5"),
    ):
        lines.append((*what, *_cells(found[environment, series])))
    return table(("environment", "pixels", "learning rate", "runs", "returns", "steps of each run"), lines)


def _cells(series: StoredSeries) -> tuple[str, str, str]:
    n = min(EPISODES, series.n_episodes)
    parts = [series.returns[:, first : first + BLOCK].mean() for first in range(0, n, BLOCK)]
    returns = ", ".join(f"{part:.2f}" for part in parts) + (f" ({n} episodes)" if n < EPISODES else "")
    return str(len(series.used)), returns, ", ".join(str(run.lengths[:EPISODES].sum()) for run in series.used)
