"""Estimates with 95 % intervals, from few runs.

The definitions are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(2021), and of their library rliable: interquartile mean, probability of improvement, percentile intervals from a
bootstrap that is stratified by environment. They are computed here, in a few lines of NumPy, because rliable cannot be
imported beside pandas 3 and draws from NumPy's global generator; a test compares both where rliable can be imported.

All randomness has a fixed seed: the same runs give the same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bdpi.report.panels import StoredSeries
from bdpi.runs.episodes import moving_average

Floats: TypeAlias = NDArray[np.float64]

REPETITIONS = 2_000
FEWEST = 4  # runs of which a bootstrap can say anything
_PERCENTILES = (2.5, 97.5)
# The moving average begins at the first return, so the first episodes could reach a threshold by luck.
_EPISODES_BEFORE_THRESHOLD = 10
# 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
_STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval over seeds.

    :param value: NaN without runs
    :param low: lower end of the 95 % interval; NaN where there are too few runs for one
    :param high: upper end
    :param runs: how many runs it has
    """

    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class LearningCurve:
    """Mean of the smoothed returns, at some episodes, or steps.

    :param episodes: the first is 1; of a curve over steps, these
    :param mean: over runs
    :param low: lower end of the 95 % bootstrap band; NaN with fewer than four runs
    :param high: upper end
    :param runs: how many runs it has
    """

    episodes: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats
    runs: int


def learning_curve(series: StoredSeries, max_points: int = 400, x: str = "episodes") -> LearningCurve:
    """The curve of a series; no points where no run has an episode.

    :param max_points: longer curves are thinned; the first and the last episode are always among the points.
    :param x: ``"steps"``: over environment steps of training, from where all runs have ended an episode to where one
        ends. A run has the smoothed return of its last episode until the next one ends.
    """
    if x == "steps":
        at, curves = _over_steps(series, max_points)
    else:
        n = series.n_episodes
        shown = np.unique(np.linspace(0, n - 1, min(n, max_points)).round().astype(np.int64)) if n else np.arange(0)
        at, curves = shown + 1, series.smoothed[:, shown]
    if len(curves) < FEWEST:
        mean = curves.mean(axis=0) if len(curves) else np.zeros(0)
        return LearningCurve(at, mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan), len(curves))
    low, high = np.percentile(_weights((len(curves),))[0] @ curves, _PERCENTILES, axis=0)
    return LearningCurve(at, curves.mean(axis=0), low, high, len(curves))


def _over_steps(series: StoredSeries, max_points: int) -> tuple[NDArray[np.int64], Floats]:
    """Steps, and the smoothed returns of the used runs there."""
    ends = [np.cumsum(run.lengths)[: len(run.shown_returns)] for run in series.used]
    if not ends:
        return np.arange(0), np.zeros((0, 0))
    first, last = max(int(each[0]) for each in ends), min(int(each[-1]) for each in ends)
    if last < first:  # a run is shorter than the first episode of another one
        return np.arange(0), np.zeros((len(ends), 0))
    at = np.unique(np.linspace(first, last, max_points).round().astype(np.int64))
    curves = [
        np.array(moving_average(run.shown_returns.tolist()))[np.searchsorted(each, at, side="right") - 1]
        for run, each in zip(series.used, ends, strict=True)
    ]
    return at, np.array(curves)


def scores(series: StoredSeries, last: float = 1.0, n_episodes: int | None = None) -> Floats:
    """One number per used run: its mean return.

    :param last: over this share of the episodes, counted from the end; at least one episode.
    :param n_episodes: use only the first ones; None: all.
    """
    returns = series.returns[:, :n_episodes]
    if not returns.size:
        return np.zeros(0)
    return returns[:, -last_episodes(returns.shape[1], last) :].mean(axis=1)


def last_episodes(n_episodes: int, last: float) -> int:
    """How many episodes a share is: rounded up, but not because of the last bit of a product."""
    return max(1, math.ceil(n_episodes * last - 1e-9))


def mean(values: Floats) -> Estimate:
    """Mean, with Student's interval: for a handful of runs, a bootstrap's would be too narrow."""
    n = len(values)
    if n < 2:
        return Estimate(float(values[0]) if n else math.nan, math.nan, math.nan, n)
    half = student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    value = float(values.mean())
    return Estimate(value, value - half, value + half, n)


def bootstrap_mean(values: Floats, fewest: int = FEWEST) -> Estimate:
    """Mean, with a percentile interval from a bootstrap over runs, which is never wider than the runs are apart;
    without one below ``fewest`` runs."""
    n = len(values)
    value = float(values.mean()) if n else math.nan
    if n < fewest:
        return Estimate(value, math.nan, math.nan, n)
    return _with_interval(value, _weights((n,))[0] @ values, n)


