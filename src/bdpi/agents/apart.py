"""Values that a few of many places have, in two arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.interface import BoolArray, IntArray

_PIECE = 1 << 20  # numbers


def pieces(rows: int, width: int, first: int = 0) -> Iterator[slice]:
    """Slices of a large array, so that what is computed from each takes little memory.

    :param rows: where the last one ends
    :param width: numbers in a row
    :param first: where the first one begins
    """
    step = max(1, _PIECE // max(1, width))
    return (slice(start, min(start + step, rows)) for start in range(first, rows, step))


class Apart:
    """Behaves like a dictionary from places to values, and is read by arrays of places.

    :param n: places
    :param shape: of a value
    :param dtype: of its numbers
    """

    def __init__(self, n: int, shape: tuple[int, ...], dtype: Any) -> None:
        #: where the value of each place is; 0: it has none
        self._slots = np.zeros(n, np.int32)
        self._values = np.zeros((1, *shape), dtype)
        self._used, self._free = 1, list[int]()

    def __len__(self) -> int:
        return self._used - 1 - len(self._free)

    @property
    def places(self) -> IntArray:
        """That have a value, in order."""
        return np.flatnonzero(self._slots)

    def has(self, places: IntArray) -> BoolArray:
        """Which of them have a value."""
        return self._slots[places] > 0

    def __getitem__(self, places: Any) -> NDArray[Any]:
        """Their values; all must have one."""
        values: NDArray[Any] = self._values[self._slots[places]]
        return values

    def __setitem__(self, place: int, value: Any) -> None:
        if not self._slots[place]:
            self._slots[place] = self._free.pop() if self._free else self._used
            self._used = max(self._used, int(self._slots[place]) + 1)
        if self._used > len(self._values):
            room = np.zeros((self._used + self._used // 4, *self._values.shape[1:]), self._values.dtype)
            room[: len(self._values)] = self._values
            self._values = room
        self._values[self._slots[place]] = value

    def discard(self, place: int) -> None:
        """Forget a value, if there is one."""
        if slot := int(self._slots[place]):
            self._slots[place] = 0
            self._free.append(slot)

    def emptied(self) -> Apart:
        """Another one of the same kind, without values."""
        return Apart(len(self._slots), self._values.shape[1:], self._values.dtype)

    def fill(self, places: IntArray, values: NDArray[Any], chosen: IntArray) -> None:
        """Take many values at once; there must be none yet.

        :param places: each once
        :param values: many
        :param chosen: which of them the places have
        """
        self._used = len(places) + 1
        self._slots[places] = np.arange(1, self._used, dtype=np.int32)
        self._values = np.zeros((self._used, *self._values.shape[1:]), self._values.dtype)
        np.take(values, chosen, axis=0, out=self._values[1:], mode="clip")  # which copies once
