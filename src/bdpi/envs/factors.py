"""Actions of many kinds as sequences of decisions, each between a few choices.

``MultiDiscrete`` and ``MultiBinary`` actions are decided on number by number, those of a ``Box`` bit by bit (Binary
Action Search), and the parts of a ``Tuple`` or ``Dict`` one after the other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

MAX_DECISIONS = 24  # each half the size of the one before: bits of the significand of float32, which the agent sees
DEFAULT_BITS = 6


class Factors(ABC):
    """How an action, or a part of one, is decided on."""

    #: how many choices each decision has, in their order
    sizes: tuple[int, ...]
    #: whether environments can say which choices are allowed, one for each of the decisions
    maskable: tuple[bool, ...]
    #: bounds of the numbers that say what is decided so far
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @abstractmethod
    def seen(self, made: IntArray) -> NDArray[np.float64]:
        """What is decided so far, in numbers: (n, len(low)).

        :param made: the first decisions on n actions, (n, any number of them); further ones are not looked at
        """

    @abstractmethod
    def value(self, made: IntArray) -> Any:
        """The action that all decisions lead to.

        :param made: (len(sizes),)
        """

    @abstractmethod
    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """An action as a sum, before it is rounded and kept within bounds: where its numbers begin, and what each
        choice of each decision adds to them, (sum of sizes, numbers)."""

    @abstractmethod
    def decisions(self, value: Any) -> IntArray:
        """Those that lead to an action of the space, or, of a ``Box``, nearest to it; (len(sizes),)."""


class WholeNumbers(Factors):
    """Whole numbers, each by one decision. What is decided is seen one-hot.

    :param space: Discrete, MultiDiscrete or MultiBinary
    """

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) -> None:
        self._space = space
        if isinstance(space, spaces.MultiBinary):
            self.sizes = (2,) * int(np.prod(space.shape))
        else:
            self.sizes = tuple(np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).tolist())
        self._start = np.zeros(1, np.int64) if isinstance(space, spaces.MultiBinary) else np.ravel(space.start)
        self.maskable = (True,) * len(self.sizes)
        self._offsets = np.cumsum([0, *self.sizes])
        self.low, self.high = np.zeros(self._offsets[-1]), np.ones(self._offsets[-1])

    def seen(self, made: IntArray) -> NDArray[np.float64]:
        made = made[:, : len(self.sizes)]
        result = np.zeros((len(made), len(self.low)))
        np.put_along_axis(result, self._offsets[: made.shape[1]] + made, 1.0, axis=1)
        return result

    def value(self, made: IntArray) -> Any:
        value = (self._start + made).astype(self._space.dtype).reshape(self._space.shape or ())
        return value[()]  # Discrete: a number, not an array

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        added = np.zeros((self._offsets[-1], len(self.sizes)))
        for number, (first, size) in enumerate(zip(self._offsets[:-1], self.sizes, strict=True)):
            added[first : first + size, number] = np.arange(size)
        return np.broadcast_to(self._start, len(self.sizes)).astype(np.float64), added

    def decisions(self, value: Any) -> IntArray:
        return np.asarray(value).reshape(-1).astype(np.int64) - self._start


class BoxBits(Factors):
    """The numbers of a finite ``Box``, each bit by bit: Binary Action Search (Pazis and Lagoudakis, 2009).

    Each number starts in its middle. A decision moves it up or down by a step, and the step is halved each time; see
    :class:`bdpi.envs.wrappers.BinaryActionSearch`. Seen of each number are where it stands, from -1 (its lower bound)
    to 1, then how far it may still move, from 1 (no decision made) to -1 (decided).

    :param box: with bounds
    :param bits: decisions for each number
    """

    def __init__(self, box: spaces.Box, bits: int) -> None:
        self._box, self._bits, self._n = box, bits, int(np.prod(box.shape))
        self.sizes, self.maskable = (2,) * (bits * self._n), (False,) * (bits * self._n)
        self._steps = 0.5 ** np.arange(1, bits + 1) * 2.0**bits / (2.0**bits - 1)
        self.low, self.high = -np.ones(2 * self._n), np.ones(2 * self._n)

    def seen(self, made: IntArray) -> NDArray[np.float64]:
        n_made = min(made.shape[1], len(self.sizes))
        decided = np.clip(n_made - self._bits * np.arange(self._n), 0, self._bits)
        left = np.broadcast_to(1 - 2 * decided / self._bits, (len(made), self._n))
        return np.concatenate([self._positions(made[:, :n_made]), left], axis=1)

    def _positions(self, made: IntArray) -> NDArray[np.float64]:
        moves = np.zeros((len(made), len(self.sizes)))
        moves[:, : made.shape[1]] = 2 * made - 1
        moves = moves.reshape(-1, self._n, self._bits) * self._steps
        result: NDArray[np.float64] = np.add.accumulate(moves, axis=2)[:, :, -1]
        return result

    def value(self, made: IntArray) -> NDArray[Any]:
        return box_action(self._box, self._positions(made[None])[0])

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        low, high = (bound.astype(np.float64).reshape(-1) / 2 for bound in (self._box.low, self._box.high))
        moves = np.outer(self._steps, (-1.0, 1.0)).reshape(-1, 1)
        return high + low, np.tile(moves, (self._n, 1)) * np.repeat(np.diag(high - low), 2 * self._bits, axis=0)

    def decisions(self, value: Any) -> IntArray:
        low, high = (bound.astype(np.float64).reshape(-1) / 2 for bound in (self._box.low, self._box.high))
        half = np.where(high > low, high - low, 1)
        positions = (np.asarray(value, np.float64).reshape(-1) - high - low) / half
        index = np.rint((np.clip(positions, -1, 1) + 1) / 2 * (2**self._bits - 1)).astype(np.int64)
        return (index[:, None] >> np.arange(self._bits)[::-1] & 1).reshape(-1)


class Several(Factors):
    """The parts of a ``Tuple`` or a ``Dict``, one after the other.

    :param space: of all parts
    :param parts: how each is decided on
    """

    def __init__(self, space: spaces.Tuple[Any] | spaces.Dict, parts: Sequence[Factors]) -> None:
        self._keys = list(space.spaces) if isinstance(space, spaces.Dict) else None
        self._parts = parts
        self.sizes = tuple(size for part in parts for size in part.sizes)
        self.maskable = tuple(each for part in parts for each in part.maskable)
        self.low, self.high = (np.concatenate(bounds) for bounds in zip(*((p.low, p.high) for p in parts), strict=True))
        self._ends = np.cumsum([len(part.sizes) for part in parts])

    def seen(self, made: IntArray) -> NDArray[np.float64]:
        # Not np.split: decisions that are not made yet are not there.
        firsts = [0, *self._ends[:-1]]
        return np.concatenate([part.seen(made[:, f:]) for part, f in zip(self._parts, firsts, strict=True)], axis=1)

    def value(self, made: IntArray) -> Any:
        pieces = zip(self._parts, np.split(made, self._ends[:-1]), strict=True)
        values = [part.value(piece) for part, piece in pieces]
        return tuple(values) if self._keys is None else dict(zip(self._keys, values, strict=True))

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        begin, added = zip(*(part.numbers() for part in self._parts), strict=True)
        rows, columns = (np.cumsum([0, *(part.shape[axis] for part in added)]) for axis in (0, 1))
        whole = np.zeros((rows[-1], columns[-1]))
        for number, part in enumerate(added):
            whole[rows[number] : rows[number + 1], columns[number] : columns[number + 1]] = part
        return np.concatenate(begin), whole

    def decisions(self, value: Any) -> IntArray:
        values = value if self._keys is None else [value[key] for key in self._keys]
        return np.concatenate([part.decisions(each) for part, each in zip(self._parts, values, strict=True)])


def factors_of(space: spaces.Space[Any], bits: int = DEFAULT_BITS) -> Factors:
    """How the actions of a space are decided on.

    :param bits: decisions for each number of a Box
    :raises ValueError: for spaces that are not made of finite numbers
    """
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) != 1:
        raise ValueError(f"actions {space} have {len(space.shape)} axes: give MultiDiscrete one, a list of numbers")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) and np.prod(space.shape or 1) > 0:
        return WholeNumbers(space)
    if isinstance(space, spaces.Box):
        check_box(space, "Binary Action Search", "starts in the middle between")
        return BoxBits(space, check_whole("action_bits", bits, 1, MAX_DECISIONS, "6 gives 64 values"))
    if isinstance(space, spaces.Tuple | spaces.Dict) and len(space.spaces) > 0:
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return Several(space, [factors_of(part, bits) for part in parts])
    raise ValueError(
        f"actions {space} cannot be decided on one after the other: use Discrete, MultiDiscrete, MultiBinary, a Box "
        "with bounds, or a Dict or Tuple of them"
    )


def count_choices(space: spaces.Space[Any], bits: int = DEFAULT_BITS) -> int:
    """How many choices all decisions have, without making any, however many there are; 0 for other spaces."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return sum(map(int, np.ravel(space.nvec)))
    if isinstance(space, spaces.MultiBinary | spaces.Box):
        return 2 * math.prod(map(int, space.shape)) * (bits if isinstance(space, spaces.Box) else 1)
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(count_choices(part, bits) for part in parts)
    return 0


