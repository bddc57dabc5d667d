"""Next observations that are not stored twice: most of them are the observations of the transitions that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.interface import BoolArray, IntArray


class Following:
    """In the place of an array of next observations, (rows, n_envs, ...).

    What a row is given is kept apart until the next row shows that it goes on from there; so is the last observation of
    each episode.

    :param observations: of the same memory, a ring
    """

    def __init__(self, observations: NDArray[Any]) -> None:
        self._observations = observations
        self.shape, self.dtype = observations.shape, observations.dtype
        self._apart: dict[tuple[int, int], NDArray[Any]] = {}
        self._is_apart = np.zeros(self.shape[:2], dtype=bool)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def n_apart(self) -> int:
        """How many are stored."""
        return len(self._apart)

    def __setitem__(self, row: int, values: NDArray[Any]) -> None:
        self._is_apart[row] = True
        self._apart |= {(row, env): np.array(value, self.dtype) for env, value in enumerate(values)}

    def go_on(self, row: int, begins: BoolArray) -> None:
        """Forget what a row was given, where the row after it goes on from there.

        :param begins: of the row after it: where it does not
        """
        row %= self.shape[0]  # before the first one of the ring is the last one
        for env in np.flatnonzero(~begins & self._is_apart[row]).tolist():
            del self._apart[row, env]
            self._is_apart[row, env] = False

    def __getitem__(self, rows: int | slice) -> NDArray[Any]:
        """As of the array; a copy."""
        n, n_envs = self.shape[:2]
        return self.at(_numbers(rows, n)[..., None] * n_envs + np.arange(n_envs))

    def at(self, index: IntArray) -> NDArray[Any]:
        """Those of transitions that are counted through all environments of a row, and through all rows."""
        row, env = index // self.shape[1], index % self.shape[1]
        found = self._observations[(row + 1) % self.shape[0], env]
        for where in zip(*np.nonzero(self._is_apart[row, env]), strict=True):
            found[where] = self._apart[int(row[where]), int(env[where])]
        return found


class Flat:
    """All next observations of a memory, one after the other; indexing copies."""

    def __init__(self, following: Following, n: int | None = None) -> None:
        self._following, self._n = following, following.shape[0] * following.shape[1] if n is None else n
        self.shape = (self._n, *following.shape[2:])

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self._following.at(_numbers(index, self._n))


def _numbers(index: Any, n: int) -> IntArray:
    """What a slice or an index of an array of ``n`` is about, without a list of all of it."""
    return np.arange(*index.indices(n)) if isinstance(index, slice) else np.asarray(index) % n
