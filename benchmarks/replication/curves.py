"""The 59 curves of the paper's figures beside the runs under results/: which are there, and what they say.

Rules and margins are those of PROTOCOL.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bdpi.report.panels import StoredSeries, rows_of
from bdpi.report.paper import PaperCurve, paper_curve, paper_curves
from bdpi.report.statistics import Estimate, bootstrap_mean
from bdpi.report.tables import estimate_text
from bdpi.runs.build import is_peer
from bdpi.runs.results import StoredRun, read_runs

RESULTS = Path(__file__).resolve().parents[2] / "results"
STUDIES = ("figure2", "pendulum")
SEEDS = frozenset(range(100, 108))
FEWEST = 4  # runs that an interval needs
MARGINS = {"Table": 15.0, "LunarLander": 45.0, "FrozenLake": 0.1, "Hallway": 0.1, "Pendulum": 120.0}


@dataclass(frozen=True)
class Counterpart:
    """A curve of the paper, and our runs of it.

    :param series: None where there are no runs
    """

    paper: PaperCurve
    series: StoredSeries | None

    @property
    def wanted(self) -> int:
        """Episodes that the paper shows."""
        return math.floor(self.paper.episodes[-1])

    @property
    def episodes(self) -> int:
        """Those that all runs have, too."""
        return 0 if self.series is None else min(self.wanted, self.series.n_episodes)

    @property
    def lacks(self) -> list[str]:
        """What the runs would have to have to be complete."""
        runs = () if self.series is None else self.series.used
        short = sum(len(run.shown_returns) < self.wanted for run in runs)
        seeds = SEEDS & {run.place.seed for run in runs}
        fingerprints = {one for run in runs if not is_peer(run.config.agent) for one in run.record.status.learned_by}
        checks = {
            f"seeds 100 to 107 ({len(seeds)} of 8)": seeds == SEEDS,
            f"{self.wanted} episodes ({short} of {len(runs)} have fewer)": not short,
            "clean commits": all(is_clean(run) for run in runs),
            "one fingerprint": len(fingerprints) <= 1 and "" not in fingerprints,  # peers need none
        }
        return [what for what, is_met in checks.items() if not is_met]

    @property
    def state(self) -> str:
        if self.series is None or not self.episodes:
            return "missing"
        return "partial" if self.lacks else "complete"

    @property
    def scores(self) -> np.ndarray:
        """Of each run, over the last tenth."""
        assert self.series is not None
        first, last = self.last_tenth
        return self.series.smoothed[:, first:last].mean(axis=1)

    @property
    def last_tenth(self) -> tuple[int, int]:
        return self.episodes - max(1, round(self.episodes / 10)), self.episodes

    @property
    def papers_score(self) -> float:
        first, last = self.last_tenth
        return self.paper.mean(first, last - 1)

    @property
    def difference(self) -> Estimate:
        """Ours, less the paper's; without an interval where there are too few runs."""
        return bootstrap_mean(self.scores - self.papers_score, fewest=FEWEST)

    @property
    def verdict(self) -> str:
        if self.state == "missing":
            return "missing"
        found, margin = self.difference, MARGINS[self.paper.environment]
        if math.isnan(found.low):
            return f"too few runs ({found.runs})"
        if -margin <= found.low and found.high <= margin:
            return "as in the paper"
        if found.low > margin:
            return "higher"
        if found.high < -margin:
            return "lower"
        return f"undecided ({found.runs} runs)"


def is_clean(run: StoredRun) -> bool:
    """Whether all of it was made from clean commits."""
    status = run.record.status
    commits = [each.versions.get("commit", "-dirty") for each in (status, *status.resumed)]
    return not any(commit.endswith("-dirty") for commit in commits)


def counterparts(protocol: str = "", root: Path = RESULTS) -> list[Counterpart]:
    """All curves of the paper, in its order.

    :param protocol: what is behind the names of the studies, ``"-code"``
    """
    ours: dict[int, StoredSeries] = {}
    curves = paper_curves()
    for folder in (root / f"{study}{protocol}" for study in STUDIES):
        for row in rows_of(read_runs(folder)[1]) if folder.exists() else ():
            for panel in row.panels:
                for series in panel.series:
                    curve = paper_curve(row.name, panel.environment, series.name)
                    if curve is not None:
                        ours[curves.index(curve)] = series
    return [Counterpart(curve, ours.get(number)) for number, curve in enumerate(curves)]


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (columns, ("---",) * len(columns), *lines))


def table_of(curves: Iterable[Counterpart]) -> str:
    """What was found of these curves."""
    columns = ("curve", "runs", "episodes", "ours", "paper", "difference", "verdict", "lacks")
    return table(columns, map(_line, curves))


def _line(curve: Counterpart) -> tuple[str, ...]:
    if curve.state == "missing" or curve.series is None:
        return (curve.paper.series, "0", "", "", "", "", curve.verdict, "runs")
    return (
        curve.paper.series,
        str(len(curve.scores)),
        f"{curve.episodes} of {curve.wanted}",
        f"{curve.scores.mean():.3g}",
        f"{curve.papers_score:.3g}",
        estimate_text(curve.difference),
        curve.verdict,
        "; ".join(curve.lacks) or "nothing",
    )
