"""The entropy of policies while they are learned: mean and deviation over runs, at every time-step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdpi.report import style
from bdpi.report.panels import shared_length
from bdpi.runs.results import StoredRun

# Entropies change most at the beginning: in long runs, these first steps get a panel of their own.
EARLY_STEPS = 5_000


@dataclass(frozen=True)
class EntropyCurve:
    """Entropy of the policy in bits, over the steps that the used runs share.

    :param steps: the first is 1
    :param low: mean minus standard deviation over runs, at least 0
    :param count: how many runs: ``"8"`` or ``"7 of 8"``
    """

    name: str
    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    count: str


@dataclass(frozen=True)
class EntropyPanel:
    """The entropies in one environment.

    :param title: the environment, and which of the steps
    :param window: time-steps of the running average
    """

    environment: str
    title: str
    curves: tuple[EntropyCurve, ...]
    window: int


def entropies_of(runs: Sequence[StoredRun], max_points: int = 1_500) -> list[EntropyPanel]:
    """Panels for all environments in which runs have recorded entropies: the first steps, and all of them.

    :param max_points: longer curves are thinned; the first and the last step stay.
    """
    grouped: dict[str, dict[str, list[NDArray[np.float32]]]] = {}
    for run in runs:
        if run.entropies is not None and len(run.entropies):
            series = grouped.setdefault(run.place.environment, {})
            series.setdefault(run.place.series, []).append(run.entropies)
    panels = []
    for environment in style.ordered_environments(grouped):
        series = grouped[environment]
        longest = max(len(run) for values in series.values() for run in values)
        title = style.environment_title(environment)
        if longest > 2 * EARLY_STEPS:
            early = {name: [run[:EARLY_STEPS] for run in values] for name, values in series.items()}
            panels.append(_panel(environment, f"{title}, first {EARLY_STEPS} steps", early, max_points))
            title = f"{title}, all steps"
        panels.append(_panel(environment, title, series, max_points))
    return panels


def _panel(environment: str, title: str, series: dict[str, list[NDArray[np.float32]]], max_points: int) -> EntropyPanel:
    # Half a percent of the steps: enough to calm the curve, and short beside an episode.
    window = max(1, max(len(run) for runs in series.values() for run in runs) // 200)
    curves = tuple(_curve(name, series[name], window, max_points) for name in style.ordered_series(series))
    return EntropyPanel(environment, title, curves, window)


def _curve(name: str, runs: list[NDArray[np.float32]], window: int, max_points: int) -> EntropyCurve:
    shared = shared_length(len(run) for run in runs)
    used = np.array([run[:shared] for run in runs if len(run) >= shared], np.float64)
    shown = np.unique(np.linspace(0, shared - 1, min(shared, max_points)).round().astype(np.int64))
    mean = running_average(used.mean(axis=0), window)[shown]
    deviation = running_average(used.std(axis=0), window)[shown]
    count = str(len(runs)) if len(used) == len(runs) else f"{len(used)} of {len(runs)}"
    return EntropyCurve(name, shown + 1, mean, np.maximum(mean - deviation, 0.0), mean + deviation, count)


def running_average(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the window around each value; at the ends, of what there is of it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    first = np.maximum(centre - (window - 1) // 2, 0)
    last = np.minimum(centre + window // 2 + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)
