"""Curves of pages, a report's and the live one, as data for ``curves.js``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bdpi.report import style
from bdpi.report.entropy import EntropyPanel
from bdpi.report.panels import Panel, Row
from bdpi.report.statistics import FEWEST, learning_curve
from bdpi.runs.logs import Log

MAX_POINTS = 240  # per curve: about one per two pixels of an enlarged panel


def row_data(place: str, row: Row) -> dict[str, Any]:
    """Learning curves of a row of panels.

    :param place: id of the element that they are drawn in
    """
    panels = [
        _panel(panel.environment, style.environment_title(panel.environment), panel.x_label, "return", _curves(panel))
        for panel in row.panels
    ]
    return _row(place, row.title, "95 % bands", row.series, panels)


def entropy_data(place: str, panels: Sequence[EntropyPanel]) -> dict[str, Any]:
    """Curves of entropies, in the same form."""
    names = style.ordered_series({curve.name for panel in panels for curve in panel.curves})
    drawn = []
    for panel in panels:
        curves = [_curve(each.name, each.count, each.steps, each.mean, each.low, each.high) for each in panel.curves]
        drawn.append(_panel(panel.environment, panel.title, "time-step", "entropy in bits", curves))
    return _row(place, "Entropy of the policy", "standard deviation over runs", names, drawn)


Points = tuple[Iterable[float], Iterable[float]]


class Lines(NamedTuple):
    """A panel of one run.

    :param name: of the panel, for programs
    :param title: above it
    :param x: what its lines are drawn over
    :param y: what they show
    :param lines: x and y of each, by their names
    :param start: where x begins
    """

    name: str
    title: str
    x: str
    y: str
    lines: dict[str, Points]
    start: float = 0


#: Names of lines: what a run did, and what its critics expect.
RUN, CRITICS = "run", "critics expect"


def lines_data(place: str, title: str, panels: Iterable[Lines]) -> dict[str, Any]:
    """Lines of one run, in the same form; those without a value, and panels without lines, are left out."""
    drawn, names = [], set()
    for each in panels:
        curves = []
        for name, points in each.lines.items():
            x, y = (np.array([*part], float) for part in points)
            known = np.isfinite(x) & np.isfinite(y)
            if known.any():
                curves.append(_curve(name, "", *_thinned(x[known], y[known])))
        if curves:
            names |= {curve["series"] for curve in curves}
            drawn.append(_panel(each.name, each.title, each.x, each.y, curves) | {"from": each.start})
    return _row(place, title, "", [name for name in (RUN, CRITICS) if name in names], drawn)


def values_lines(steps: Iterable[float], expected: Iterable[float], followed: Iterable[float], start: float) -> Lines:
    """What critics expect, beside the returns that followed."""
    steps = [*steps]
    lines: dict[str, Points] = {RUN: (steps, followed), CRITICS: (steps, expected)}
    return Lines("values", "Q and returns", "step", "discounted, mean", lines, start)


def log_data(place: str, log: Log) -> dict[str, Any]:
    """How a run learned, as its log says."""
    one = [
        Lines("entropy", "Entropy", "step", "of the policy, bits", {RUN: (log.steps, log.entropy)}),
        Lines(
            "disagreement",
            "Disagreement",
            "step",
            "critics differ, share of states",
            {RUN: (log.steps, log.disagreement)},
        ),
        values_lines(log.steps, log.expected, log.followed, 0),
    ]
    return lines_data(place, "Learning", one)


def _thinned(x: Any, y: Any) -> tuple[Any, Any]:
    """Means of neighbours, where there are too many."""
    n = min(len(x), MAX_POINTS)
    firsts = np.arange(n) * len(x) // n
    sizes = np.diff(firsts, append=len(x))
    x, y = (np.add.reduceat(each, firsts) / sizes for each in (x, y))
    return x.round().astype(int), y


def _row(place: str, title: str, bands: str, names: Sequence[str], panels: list[dict[str, Any]]) -> dict[str, Any]:
    colours = style.colours(names)
    series = [{"name": name, "light": colours[name][0], "dark": colours[name][1]} for name in names]
    return {"id": place, "title": title, "bands": bands, "series": series, "panels": panels}


def _panel(environment: str, title: str, x: str, y: str, curves: list[dict[str, Any]]) -> dict[str, Any]:
    """Most curves of a panel have the same x: each is written once, and a curve has its number."""
    shared: list[list[int]] = []
    for curve in curves:
        if curve["x"] not in shared:
            shared.append(curve["x"])
        curve["x"] = shared.index(curve["x"])
    return {"environment": environment, "title": title, "x": x, "y": y, "shared": shared, "curves": curves}


def _curves(panel: Panel) -> list[dict[str, Any]]:
    ours, papers = [], []
    for series in panel.series:
        curve = learning_curve(series, MAX_POINTS, panel.x)
        band = (curve.low, curve.high) if curve.runs >= FEWEST else ()
        ours.append(_curve(series.name, series.count, curve.episodes, curve.mean, *band))
        paper = panel.drawn_paper(series.name)
        if paper is not None:
            points = {"x": paper.episodes.astype(int).tolist(), "y": _numbers(paper.returns)}
            papers.append({"series": series.name, "paper": True, **points})
    return ours + papers


def _curve(name: str, runs: str, x: Any, mean: Iterable[float], *band: Iterable[float]) -> dict[str, Any]:
    values = zip(("y", "low", "high"), map(_numbers, (mean, *band)), strict=False)
    return {"series": name, "runs": runs, "x": x.tolist(), **dict(values)}


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Four digits are more than a screen shows. JSON has no NaN."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
