"""Stacks of frames in a replay memory, which keeps each frame by itself: they are gathered when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.agents.apart import Apart, pieces
from bdpi.agents.following import Flat
from bdpi.learner.interface import IntArray

#: Of a transition whose episode began earlier than the memory goes back: the frames before it are kept apart.
_APART = -1


class Links:
    """Which transition of a memory came before each one in its episode.

    Transitions are counted through all environments of a row, and through all rows. Robots may take turns: each
    transition is linked to the one before it of the same robot. Of a transition that is overwritten, the one after it
    keeps the frames.

    :param n_rows: of the memory, a ring
    :param n_envs: transitions in a row
    :param n_stack: frames in a stack
    :param frame: an example
    """

    def __init__(self, n_rows: int, n_envs: int, n_stack: int, frame: NDArray[Any]) -> None:
        self.n_stack, self._n_envs, self._ring = n_stack, n_envs, n_rows * n_envs
        #: how many transitions before, (rows, n_envs); 0: its episode begins there
        self.back = np.zeros((n_rows, n_envs), dtype=np.int64)
        #: the frames before each transition, where the memory has overwritten them
        self._apart = Apart(self._ring, (n_stack - 1, *frame.shape), frame.dtype)
        #: the last transition of each environment, by its column in the memory and its number; of demonstrations, too
        self._newest: dict[tuple[int, int, bool], int] = {}
        #: one more than the transition after each; 0: there is none
        self._after = np.zeros(self._ring, np.int64)

    def reset(self) -> None:
        """The ring is empty."""
        self.back.reshape(-1)[: self._ring] = 0
        self._after, self._apart, self._newest = np.zeros(self._ring, np.int64), self._apart.emptied(), {}

    def free(self, row: int, frames: NDArray[Any]) -> None:
        """Before a row is overwritten: keep what the transitions after it need of it.

        :param frames: observations of all transitions
        """
        index = np.arange(row * self._n_envs, (row + 1) * self._n_envs)
        stacks = self.gather(frames, index)
        for stack, gone in zip(stacks, index.tolist(), strict=True):
            self._apart.discard(gone)
            if (after := int(self._after[gone]) - 1) >= 0:
                self._apart[after], self.back.reshape(-1)[after] = stack[1:], _APART
        self._after[index] = 0
        self._newest = {key: newest for key, newest in self._newest.items() if newest // self._n_envs != row}

    def add(self, row: int, environments: Sequence[int], goes_on: Callable[[int, int], bool]) -> None:
        """Link a row that was written.

        :param environments: numbers of those that the transitions are of
        :param goes_on: whether the second of two transitions goes on where the first one ended
        """
        for column, environment in enumerate(environments):
            new = row * self._n_envs + column
            key = column, environment, new < self._ring
            before = self._newest.get(key)
            self.back[row, column] = 0
            if before is not None and goes_on(before, new):
                self.back[row, column] = new - before + (self._ring if before > new else 0)
                if new < self._ring:
                    self._after[before] = new + 1
            self._newest[key] = new

    def gather(self, frames: NDArray[Any], index: IntArray) -> NDArray[Any]:
        """The stacks of some transitions, (n, n_stack, ...), oldest frame first.

        :param frames: observations of all transitions
        """
        back, where, now = self.back.reshape(-1), np.empty((len(index), self.n_stack), np.int64), index
        for position in reversed(range(self.n_stack)):
            where[:, position] = now
            now = now - np.maximum(back[now], 0)
            now = np.where(now < 0, now + self._ring, now)
        stacks: NDArray[Any] = frames[where]
        rows = np.flatnonzero(back[where[:, 0]] == _APART)
        oldest = where[rows, 0]
        missing = np.count_nonzero(where[rows] == oldest[:, None], axis=1) - 1
        for position in range(self.n_stack - 1 if len(rows) else 0):
            lack = missing > position
            kept = self.n_stack - 1 - missing[lack] + position
            stacks[rows[lack], position] = self._apart[oldest[lack]][np.arange(len(kept)), kept]
        return stacks

    def kept_apart(self) -> dict[str, NDArray[Any]]:
        """What a file needs beside ``back``; empty before the ring is full."""
        places = self._apart.places
        return {"apart_at": places, "apart": self._apart[places]} if len(places) else {}

    def check(self, back: IntArray, is_full: bool, apart: dict[str, NDArray[Any]], frame: Any, where: str) -> None:
        """Whether a file's links lead to transitions that it has.

        :param back: of the transitions held
        :param apart: see :meth:`kept_apart`
        :param frame: an observation of this memory
        :param where: they come from, for messages
        """
        flat = back.reshape(-1)
        at, held = (apart.get(name, np.zeros(0, np.int64)) for name in ("apart_at", "apart"))
        shape = (at.size, self.n_stack - 1, *frame.shape)
        fits = not apart or ((held.shape, held.dtype) == (shape, frame.dtype) and at.dtype == np.int64)
        fits = fits and all(np.isfinite(held[piece]).all() for piece in pieces(len(held), frame.size * self.n_stack))
        fits = fits and np.array_equal(np.sort(at), np.flatnonzero(flat == _APART))
        for piece in pieces(flat.size, 1) if fits else ():
            part, most = flat[piece], self._ring - 1 if is_full else np.arange(piece.start, piece.stop)
            fits = fits and bool(((part >= _APART) & (part <= most) & ((part < 0) | (part % self._n_envs == 0))).all())
        if not fits:
            raise ValueError(f"{where} is damaged: its links lead to transitions that it does not have")

    def restore(self, rows: int, position: int, apart: dict[str, NDArray[Any]]) -> None:
        """Go on from a file whose ``back`` is there already.

        :param rows: that are held
        :param position: the row that comes next
        """
        self._after, self._apart = np.zeros(self._ring, np.int64), self._apart.emptied()
        back = self.back.reshape(-1)
        for piece in pieces(rows * self._n_envs, 1):
            linked = piece.start + np.flatnonzero(back[piece] > 0)
            self._after[(linked - back[linked]) % self._ring] = linked + 1
        if apart:
            self._apart.fill(apart["apart_at"], apart["apart"], np.arange(len(apart["apart"])))
        newest, columns = (position or rows) - 1, range(self._n_envs if rows else 0)
        self._newest = {(column, column, True): newest * self._n_envs + column for column in columns}


class FrameStacks:
    """In the place of an array of observations, or next observations: of each transition, a stack; indexing copies.

    :param links: of the memory
    :param seen: its observations, one after the other
    :param following: its next observations, whose stacks these are then
    """

    def __init__(self, links: Links, seen: NDArray[Any], following: NDArray[Any] | Flat | None = None) -> None:
        self._links, self._seen, self._following = links, seen, following
        #: the newest frame of each
        self.frames = seen if following is None else following
        self.shape = (len(seen), links.n_stack * seen.shape[1], *seen.shape[2:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            index = np.arange(len(self))[index]
        index = np.asarray(index)
        stacks = self._links.gather(self._seen, index)
        if self._following is not None:
            stacks[:, :-1] = stacks[:, 1:]
            stacks[:, -1] = self._following[index]
        return stacks.reshape(len(index), *self.shape[1:])