def mask_sizes(space: spaces.Space[Any]) -> list[int]:
    """How many choices each number of an action has that can be masked; a mask is theirs, one after the other."""
    factors = factors_of(space)
    return [size for size, maskable in zip(factors.sizes, factors.maskable, strict=True) if maskable]


def random_action(space: spaces.Space[Any], mask: Any) -> Any:
    """An action that is allowed.

    :param mask: see :func:`mask_sizes`
    """
    if isinstance(space, spaces.Discrete):
        return space.sample(mask)
    factors, allowed = factors_of(space), iter(np.split(np.asarray(mask, bool), np.cumsum(mask_sizes(space))[:-1]))
    choices = [
        np.flatnonzero(next(allowed)) if maskable else np.arange(size)
        for size, maskable in zip(factors.sizes, factors.maskable, strict=True)
    ]
    return factors.value(np.array([space.np_random.choice(each) for each in choices]))


def box_action(box: spaces.Box, position: NDArray[np.float64]) -> NDArray[Any]:
    """An action of a finite Box.

    :param position: of each number of the flattened action: -1 is its lower bound, 1 its upper bound
    """
    # Halved before they are added or subtracted: the width of the largest boxes is no float any more.
    low, high = (bound.astype(np.float64).reshape(-1) / 2 for bound in (box.low, box.high))
    action = high + low + (high - low) * position
    if np.issubdtype(box.dtype, np.integer):
        action = np.rint(action)
    action = action.reshape(box.shape)
    # Where a bound is reached, it is taken as it is: the largest whole numbers are no floats.
    is_low, is_high = action <= box.low.astype(np.float64), action >= box.high.astype(np.float64)
    inside = np.where(is_low | is_high, 0, action).astype(box.dtype)
    return np.where(is_low, box.low, np.where(is_high, box.high, inside))


def check_box(space: spaces.Box, title: str, needs_bounds: str) -> None:
    """Whether a Box has bounds, and something to decide on.

    :param title: of what needs them
    :param needs_bounds: what it does with the bounds, for the error message
    """
    if not space.is_bounded("both"):
        raise ValueError(
            f"{title} {needs_bounds} two bounds, but the action space {space} has not got both: bound it to sensible "
            "actions, with gymnasium.wrappers.TransformAction(env, lambda action: action, Box(low, high))."
        )
    if np.prod(space.shape) < 1:
        raise ValueError(f"{title} needs at least one number to decide on, the action space is {space}.")


def check_whole(name: str, value: Any, low: int, high: int, hint: str) -> int:
    """:raises ValueError: for anything but a whole number from ``low`` to ``high``."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high} ({hint}), got {value!r}")
    return int(value)
