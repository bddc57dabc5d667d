"""Runs become series, panels and rows: a row of panels shares its legend, a panel is one environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bdpi.report import style
from bdpi.report.paper import PaperCurve, paper_curve
from bdpi.runs.episodes import moving_average
from bdpi.runs.results import StoredRun


@dataclass(frozen=True)
class StoredSeries:
    """One curve: the runs that differ only in their seed.

    Runs can be of different length, while a study is running or when some have failed. Numbers are then computed from
    the episodes that all of them have. Leaving out the shorter runs would be wrong: where episodes end early once a
    task is learned, the shorter runs are those that have not learned it. Only runs that failed on the way, and runs
    without any episode, are not used.

    :param name: ``"BDPI"``
    :param runs: all of them, also without any episode, ordered by seed
    """

    name: str
    runs: tuple[StoredRun, ...]

    @cached_property
    def n_episodes(self) -> int:
        """How many episodes the runs in :attr:`used` share; 0 before the first episode of any run."""
        return shared_length(len(run.shown_returns) for run in self.used)

    @cached_property
    def used(self) -> tuple[StoredRun, ...]:
        """The runs that numbers are computed from."""
        return tuple(run for run in self.runs if run.counts)

    @cached_property
    def returns(self) -> NDArray[np.float64]:
        """Returns of the used runs, (runs, episodes)."""
        n = self.n_episodes
        return np.array([run.shown_returns[:n] for run in self.used], np.float64).reshape(len(self.used), n)

    @cached_property
    def smoothed(self) -> NDArray[np.float64]:
        """Moving averages of :attr:`returns`, as in the paper."""
        return np.array([moving_average(run.tolist()) for run in self.returns]).reshape(self.returns.shape)

    @property
    def count(self) -> str:
        """How many runs the numbers have: ``"8"``, or ``"6 of 8"`` where some could not be used."""
        return str(len(self.runs)) if len(self.used) == len(self.runs) else f"{len(self.used)} of {len(self.runs)}"

    @property
    def unfinished(self) -> str:
        """``"1 failed, 2 running"``, or nothing when all runs are finished."""
        counts = Counter(run.status for run in self.runs if run.status != "finished")
        return ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))


@dataclass(frozen=True)
class Panel:
    """One environment of a row.

    :param row: name of the row, ``"algorithms"``
    :param environment: Gymnasium id
    :param series: its curves, in the order of the legend
    :param with_paper: compare them with the paper's
    :param x: what its curves are drawn over: ``"episodes"`` or ``"steps"``
    """

    row: str
    environment: str
    series: tuple[StoredSeries, ...]
    with_paper: bool = True
    x: str = "episodes"

    def paper(self, series: str) -> PaperCurve | None:
        """The paper's curve for one of the series, where it has one."""
        return paper_curve(self.row, self.environment, series) if self.with_paper else None

    def drawn_paper(self, series: str) -> PaperCurve | None:
        """The same to be drawn: the paper's curves are over episodes."""
        return self.paper(series) if self.x == "episodes" else None

    @property
    def x_label(self) -> str:
        """Of the axis."""
        return "episode" if self.x == "episodes" else "environment step"


@dataclass(frozen=True)
class Row:
    """The panels that share a legend.

    :param study: ``"figure2"``
    :param name: ``"algorithms"``
    :param title: ``"Algorithms"``, with the study where several have a row of that name
    :param panels: one per environment
    """

    study: str
    name: str
    title: str
    panels: tuple[Panel, ...]

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the series that at least one panel has, in the order of the legend."""
        return style.ordered_series({series.name for panel in self.panels for series in panel.series})


def shared_length(lengths: Iterable[int]) -> int:
    """The shortest length, of those that are not 0; 0 if there is none."""
    return min((length for length in lengths if length), default=0)


def rows_of(runs: Iterable[StoredRun], with_paper: bool = True, x: str = "episodes") -> list[Row]:
    """Sort runs into rows, panels and series, in the paper's order, then in that of the alphabet.

    :param with_paper: see :class:`Panel`, and for ``x``
    """
    grouped: dict[tuple[str, str], dict[str, dict[str, list[StoredRun]]]] = {}
    for run in runs:
        place = run.place
        panels = grouped.setdefault((place.study, place.row), {})
        panels.setdefault(place.environment, {}).setdefault(place.series, []).append(run)
    names = Counter(row for _, row in grouped)
    return [
        Row(
            study,
            row,
            _title(study, row, names[row] > 1),
            tuple(
                Panel(row, environment, _series(panels[environment]), with_paper, x)
                for environment in style.ordered_environments(panels)
            ),
        )
        for (study, row), panels in sorted(grouped.items(), key=lambda item: (style.row_rank(item[0][1]), item[0][0]))
    ]


def _title(study: str, row: str, ambiguous: bool) -> str:
    title = (row or study or "runs").replace("_", " ")
    title = title[:1].upper() + title[1:]
    return f"{title} ({study})" if ambiguous and study else title


def _series(runs: dict[str, list[StoredRun]]) -> tuple[StoredSeries, ...]:
    """In the order of the legend, their runs ordered by seed."""
    return tuple(
        StoredSeries(name, tuple(sorted(runs[name], key=lambda run: run.place.seed)))
        for name in style.ordered_series(runs)
    )
