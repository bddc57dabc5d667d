"""Next observations that are not stored twice: most of them are the observations of the transitions that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.agents.apart import Apart
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
        self._apart = Apart(self.shape[0] * self.shape[1], self.shape[2:], self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def n_apart(self) -> int:
        """How many are stored."""
        return len(self._apart)

    def __setitem__(self, row: int, values: NDArray[Any]) -> None:
        for env, value in enumerate(values):
            self._apart[row * self.shape[1] + env] = value

    def go_on(self, row: int, begins: BoolArray) -> None:
        """Forget what a row was given, where the row after it goes on from there.

        :param begins: of the row after it: where it does not
        """
        row %= self.shape[0]  # before the first one of the ring is the last one
        for env in np.flatnonzero(~begins).tolist():
            self._apart.discard(row * self.shape[1] + env)

    def take_over(self, values: NDArray[Any], begins: BoolArray) -> None:
        """Keep apart what a whole memory needs; there must be nothing yet.

        :param values: the next observations of the rows that are held
        :param begins: of all rows: where the one before does not go on
        """
        is_apart = np.roll(begins, -1, axis=0)[: len(values)]
        places = np.flatnonzero(is_apart)
        self._apart.fill(places, values.reshape(-1, *self.shape[2:]), places)

    def __getitem__(self, rows: int | slice) -> NDArray[Any]:
        """As of the array; a copy."""
        n, n_envs = self.shape[:2]
        return self.at(_numbers(rows, n)[..., None] * n_envs + np.arange(n_envs))

    def at(self, index: IntArray) -> NDArray[Any]:
        """Those of transitions that are counted through all environments of a row, and through all rows."""
        row, env = index // self.shape[1], index % self.shape[1]
        found = self._observations[(row + 1) % self.shape[0], env]
        is_apart = self._apart.has(index)
        found[is_apart] = self._apart[index[is_apart]]
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
