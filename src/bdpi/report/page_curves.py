"""The curves of the page, as data for ``page.js``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bdpi.report import style
from bdpi.report.entropy import EntropyPanel
from bdpi.report.panels import Panel, Row, StoredSeries
from bdpi.report.statistics import learning_curve

MAX_POINTS = 240  # per curve: about one per two pixels of an enlarged panel


def row_data(place: str, row: Row) -> dict[str, Any]:
    """Learning curves of a row of panels.

    :param place: id of the element that they are drawn in
    """
    return {
        "id": place,
        "title": row.title,
        "bands": "95 % bands",
        "series": _series_data(row.series),
        "panels": [_panel_data(panel) for panel in row.panels],
    }


def _series_data(names: Sequence[str]) -> list[dict[str, str]]:
    colours = style.colours(names)
    return [{"name": name, "light": colours[name][0], "dark": colours[name][1]} for name in names]


def _panel_data(panel: Panel) -> dict[str, Any]:
    curves = [_curve_data(series) for series in panel.series]
    for series in panel.series:
        paper = panel.paper(series.name)
        if paper is not None:
            points = {"x": paper.episodes.astype(int).tolist(), "y": _numbers(paper.returns)}
            curves.append({"series": series.name, "paper": True, **points})
    return _with_shared_x(panel.environment, style.environment_title(panel.environment), "episode", "return", curves)


def _with_shared_x(environment: str, title: str, x: str, y: str, curves: list[dict[str, Any]]) -> dict[str, Any]:
    """Most curves of a panel have the same episodes: they are written once, and curves have their number."""
    shared: list[list[int]] = []
    for curve in curves:
        if curve["x"] not in shared:
            shared.append(curve["x"])
        curve["x"] = shared.index(curve["x"])
    return {"environment": environment, "title": title, "x": x, "y": y, "shared": shared, "curves": curves}


def _curve_data(series: StoredSeries) -> dict[str, Any]:
    curve = learning_curve(series, MAX_POINTS)
    data: dict[str, Any] = {"series": series.name, "runs": series.count}
    data.update(x=curve.episodes.tolist(), y=_numbers(curve.mean))
    if curve.runs > 1:
        data.update(low=_numbers(curve.low), high=_numbers(curve.high))
    return data


def entropy_data(place: str, panels: Sequence[EntropyPanel]) -> dict[str, Any]:
    """Curves of entropies, in the same form."""
    names = style.ordered_series({curve.name for panel in panels for curve in panel.curves})
    return {
        "id": place,
        "title": "Entropy of the policy",
        "bands": "standard deviation over runs",
        "series": _series_data(names),
        "panels": [
            _with_shared_x(
                panel.environment,
                panel.title,
                "time-step",
                "entropy in bits",
                [
                    {
                        "series": curve.name,
                        "runs": curve.count,
                        "x": curve.steps.tolist(),
                        "y": _numbers(curve.mean),
                        "low": _numbers(curve.low),
                        "high": _numbers(curve.high),
                    }
                    for curve in panel.curves
                ],
            )
            for panel in panels
        ],
    }


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Four digits are more than a screen shows. JSON has no NaN."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