def bootstrap_difference(x: Floats, y: Floats, fewest: int = FEWEST) -> Estimate:
    """Mean of x less mean of y, with an interval from a bootstrap over the runs of both; see :func:`bootstrap_mean`.

    :return: with the number of runs of the one that has fewer
    """
    n = min(len(x), len(y))
    value = float(x.mean() - y.mean()) if n else math.nan
    if n < fewest:
        return Estimate(value, math.nan, math.nan, n)
    drawn_x, drawn_y = _weights((len(x), len(y)))
    return _with_interval(value, drawn_x @ x - drawn_y @ y, n)


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t distribution: from a table, and by its expansion around the normal one's."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interquartile_mean(values: Floats) -> Floats:
    """Mean without the lowest and the highest quarter, along the last axis. With fewer than four values: the mean."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def iqm(strata: Sequence[Floats]) -> Estimate:
    """Interquartile mean over the runs of all strata, with a stratified-bootstrap interval.

    :param strata: scores, one array per environment. Those of several environments must be on a common scale.
    """
    strata = [values for values in strata if len(values)]
    n = sum(len(values) for values in strata)
    if not n:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(interquartile_mean(np.concatenate(strata)))
    if min(len(values) for values in strata) < FEWEST:
        return Estimate(value, math.nan, math.nan, n)

    generator = np.random.default_rng(0)
    drawn = [values[generator.integers(len(values), size=(REPETITIONS, len(values)))] for values in strata]
    return _with_interval(value, interquartile_mean(np.concatenate(drawn, axis=1)), n)


def improvement(pairs: Sequence[tuple[Floats, Floats]]) -> Estimate:
    """Probability that a run of X beats one of Y, ties counting half, averaged over environments.

    :param pairs: scores of the runs of X and of Y, for every environment; those where one has no run are left out.
    :return: with the number of runs of X and Y together.
    """
    pairs = [(x, y) for x, y in pairs if len(x) and len(y)]
    n = sum(len(x) + len(y) for x, y in pairs)
    if not pairs:
        return Estimate(math.nan, math.nan, math.nan, 0)
    wins = [(x[:, None] > y) + 0.5 * (x[:, None] == y) for x, y in pairs]
    value = float(np.mean([matrix.mean() for matrix in wins]))
    if min(min(matrix.shape) for matrix in wins) < FEWEST:
        return Estimate(value, math.nan, math.nan, n)

    weights = iter(_weights(tuple(size for matrix in wins for size in matrix.shape)))
    resampled = np.mean([((next(weights) @ matrix) * next(weights)).sum(axis=1) for matrix in wins], axis=0)
    return _with_interval(value, resampled, n)


def first_at_least(curve: Floats, threshold: float) -> int | None:
    """Number, from 1, of the first episode at which a smoothed curve reaches a threshold; ``None``: never.

    Of curves with more than ten episodes, the first nine do not count.
    """
    start = _EPISODES_BEFORE_THRESHOLD - 1 if len(curve) > _EPISODES_BEFORE_THRESHOLD else 0
    reached = np.flatnonzero(curve[start:] >= threshold)
    return int(reached[0]) + start + 1 if len(reached) else None


def centred_mean(curve: Floats, window: int) -> Floats:
    """Each point becomes the mean of those around it, of fewer at both ends.

    :param window: how many, an odd number
    """
    padded = np.pad(np.cumsum(np.concatenate([[0.0], curve])), window // 2, mode="edge")
    counts = np.pad(np.arange(len(curve) + 1), window // 2, mode="edge")
    return (padded[window:] - padded[:-window]) / (counts[window:] - counts[:-window])


def median_episode(series: StoredSeries, threshold: float) -> tuple[int, int | None]:
    """How many of the used runs reach the threshold, each within all episodes that it has, and when the median run
    does: ``None`` if it does not."""
    curves = [np.array(moving_average(run.shown_returns.tolist())) for run in series.used]
    reached = [first_at_least(curve, threshold) for curve in curves]
    times = sorted(math.inf if time is None else float(time) for time in reached)
    # Of an even number of runs the later of the two in the middle: when more than half of them are there.
    middle = times[len(times) // 2] if times else math.inf
    return sum(time is not None for time in reached), None if math.isinf(middle) else int(middle)


def _with_interval(value: float, resampled: Floats, runs: int) -> Estimate:
    low, high = np.percentile(resampled, _PERCENTILES)
    return Estimate(value, float(low), float(high), runs)


@lru_cache(maxsize=16)  # a study compares many series, most of them with as many runs
def _weights(sizes: tuple[int, ...]) -> tuple[Floats, ...]:
    """For each number n of runs, how often each is in each resampled set of n, divided by n: (repetitions, n)."""
    generator = np.random.default_rng(0)
    return tuple(generator.multinomial(n, np.full(n, 1.0 / n), size=REPETITIONS) / n for n in sizes)
