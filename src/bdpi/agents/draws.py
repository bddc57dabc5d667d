"""Which action is drawn from given probabilities, and for how long the random numbers behind it are kept."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bdpi.learner.interface import FloatArray, IntArray

#: Episodes of either kind that are compared, and the fewest of them.
_COMPARED, _FEWEST = 10, 3
#: How often random numbers are kept in an episode, and how often where that was worth less.
_USUALLY, _SELDOM = 0.5, 0.05
_SHORTEST = 1e-30  # time; a number can be divided by it


def draw(probabilities: FloatArray, generator: np.random.Generator) -> IntArray:
    """One action per row, by inverting the cumulative distribution."""
    cumulative: FloatArray = np.add.accumulate(probabilities, axis=1)
    if len(probabilities) == 1:  # the same, more quickly
        (row,) = cumulative.tolist()
        return np.array([min(bisect.bisect_right(row, generator.random() * row[-1]), len(row) - 1)])
    thresholds = generator.random(len(probabilities)) * cumulative[:, -1]
    below: IntArray = np.add.reduce(cumulative <= thresholds[:, None], axis=1)
    return np.minimum(below, probabilities.shape[1] - 1)


class Draws:
    """Draws training actions, by random numbers that are kept for a while in some episodes.

    The action is the first to arrive in a race of exponential times, whose rates are the probabilities. Kept times
    make an uncertain actor do the same thing for long, so that it comes far; at each step its actions have the
    probabilities all the same, and where the actor is certain nothing changes. Half of the episodes keep them, and
    one in twenty as long as the latest such episodes had lower returns than the others.

    :param n_envs: environments that are stepped together
    :param n_actions: to draw from
    :param persistence: for so many steps, on average and at most, times are kept. Each episode that keeps them has its
        own mean, between 1 and this, drawn evenly on a logarithmic scale. 1: every step has new times
    """

    #: what a saved agent holds of it
    saved: ClassVar[dict[str, type]] = {
        "times": np.ndarray,
        "means": np.ndarray,
        "keeps": list,
        "returns_kept": list,
        "returns_other": list,
    }

    def __init__(self, n_envs: int, n_actions: int, persistence: float) -> None:
        self.persistence = persistence
        self.times = np.ones((n_envs, n_actions))
        #: for how long they are kept, on average, in the episode of each environment
        self.means = np.ones(n_envs)
        self.keeps = [False] * n_envs
        #: of the latest episodes that kept them, and of the latest others
        self.returns_kept: list[float] = []
        self.returns_other: list[float] = []

    def pick(self, probabilities: FloatArray, generator: np.random.Generator) -> IntArray:
        """One action per environment."""
        if self.persistence == 1:
            return draw(probabilities, generator)
        anew = generator.random(len(probabilities)) * self.means < 1
        if anew.any():
            drawn = generator.standard_exponential((np.count_nonzero(anew), probabilities.shape[1]))
            self.times[anew] = np.maximum(drawn, _SHORTEST)
        result: IntArray = (probabilities / self.times).argmax(axis=1)
        return result

    def end_episodes(self, environments: Sequence[int], returns: Sequence[float]) -> None:
        """Remember what the episodes that ended there were worth."""
        for environment, value in zip(environments, returns, strict=True):
            kind = self.returns_kept if self.keeps[environment] else self.returns_other
            kind[:] = [*kind[1 - _COMPARED :], value]

    def begin_episodes(self, environments: Sequence[int], generator: np.random.Generator) -> None:
        """Choose for how long times are kept in the next episodes there."""
        if self.persistence == 1:
            return
        for environment in environments:
            self.keeps[environment] = bool(generator.random() < self._share())
            mean = self.persistence ** generator.random() if self.keeps[environment] else 1.0
            self.means[environment] = mean
            self.times[environment] = np.maximum(generator.standard_exponential(self.times.shape[1]), _SHORTEST)

    def _share(self) -> float:
        """How often the next episode keeps times."""
        kept, other = self.returns_kept, self.returns_other
        if min(len(kept), len(other)) < _FEWEST:
            return _USUALLY if len(kept) == len(other) else float(len(kept) < len(other))
        return _SELDOM if sum(kept) / len(kept) < sum(other) / len(other) else _USUALLY
