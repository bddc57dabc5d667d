"""Scales: from the user's units to those of the networks, and back.

Networks learn well when their inputs differ by about 1 and when the values to be learned have a certain size. So they
see observations as ``(x - shift) * factor``, and learn ``(Q - return_shift) * return_factor``: for that, a learner
turns each reward it gathers into ``(r - (1 - discount) * return_shift) * return_factor``. The replay memory keeps what
was observed. Everything here is a function of arrays; the scales of an agent are estimated from its replay memory.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

_PIECE = 1 << 16  # transitions
_ROUNDING = 1e-6  # of single precision, relative to the size of a number
#: Inputs and rewards so many times beyond what scales were made for show that they no longer fit.
FAR = 4.0
#: Bounds that are so many times as far away as what was seen say nothing about what will be.
FARTHEST_BOUND = 1000.0
#: Where rewards are rare, returns and learning rates are so many times smaller, and inputs so many times closer.
RARER, CLOSER = 3.0, 2.0


@dataclass(frozen=True, eq=False)
class Scales:
    """How networks see what an agent observes.

    :param shift: of each input
    :param factor: of each input; 0 for one that has never changed
    :param return_shift: of Q-values, in the user's units
    :param return_factor: of Q-values
    :param knows_returns: the last two were estimated; else rewards were all zero so far, which have no size
    """

    shift: FloatArray
    factor: FloatArray
    return_shift: float = 0.0
    return_factor: float = 1.0
    knows_returns: bool = False

    @classmethod
    def none(cls, n_inputs: int) -> Scales:
        """Networks see and learn the user's units."""
        return cls(np.zeros(n_inputs, np.float32), np.ones(n_inputs, np.float32))

    @classmethod
    def unknown(cls, n_inputs: int) -> Scales:
        """Nothing was seen yet: all observations look alike, whatever their units."""
        return cls(np.zeros(n_inputs, np.float32), np.zeros(n_inputs, np.float32))

    @cached_property
    def all_known(self) -> bool:
        """Whether all inputs have changed already."""
        return bool(self.factor.all())

    def inputs(self, observations: NDArray[Any]) -> FloatArray:
        """Rows of observations, as networks see them."""
        result: FloatArray = (observations - self.shift) * self.factor
        return result

    def is_far(self, observations: NDArray[Any], size: float) -> bool:
        """Whether one of these is far from all that the scales were made for, or changes for the first time.

        :param size: of inputs for what they were made for
        """
        still = (self.factor == 0) & (np.abs(observations - self.shift) > _ROUNDING * np.abs(self.shift))
        return bool(np.any(still) or np.any(np.abs(self.inputs(observations)) > FAR * size))

    def q_values(self, outputs: FloatArray) -> FloatArray:
        """What networks say, in the user's units."""
        result: FloatArray = outputs / np.float32(self.return_factor) + np.float32(self.return_shift)
        return result

    def packed(self) -> FloatArray:
        """All numbers that a kernel needs, (2 n_inputs + 2,)."""
        return np.concatenate([self.shift, self.factor, [self.return_shift, self.return_factor]], dtype=np.float32)


