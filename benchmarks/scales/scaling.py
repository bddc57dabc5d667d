"""Scales of many runs, estimated from what they have observed so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.scales import Scales, returns_to_go, scale_returns, scale_to_range
from scales.candidates import Candidate
from scales.tasks import Space

_ROUNDING = 1e-6  # what differs by less, relative to its size, does not differ


class RunScales:
    """The scales of runs, and the statistics they come from.

    :param candidates: one per run
    :param space: of the task
    :param steps: as many as there can be
    """

    def __init__(self, candidates: Sequence[Candidate], space: Space, steps: int) -> None:
        self._candidates, self._space = candidates, space
        self.scales = [self._initial(candidate) for candidate in candidates]
        count = len(candidates)
        self._keeps_observations = not space.one_hot and any(each.observations != "none" for each in candidates)
        self._keeps_rewards = any(each.return_size is not None for each in candidates)
        inputs = (count, space.inputs)
        self._lowest, self._highest = np.full(inputs, np.inf), np.full(inputs, -np.inf)
        self._sum, self._squares, self._origin = np.zeros(inputs), np.zeros(inputs), np.zeros(inputs)
        kept = (steps if self._keeps_rewards else 0, count)
        # Time comes first. Zeros take no memory before they are written.
        self._rewards, self._discounts = np.zeros(kept, np.float32), np.zeros(kept, np.float32)
        self._ended = np.zeros(kept, np.bool_)
        self._lacks_returns = np.array([candidate.return_size is not None for candidate in candidates])
        self._steps = 0

    def add(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Count one step of every run, with the observations that it led to.

        :param arrays: see :class:`workers.Environments`
        :returns: runs whose first reward that is not zero this was
        """
        if self._keeps_observations:
            observations = arrays["final"]
            if self._steps == 0:
                self._origin[:] = observations  # sums of differences lose no digits
            np.minimum(self._lowest, observations, out=self._lowest)
            np.maximum(self._highest, observations, out=self._highest)
            difference = observations - self._origin
            self._sum += difference
            self._squares += difference * difference
        first = np.zeros(0, np.int64)
        if self._keeps_rewards:
            row = self._steps
            self._rewards[row], self._discounts[row] = arrays["rewards"], arrays["discounts"]
            self._ended[row] = arrays["ended"]
            first = np.flatnonzero(self._lacks_returns & (self._rewards[row] != 0))
            self._lacks_returns[first] = False
        self._steps += 1
        return first

    def estimate(self, runs: Iterable[int]) -> dict[int, tuple[Scales, Scales]]:
        """Scales of these runs that have changed: before and after."""
        runs = [run for run in runs if self._candidates[run].is_scaled]
        before = {run: self.scales[run] for run in runs}
        if self._keeps_observations:
            for run in runs:
                self.scales[run] = self._of_observations(run)
        self._scale_returns([run for run in runs if self._candidates[run].return_size is not None])
        return {run: (before[run], self.scales[run]) for run in runs if self.scales[run] is not before[run]}

    def packed(self) -> NDArray[np.float32]:
        """As the kernels take them, (R, 2 I + 2)."""
        return np.stack([scales.packed() for scales in self.scales])

    def _initial(self, candidate: Candidate) -> Scales:
        """What can be known without an observation."""
        if self._space.one_hot or candidate.observations == "none":
            return Scales.none(self._space.inputs)
        unknown = Scales.unknown(self._space.inputs)
        return self._within_bounds(unknown) if candidate.observations == "bounds" else unknown

    def _within_bounds(self, others: Scales) -> Scales:
        """Inputs with bounds by these, the others as they are."""
        low, high = self._space.low, self._space.high
        is_finite = np.isfinite(low) & np.isfinite(high) & (high > low)
        low, high = np.where(is_finite, low, -1), np.where(is_finite, high, 1)
        shift = np.where(is_finite, (low + high) / 2, others.shift).astype(np.float32)
        factor = np.where(is_finite, 2 / (high - low), others.factor).astype(np.float32)
        return replace(others, shift=shift, factor=factor)

    def _of_observations(self, run: int) -> Scales:
        candidate, before = self._candidates[run], self.scales[run]
        kind = candidate.observations
        if kind == "none":
            return before
        if kind in ("range", "wide"):
            seen = np.stack([self._lowest[run], self._highest[run]])
            if kind == "wide":
                seen = widened(seen, self._space.low, self._space.high, seen[1] - seen[0])
            elif self._is_rare(run):
                seen = widened(seen, self._space.low, self._space.high, np.inf)
            return scale_to_range(before, seen, not before.factor.any(), candidate.input_size)
        if kind == "narrow":
            margin = (self._space.high - self._space.low) / 2 * min(1.0, candidate.narrow_from / self._steps)
            seen = widened(np.stack([self._lowest[run], self._highest[run]]), self._space.low, self._space.high, margin)
            return scale_to_range(before, seen, True, candidate.input_size)
        mean = self._sum[run] / self._steps
        deviation = np.sqrt(np.maximum(self._squares[run] / self._steps - mean**2, 0))
        mean = mean + self._origin[run]
        differs = deviation > _ROUNDING * np.abs(mean)
        factor = np.where(differs, 1 / np.where(differs, deviation, 1), 0)
        after = replace(before, shift=mean.astype(np.float32), factor=factor.astype(np.float32))
        return self._within_bounds(after) if kind == "bounds" else after

    def _scale_returns(self, runs: list[int]) -> None:
        if not runs:
            return
        longest = max(self._candidates[run].capacity for run in runs)
        rows = slice(max(0, self._steps - longest), self._steps)
        parts = self._rewards[rows][:, runs], self._discounts[rows][:, runs], self._ended[rows][:, runs]
        returns = _returns(*parts)
        for column, run in enumerate(runs):
            candidate = self._candidates[run]
            assert candidate.return_size is not None
            mine = returns[-candidate.capacity :, column]
            size = candidate.return_size / (3 if self._is_rare(run) else 1)
            self.scales[run] = scale_returns(self.scales[run], mine, size, candidate.centre)

    def _is_rare(self, run: int) -> bool:
        """Whether few of the transitions in the replay memory have a reward."""
        candidate = self._candidates[run]
        rewards = self._rewards[max(0, self._steps - candidate.capacity) : self._steps, run]
        return candidate.rare > 0 and np.count_nonzero(rewards) < candidate.rare * len(rewards)


