"""The curves of the paper's Figures 2 and 3, read off its vector graphics, under the names that are used here."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

# Only TableLong-v0 is what the figure shows; the episodes of Table-v0 are ten times shorter.
_ENVIRONMENTS = {
    "TableLong": "Table",
    "LunarLander": "LunarLander",
    "FrozenLake8x8": "FrozenLake",
    "Hallway": "Hallway",
    "MiniWorld-Hallway": "Hallway",
    "Pendulum": "Pendulum",
}
_SERIES = {"actormimic": "BDPI/mimic", "bootstrappeddqn": "BDQN", "sac": "Soft Actor Critic"}
# In these rows the paper gives BDPI, or BDPI with noise, a name of its own.
_SERIES_OF_ROW = {("noise", "noise"): "BDPI+noise", ("pendulum", "bdpi"): "BDPI+binary"}

# Returns at which the paper's curves can be told apart, by its names of the environments, and a twentieth of the
# episodes that it shows of them, as an odd number.
_THRESHOLDS: dict[str, tuple[tuple[float, ...], int]] = {
    "Table": ((90.0,), 25),
    "LunarLander": ((100.0, 200.0), 51),
    "FrozenLake": ((0.5,), 51),
    "Hallway": ((0.8,), 25),
    "Pendulum": ((-300.0,), 7),
}


@dataclass(frozen=True)
class PaperCurve:
    """One curve of the paper: a mean over runs, smoothed as :func:`bdpi.runs.episodes.moving_average` does.

    :param figure: ``"Figure 2"``
    :param row: ``"Algorithms"``
    :param environment: ``"FrozenLake"``
    :param series: ``"BDPI/mimic"``
    :param episodes: rising, not every one
    :param returns: at these episodes
    :param low: lower end of the band, one standard error; NaN where the figure has none
    :param high: upper end
    """

    figure: str
    row: str
    environment: str
    series: str
    episodes: NDArray[np.float64]
    returns: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def mean(self, first: float, last: float) -> float:
        """Mean return from one episode to another, as far as the curve goes; NaN where it does not go at all."""
        first, last = max(first, self.episodes[0]), min(last, self.episodes[-1])
        if first > last:
            return float("nan")
        return float(np.interp(np.arange(np.ceil(first), last + 0.5), self.episodes, self.returns).mean())


def paper_curves() -> list[PaperCurve]:
    """All curves, in the order of the file."""
    return list(_curves().values())


def paper_curve(row: str, environment: str, series: str) -> PaperCurve | None:
    """The paper's curve for one of ours, or ``None`` where the paper has none.

    :param row: ``"algorithms"``, ``"critics"``, ``"noise"`` or ``"pendulum"``
    :param environment: Gymnasium id, ``"FrozenLake8x8-v1"``
    :param series: our name of the agent, ``"ActorMimic"``, or of the configuration, ``"16x8"``
    """
    name = paper_environment(environment)
    if name is None:
        return None
    return _curves().get((row.casefold(), name, paper_series(row, series).casefold()))


def paper_environment(environment: str) -> str | None:
    """The paper's name of a Gymnasium id of any version, or ``None``."""
    return _ENVIRONMENTS.get(_without_version(environment))


def paper_series(row: str, series: str) -> str:
    """The paper's name of a series; the name itself where they are the same, or the paper has none."""
    plain = "".join(letter for letter in series.casefold() if letter.isalnum())
    if row.casefold() == "noise" and plain.endswith("noise"):
        plain = "noise"
    return _SERIES_OF_ROW.get((row.casefold(), plain)) or _SERIES.get(plain, series)


def thresholds_of(environment: str) -> tuple[float, ...]:
    """Returns worth reaching in this environment; none for one that is not the paper's."""
    return _thresholds(environment)[0]


def threshold_window(environment: str) -> int:
    """Over how many episodes a curve is averaged before it counts as high as a threshold: one peak is not enough."""
    return _thresholds(environment)[1]


def _thresholds(environment: str) -> tuple[tuple[float, ...], int]:
    name = "Table" if _without_version(environment) == "Table" else paper_environment(environment)
    return _THRESHOLDS.get(name or "", ((), 1))


def _without_version(environment: str) -> str:
    name = environment.rsplit(":", 1)[-1].rsplit("/", 1)[-1]
    stem, dash, version = name.rpartition("-v")
    return stem if dash and version.isdigit() else name


@functools.cache
def _curves() -> dict[tuple[str, str, str], PaperCurve]:
    """By row and series, without regard to capitals, and environment."""
    points: dict[tuple[str, str, str, str], list[tuple[float, ...]]] = {}
    text = resources.files("bdpi.report").joinpath("figure_curves.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        key = (line["figure"], line["panel_row"], line["env"], line["series"])
        values = tuple(float(line[name] or "nan") for name in ("episode", "return", "band_low", "band_high"))
        points.setdefault(key, []).append(values)
    return {
        (key[1].casefold(), key[2], key[3].casefold()): PaperCurve(*key, *np.array(points[key]).T) for key in points
    }
