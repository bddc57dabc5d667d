"""How much the choice of hyper-parameters matters: the paper's sensitivity, and what stands behind it.

All randomness has a fixed seed: the same runs give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdpi.report.configurations import Algorithm
from bdpi.report.statistics import Estimate, Floats

PAIRS = 4_000_000  #: as many as in the paper
REPETITIONS = 1_000
_PERCENTILES = (2.5, 97.5)
_BLOCK = 256  # configurations whose distances to all others are in memory at a time
_Z = 1.959964  # 97.5 % quantile of the normal distribution


def sensitivity(points: Floats, scores: Floats, n_pairs: int = PAIRS, seed: int = 0) -> Estimate:
    """The paper's S (appendix, "Data Processing"): how much the score changes from one configuration to another.

    S = sum w(a, b) |score(a) - score(b)| / sum w(a, b), over pairs of configurations. The weight w is the inverse of
    the distance of a and b, so that neighbours count most. The distance is the Euclidean one between points in
    normalised index space (:attr:`bdpi.report.configurations.Algorithm.points`), of which the paper only says that it
    is that of the parameters. Pairs of identical configurations, which would have an infinite weight, are left out;
    what differs between them is luck.

    The interval is a bootstrap's: configurations, not pairs, are drawn again, because pairs with a configuration in
    common are not independent.

    :param points: (configurations, hyper-parameters)
    :param scores: one per configuration
    :param n_pairs: number of random pairs; all pairs if there are fewer
    :param seed: of the pairs and of the bootstrap
    :return: NaN without two different configurations; no interval with fewer than three configurations
    """
    n = len(scores)
    generator = np.random.default_rng(seed)
    sampled = _of_sampled_pairs(points, scores, n_pairs, generator) if n * (n - 1) // 2 > n_pairs else None
    counts = np.zeros((0, n), np.int64)
    if n >= 3:
        counts = generator.multinomial(n, np.full(n, 1.0 / n), size=REPETITIONS)
    value, resampled = _of_all_pairs(points, scores, counts)
    resampled = resampled[np.isfinite(resampled)]  # a small set may have been drawn as one configuration, many times
    if math.isnan(value) or not len(resampled):
        return Estimate(value, math.nan, math.nan, n)
    low, high = np.percentile(resampled, _PERCENTILES)
    return Estimate(value if sampled is None else sampled, float(low), float(high), n)


def _of_sampled_pairs(points: Floats, scores: Floats, n_pairs: int, generator: np.random.Generator) -> float:
    n = len(scores)
    weighted = weights = 0.0
    for start in range(0, n_pairs, 500_000):  # a few at a time, for the sake of memory
        size = min(500_000, n_pairs - start)
        a, b = generator.integers(n, size=size), generator.integers(n - 1, size=size)
        b += b >= a  # never the same one twice
        weight = _inverse(np.sqrt(((points[a] - points[b]) ** 2).sum(axis=1)))
        weighted += float((weight * np.abs(scores[a] - scores[b])).sum())
        weights += float(weight.sum())
    return weighted / weights if weights else math.nan


def _of_all_pairs(points: Floats, scores: Floats, counts: NDArray[np.int64]) -> tuple[float, Floats]:
    """S, and S of each resampled set.

    :param counts: how often each configuration is in each set, (sets, configurations)
    """
    sums = np.zeros(2)
    resampled = np.zeros((2, len(counts)))
    scale = float(np.ptp(scores)) if len(scores) else 1.0
    drawn = counts.astype(np.float32)
    for start in range(0, len(scores), _BLOCK):
        block = slice(start, start + _BLOCK)
        squares = np.zeros((len(scores[block]), len(scores)))
        for coordinate in points.T:
            squares += (coordinate[block, None] - coordinate) ** 2
        weights = _inverse(np.sqrt(squares))
        changes = weights * (np.abs(scores[block, None] - scores) / (scale or 1.0))
        for number, matrix in enumerate((changes, weights)):
            sums[number] += matrix.sum()
            resampled[number] += np.einsum("ri,ri->r", drawn @ matrix.T.astype(np.float32), drawn[:, block])
    with np.errstate(invalid="ignore"):
        return (
            float(sums[0] / sums[1] * scale) if sums[1] else math.nan,
            resampled[0] / resampled[1] * scale,
        )


def _inverse(distances: Floats) -> Floats:
    """1 / distance; 0 for identical configurations."""
    return np.divide(1.0, distances, out=np.zeros_like(distances), where=distances > 0)


def configurations_needed(estimate: Estimate, width: float = 0.1) -> int | None:
    """How many configurations would bring the interval of an estimate down to a given width.

    Intervals shrink with the square root of the number of configurations, which is as good as the interval that there
    is: with a handful of configurations, only the order of magnitude.

    :param width: half of the interval, as a share of the value: 0.1 is plus or minus 10 %
    :return: ``None`` where there is no interval to begin with
    """
    half = (estimate.high - estimate.low) / 2
    if math.isnan(half) or not estimate.value > 0:
        return None
    return math.ceil(estimate.runs * (half / (width * estimate.value)) ** 2)


def share_above(scores: Floats, threshold: float) -> Estimate:
    """Share of the configurations whose score is higher than a threshold, with Wilson's interval.

    The threshold is taken for a given number. If it is the best of other configurations, it would be higher if more of
    them had been tried, and the interval does not know that.
    """
    n = len(scores)
    if not n or math.isnan(threshold):
        return Estimate(math.nan, math.nan, math.nan, n)
    share = float((scores > threshold).mean())
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half), n)


def best_of_others(algorithms: Sequence[Algorithm], name: str) -> tuple[str, float]:
    """The algorithm with the best configuration, one excepted, and the score of that configuration.

    :return: an empty name and NaN where no other algorithm has a score
    """
    others = [(a.name, float(a.scores.max())) for a in algorithms if a.name != name and len(a.scores)]
    return max(others, key=lambda other: other[1], default=("", math.nan))


@dataclass(frozen=True)
class Importance:
    """How much one hyper-parameter matters, by itself.

    :param share: of the variance of the scores: that of the mean scores of its values. 1 if nothing else matters.
    :param chance: a hyper-parameter without any influence stays below this in 95 % of all cases
    :param best: the value with the highest mean score
    """

    parameter: str
    share: float
    chance: float
    best: str

    @property
    def matters(self) -> bool:
        """Whether it is more than chance."""
        return self.share > self.chance


def importances(algorithm: Algorithm, repetitions: int = 500, seed: int = 0) -> list[Importance]:
    """The hyper-parameters of an algorithm, the most important one first.

    The variance of the scores is decomposed into that between the values of a hyper-parameter and the rest. Shares do
    not add up to 1: interactions between hyper-parameters and the luck of single runs are in none of them. How large a
    share comes about by chance is found by permutation, in which the scores are shuffled among the configurations.

    :param repetitions: permutations
    :return: empty with fewer than three configurations, or where all have the same score
    """
    n = len(algorithm.scores)
    total = float(((algorithm.scores - algorithm.scores.mean()) ** 2).sum()) if n else 0.0
    if n < 3 or total == 0.0:
        return []
    centred = algorithm.scores - algorithm.scores.mean()
    # The first row is what was measured, the others are what could have been.
    shuffled = np.random.default_rng(seed).permuted(np.tile(centred, (repetitions, 1)), axis=1)
    shuffled = np.concatenate([centred[None], shuffled])
    found = []
    for number, (parameter, size) in enumerate(zip(algorithm.parameters, algorithm.sizes, strict=True)):
        members = np.eye(size)[algorithm.indices[:, number]]
        counts = members.sum(axis=0)
        sums = shuffled @ members
        shares = np.divide(sums**2, counts, out=np.zeros_like(sums), where=counts > 0).sum(axis=1) / total
        means = np.divide(sums[0], counts, out=np.full(size, -np.inf), where=counts > 0)
        best = algorithm.labels[parameter, int(means.argmax())]
        found.append(Importance(parameter, float(shares[0]), float(np.percentile(shares[1:], 95)), best))
    return sorted(found, key=lambda importance: -importance.share)