def range_of(observations: NDArray[Any], bounds: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """The lowest and the highest of these, (2, n_inputs).

    :param observations: (n, n_inputs), in the user's units
    :param bounds: count as observed, (2, n_inputs); those that are far away or infinite do not
    """
    lowest, highest = observations.min(axis=0).astype(np.float64), observations.max(axis=0).astype(np.float64)
    if bounds is not None:
        low, high = bounds.astype(np.float64)
        reach = FARTHEST_BOUND * (highest - lowest)
        lowest = np.where(lowest - low <= reach, np.minimum(lowest, low), lowest)
        highest = np.where(high - highest <= reach, np.maximum(highest, high), highest)
    return np.stack([lowest, highest])


def scale_to_range(before: Scales, observations: NDArray[Any], is_first: bool, size: float = 1.0) -> Scales:
    """Inputs between -size and size for all that was seen so far: ranges grow, and never shrink.

    A policy that has become good sees a small part of what there is. Looking at that part more closely would change
    what its networks compute.

    :param before: the scales so far
    :param observations: (n, n_inputs), in the user's units
    :param is_first: ``before`` was not made from any observations
    """
    lowest, highest = observations.min(axis=0).astype(np.float64), observations.max(axis=0).astype(np.float64)
    if not is_first:
        with np.errstate(divide="ignore"):
            reach = np.where(before.factor > 0, size / before.factor.astype(np.float64), 0)
        lowest, highest = np.minimum(lowest, before.shift - reach), np.maximum(highest, before.shift + reach)
    width = highest - lowest
    # What differs by no more than rounding does not differ.
    differs = width > _ROUNDING * np.maximum(np.abs(lowest), np.abs(highest))
    factor = np.where(differs, 2 * size / np.where(differs, width, 1), 0)
    return replace(before, shift=((lowest + highest) / 2).astype(np.float32), factor=factor.astype(np.float32))


def returns_to_go(rewards: NDArray[Any], discounts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.float64]:
    """The discounted return from each transition to the end of its episode, or to the newest transition.

    :param rewards: (n, ...) in the order of time
    :param discounts: of each transition; 0 where an episode terminated
    :param ends: where an episode ended, for whatever reason
    """
    returns = np.array(rewards, np.float64)
    for column in np.ndindex(returns.shape[1:]):
        following = 0.0
        for end in range(len(returns), 0, -_PIECE):  # Python's numbers are quicker than rows of an array, and larger
            part = (slice(max(0, end - _PIECE), end), *column)
            values, factors = returns[part].tolist(), np.where(ends[part], 0.0, discounts[part]).tolist()
            for row in range(len(values) - 1, -1, -1):
                values[row] = following = values[row] + factors[row] * following
            returns[part] = values
    return returns


def size_of(returns: NDArray[np.float64]) -> float:
    """The typical size of the returns that matter: of rare ones, not of the zeros between them.

    It is the root mean square, weighted by the squares: c for returns that are 0 or c, however rarely.
    """
    largest = float(np.abs(returns).max(initial=0.0))
    if largest == 0:
        return 0.0
    squares = returns / largest
    squares *= squares
    return largest * float(np.sqrt((squares**2).sum() / squares.sum()))


def scale_returns(before: Scales, returns: NDArray[np.float64], size: float, centre: bool = False) -> Scales:
    """Q-values of about ``size`` for these returns; the scales so far if all returns are 0.

    :param centre: Q-values around 0
    """
    shift = float(returns.mean()) if centre else 0.0
    found = size_of(returns - shift if shift else returns)
    if found == 0:
        return before
    return replace(before, return_shift=shift, return_factor=size / found, knows_returns=True)


def rescale_critics(
    state: MutableMapping[str, NDArray[Any]], before: Scales, after: Scales, n_last: int, n_actions: int
) -> None:
    """Change critics, in place, so that their Q-values in the user's units stay the same (van Hasselt et al., 2016).

    Adam's moments become what they would be if all gradients had been computed with the new scales.

    :param state: of a learner, with ``critics.parameters`` and so on; the last axis counts parameters
    :param n_last: number of parameters of the last layer: weights, then one bias per action
    """
    ratio = after.return_factor / before.return_factor
    offset = (before.return_shift - after.return_shift) * after.return_factor
    parameters, priors = state["critics.parameters"], state["priors"]
    parameters[..., -n_last:] *= ratio
    parameters[..., -n_actions:] += offset
    priors[..., -n_last:] *= ratio
    # The loss grows by ratio ** 2: so do gradients below the last layer, and those of the last one by the ratio.
    for moment, power in (("critics.first_moment", 1), ("critics.second_moment", 2)):
        state[moment][..., :-n_last] *= ratio ** (2 * power)
        state[moment][..., -n_last:] *= ratio**power
