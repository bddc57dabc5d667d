"""The experience journal: every transition is in a file before the agent acts again.

A journal is an SQLite database in WAL mode, one row per transition. A crash of the program loses nothing; with
``durable=True`` neither does a power failure, at the price of waiting for the disk.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdpi.agents.checks import check_finite, check_in_space
from bdpi.agents.journal_database import JournalDatabase, JournalError
from bdpi.envs.descriptions import describe, difference
from bdpi.storage.wal import Checkpoints

__all__ = ["LARGEST_REWARD", "Journal", "JournalError", "Transition"]

_CHUNK, _CHUNK_BYTES = 1000, 32 << 20  # rows, and bytes of their observations
_LARGEST_NUMBER = 1 << 62  # of a transition: SQLite continues the largest of all with random ones
#: Rewards are learned from in single precision.
LARGEST_REWARD = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Transition:
    """One transition.

    :param observation: before the action
    :param action: that was executed, in the environment's numbers
    :param reward: for it
    :param next_observation: after it
    :param terminated: the task is over
    :param truncated: the episode was ended, but could have gone on
    :param discount: of this transition; None: the agent's
    :param mask: which actions were allowed; None: all
    :param next_mask: which actions are allowed afterwards
    :param environment: number of the environment, where an agent learns in several at once
    """

    observation: Any
    action: int
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    discount: float | None = None
    mask: NDArray[np.bool_] | None = None
    next_mask: NDArray[np.bool_] | None = None
    environment: int = 0


class Journal:
    """A file of transitions.

    Any number of them can be open at the same time, to read. Only one writes: an agent that has it, or else the
    first that appends, until it is closed.

    While it is open, nothing but a journal may open the file in the same process, not even to copy it: closing a file
    gives back all locks of its process, and then another program tidies away what is still being written.

    :param path: where it is, or is to be
    :param observation_space: of the transitions; None: what the file says
    :param action_space: likewise
    :param durable: wait for the disk after each transition
    :param read_only: nothing is appended. The file may be where nothing can be written, and is left as it is.
    :param new_id: of a journal that does not exist yet; empty: one that no other has
    :raises JournalError: for a damaged or foreign file, or one of another environment
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        *,
        durable: bool = False,
        read_only: bool = False,
        new_id: str = "",
    ) -> None:
        self.path = Path(path)
        may_be_new = not read_only and observation_space is not None and action_space is not None
        if not may_be_new and (not self.path.exists() or self.path.stat().st_size == 0):
            raise JournalError(f"there is no journal {self.path}")
        self._file = JournalDatabase(self.path, read_only)
        try:
            with self._file.explained("opened"):
                is_new = self._file.is_empty()
                if is_new and not may_be_new:
                    raise JournalError(f"there is no journal {self.path}: it was never finished")
                self._open(is_new, observation_space, action_space, durable, new_id)
        except BaseException:
            self._file.close()
            raise

    def _open(
        self,
        is_new: bool,
        observation_space: spaces.Space[Any] | None,
        action_space: spaces.Space[Any] | None,
        durable: bool,
        new_id: str,
    ) -> None:
        file = self._file
        if not is_new:
            file.check_identity()
        file.run("PRAGMA trusted_schema = OFF")
        if not file.read_only:
            file.run("PRAGMA journal_mode = WAL")
            file.run(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        if is_new:
            assert observation_space is not None
            assert action_space is not None
            file.create(new_id, observation_space=observation_space, action_space=action_space)
            file.check_identity()
        self.observation_space, self.action_space = (file.space(name) for name in ("observation_space", "action_space"))
        self.check_spaces(observation_space, action_space)
        if not isinstance(self.action_space, spaces.Discrete):
            raise JournalError(f"{self.path}: its action space, {self.action_space}, is not Discrete")
        self._parts = _layout(self.observation_space)
        self._size = sum(part.nbytes for part in self._parts)
        first, last = file.run("SELECT COALESCE(MIN(id), 1), COALESCE(MAX(id), 0) FROM transitions")[0]
        if not (isinstance(first, int) and isinstance(last, int) and first > 0 and last < _LARGEST_NUMBER):
            raise JournalError(f"{self.path} is damaged: its transitions have the numbers {first} to {last}")
        self._before = last - file.changes
        #: tells it from other journals
        self.id = file.about("id") or ""
        #: lets others write; None: they may
        self._release: weakref.finalize[..., Journal] | None = None

    def check_spaces(self, observation_space: spaces.Space[Any] | None, action_space: spaces.Space[Any] | None) -> None:
        """:raises JournalError: when the journal is of another environment; None: it does not matter"""
        pairs = {"observation_space": observation_space, "action_space": action_space}
        for name, wanted in pairs.items():
            differs = None if wanted is None else difference(describe(getattr(self, name)), describe(wanted))
            if differs:
                raise JournalError(
                    f"{self.path} is the journal of another environment: {name}: {differs}. Choose another file."
                )

    # -- writing ------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Be the only one who writes, until the journal is closed; nothing happens to one that is only read.

        :raises JournalError: when it is being written, in this program or in another one
        """
        if self._release is None and not self._file.read_only:
            handle = self._file.lock()
            if handle is not None:
                self._release = weakref.finalize(self, os.close, handle)

    def append(self, *steps: Transition) -> int:
        """Write a transition, or several, all or none; they are in the file when this returns. Returns the number of
        the last one, from 1 on.

        :raises JournalError: when they cannot be written, for instance to a full disk. What was written before stays.
        """
        rows = [self._row(step) for step in steps]
        self.claim()
        self._file.check_place()
        with self._file.explained("written"):
            before = self._file.changes
            try:
                last = self._file.insert(rows)
            except sqlite3.Error:
                self._before -= self._file.changes - before  # some versions of SQLite count what they have undone
                raise
        if last != self.last:
            raise JournalError(f"another program writes {self.path}, too: give each robot a journal of its own")
        if self._file.changes - before != len(rows):
            raise JournalError(f"{self.path} has stored {self._file.changes - before} of {len(rows)} transitions")
        return last

    def checkpoints(self) -> Checkpoints:
        """From now on, :meth:`append` does not wait for the disk now and then (without ``durable``). What this returns
        does: it is to be called every second or so, in a thread of its own."""
        return self._file.checkpoints()

    def _row(self, step: Transition) -> tuple[Any, ...]:
        if not abs(float(step.reward)) <= LARGEST_REWARD:
            raise ValueError(f"the reward must be finite, also in single precision, got {step.reward!r}")
        return (
            self._encode(step.observation),
            int(step.action),
            float(step.reward),
            None if step.discount is None else float(step.discount),
            self._encode(step.next_observation),
            int(step.terminated),
            int(step.truncated),
            None if step.mask is None else np.asarray(step.mask, bool).tobytes(),
            None if step.next_mask is None else np.asarray(step.next_mask, bool).tobytes(),
            int(step.environment),
        )

    def _encode(self, observation: Any) -> bytes:
        values = [observation]
        if isinstance(self.observation_space, spaces.Dict):
            values = [observation[key] for key in self.observation_space.spaces]  # in the order of the space
        parts = [np.asarray(value, part.dtype) for value, part in zip(values, self._parts, strict=True)]
        for value, part in zip(parts, self._parts, strict=True):
            if value.shape != part.shape:
                raise ValueError(f"an observation of shape {value.shape}, where {part.shape} belongs")
        return b"".join(value.tobytes() for value in parts)

    # -- reading ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of transitions."""
        with self._file.explained("read"):
            return int(self._file.run("SELECT COUNT(*) FROM transitions")[0][0])

    @property
    def last(self) -> int:
        """Number of the last transition, also where its writer was interrupted; 0: there is none."""
        with self._file.explained("read"):
            return self._before + self._file.changes

    def steps(self, after: int = 0) -> Iterator[Transition]:
        """Transitions in their order.

        :param after: only those with larger numbers
        :raises JournalError: at a transition that is damaged
        """
        assert isinstance(self.action_space, spaces.Discrete)
        sizes = dict.fromkeys(("observation", "next_observation"), self._size)
        sizes |= dict.fromkeys(("mask", "next_mask"), int(self.action_space.n))
        most = max(1, min(_CHUNK, _CHUNK_BYTES // max(1, 2 * self._size)))
        read = 0
        while True:
            with self._file.explained("read"):
                rows = self._file.rows(after, most, sizes)
            if not rows:
                return
            after, read = rows[-1][0], read + 2 * self._size * len(rows)
            if read > self._file.size:
                raise JournalError(f"{self.path} is damaged: transitions share what can only be of one")
            for row in rows:
                yield self._decode(row)

    def _decode(self, row: Sequence[Any]) -> Transition:
        number, seen, action, reward, discount, next_seen, terminated, truncated, mask, next_mask, environment = row
        space = self.action_space
        assert isinstance(space, spaces.Discrete)
        sound = (
            all(isinstance(blob, bytes) and len(blob) == self._size for blob in (seen, next_seen))
            and isinstance(action, int)
            and space.start <= action < space.start + space.n
            and isinstance(reward, float)
            and abs(reward) <= LARGEST_REWARD
            and (discount is None or (isinstance(discount, float) and 0 <= discount <= 1))
            and all(flag in (0, 1) for flag in (terminated, truncated))
            and all(m is None or (isinstance(m, bytes) and len(m) == space.n) for m in (mask, next_mask))
            and isinstance(environment, int)
            and environment >= 0
        )
        if not sound:
            raise JournalError(f"{self.path} is damaged: transition {number} makes no sense")
        step = Transition(
            self._observation(seen),
            action,
            reward,
            self._observation(next_seen),
            bool(terminated),
            bool(truncated),
            discount,
            mask=_mask(mask),
            next_mask=_mask(next_mask),
            environment=environment,
        )
        for what, observation in (("observation", step.observation), ("next observation", step.next_observation)):
            try:
                check_finite(what, observation, number, 0)
                check_in_space(what, observation, self.observation_space, number, 0)
            except ValueError as error:
                raise JournalError(f"{self.path} is damaged: transition {number}: {error}") from error
        return step

    def _observation(self, blob: bytes) -> Any:
        values, offset = [], 0
        for part in self._parts:
            count = int(np.prod(part.shape, dtype=np.int64))
            values.append(np.frombuffer(blob, part.dtype, count, offset).reshape(part.shape).copy())
            offset += part.nbytes
        if isinstance(self.observation_space, spaces.Dict):
            return dict(zip(self.observation_space.spaces, values, strict=True))
        return values[0]

    # -- the rest -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Everything is written already; this only gives the file back."""
        self._file.close()
        if self._release is not None:
            self._release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mask(blob: bytes | None) -> NDArray[np.bool_] | None:
    return None if blob is None else np.frombuffer(blob, np.uint8) != 0


@dataclass(frozen=True)
class _Part:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def _layout(space: spaces.Space[Any]) -> list[_Part]:
    """The arrays that an observation is made of."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    layout = []
    for part in parts:
        assert part.dtype is not None
        layout.append(_Part(part.shape or (), np.dtype(part.dtype)))
    return layout