def widened(
    seen: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], margin: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """The range that was seen and a margin on both sides, but not beyond bounds; none where no bound is finite.

    :param seen: lowest and highest, (2, I)
    """
    lowest, highest = seen
    below = np.where(np.isfinite(low), np.minimum(lowest, np.maximum(low, lowest - margin)), lowest)
    above = np.where(np.isfinite(high), np.maximum(highest, np.minimum(high, highest + margin)), highest)
    return np.stack([below, above])


def _returns(
    rewards: NDArray[np.float32], discounts: NDArray[np.float32], ended: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """As ``returns_to_go``, without computing those of episodes before the first reward, which are zero."""
    first = np.flatnonzero(rewards.any(axis=1))[:1]
    if not len(first):
        return np.zeros(rewards.shape)
    before = ended[: first[0]]
    # Where the last episode of each run ends before that; 0 where none does.
    starts = np.where(before.any(axis=0), len(before) - before[::-1].argmax(axis=0), 0) if len(before) else [0]
    start = int(np.min(starts))
    returns = np.zeros(rewards.shape)
    returns[start:] = returns_to_go(rewards[start:], discounts[start:], ended[start:])
    return returns


def preserve_first_layers(state: MutableMapping[str, Any], before: Scales, after: Scales, hidden: int) -> None:
    """Change networks, in place, so that they compute the same from observations with new scales.

    Inputs that had no scale stay as they are. Adam's first moments become those of gradients with the new scales, the
    second ones likewise but for shifts.

    :param state: ``parameters``, ``first_moment`` and ``second_moment``, tensors whose last axis is that of parameters
    """
    n_inputs = len(before.shift)
    known = (before.factor > 0) & (after.factor > 0)
    ratio = np.where(known, before.factor / np.where(known, after.factor, 1), 1.0)
    moved = np.where(known, (after.shift - before.shift) * before.factor, 0.0)
    weights = {name: each[..., : n_inputs * hidden].unflatten(-1, (hidden, n_inputs)) for name, each in state.items()}
    biases = {name: each[..., n_inputs * hidden : (n_inputs + 1) * hidden] for name, each in state.items()}
    tensor = weights["parameters"]
    ratio, moved = tensor.new_tensor(ratio), tensor.new_tensor(moved)
    biases["parameters"] += (tensor * moved).sum(-1)
    tensor *= ratio
    weights["first_moment"] -= biases["first_moment"].unsqueeze(-1) * moved
    weights["first_moment"] /= ratio
    weights["second_moment"] /= ratio**2
