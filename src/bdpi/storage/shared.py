"""Arrays in memory that several processes share."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from math import prod
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: shape and type of each array
Parts = Mapping[str, tuple[tuple[int, ...], DTypeLike]]
_ALIGNMENT = 16  # bytes


class SharedArrays:
    """Arrays that several processes see.

    :param parts: shape and type of each
    :param name: of arrays that exist; None: make them
    """

    def __init__(self, parts: Parts, name: str | None = None) -> None:
        sizes = {key: prod(shape) * np.dtype(dtype).itemsize for key, (shape, dtype) in parts.items()}
        total = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes.values())
        self._memory = SharedMemory(name, create=name is None, size=total)
        self._is_owner = name is None
        self.name = self._memory.name
        self.arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for key, (shape, dtype) in parts.items():
            self.arrays[key] = np.ndarray(shape, dtype, self._memory.buf, start)
            start += -(-sizes[key] // _ALIGNMENT) * _ALIGNMENT
        if self._is_owner:
            for array in self.arrays.values():
                array[...] = 0

    def close(self) -> None:
        """Give the memory back; the arrays must no longer be used."""
        self.arrays.clear()
        with contextlib.suppress(BufferError):  # there is still a view; the memory goes with the process
            self._memory.close()
        if self._is_owner:
            self._memory.unlink()
