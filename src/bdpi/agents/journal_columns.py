"""Transitions as arrays, a column for each part of them, checked before they are used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdpi.agents.journal import LARGEST_REWARD, Journal, JournalError, Transition
from bdpi.envs.descriptions import describe, space_of
from bdpi.learner.interface import BoolArray
from bdpi.storage.reading import parse_json

FORMAT, VERSION = "bdpi journal", 2
MASKS = ("mask", "next_mask")  # a step's, and in the plural those of a column
_LONGEST_ID = 100  # characters
_MOST_ROWS, _MOST_BYTES = 10_000, 32 << 20  # of a chunk


@dataclass(frozen=True)
class Column:
    """What an array holds of each transition.

    :param shape: of one value
    :param dtype: of its numbers
    :param space: that it is in; None: it is no observation
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: spaces.Space[Any] | None = None

    @property
    def size(self) -> int:
        """Numbers in one value."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Chunk:
    """Some transitions.

    :param arrays: by the names of their columns; rows are transitions
    :param given: of ``masks`` and ``next_masks``: which transitions have one
    """

    arrays: dict[str, NDArray[Any]]
    given: dict[str, BoolArray]

    def __len__(self) -> int:
        return len(self.arrays["actions"])


class Columns:
    """The arrays that transitions are made of.

    :param observation_space: theirs
    :param action_space: theirs
    :param journal_id: of the journal that they are from; empty: unknown
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], journal_id: str = ""
    ) -> None:
        if not isinstance(action_space, spaces.Discrete):
            raise JournalError(f"the action space {action_space} is not Discrete, and journals have no others")
        self.observation_space, self.action_space = observation_space, action_space
        self.journal_id = journal_id
        self._is_dict = isinstance(observation_space, spaces.Dict)
        parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        #: the keys of a Dict, or one that is empty
        self._keys = list(parts)
        self.named: dict[str, Column] = {}
        for kind in ("observations", "next_observations"):
            for key, part in parts.items():
                self.named[self._name(kind, key)] = Column(part.shape or (), np.dtype(part.dtype), part)
        numbers = {"actions": np.int64, "rewards": np.float64, "terminated": np.bool_, "truncated": np.bool_}
        for name, dtype in {**numbers, "discounts": np.float64, "environments": np.int64}.items():
            self.named[name] = Column((), np.dtype(dtype))
        for name in MASKS:
            self.named[f"{name}s"] = Column((int(action_space.n),), np.dtype(bool))
        #: of a transition
        self.row_bytes = sum(column.size * column.dtype.itemsize for column in self.named.values())
        #: transitions that are handled at a time
        self.rows = max(1, min(_MOST_ROWS, _MOST_BYTES // self.row_bytes))

    def _name(self, kind: str, key: str) -> str:
        return f"{kind}.{key}" if self._is_dict else kind

    # -- what the file is ---------------------------------------------------------------------------------------

    def as_json(self) -> str:
        """Format, spaces, and which journal it is."""
        described = {"observation_space": describe(self.observation_space), "action_space": describe(self.action_space)}
        return json.dumps({"format": FORMAT, "version": VERSION, **described, "id": self.journal_id})

    @classmethod
    def from_json(cls, text: str | bytes) -> Columns:
        """What :meth:`as_json` was called on.

        :raises ValueError: when it is something else
        """
        about = parse_json(text)
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError("it does not say that it holds a journal")
        if about.get("version") != VERSION:
            raise ValueError(f"it has version {about.get('version')!r} and {VERSION} is known: use a newer bdpi")
        journal_id = about.get("id", "")  # files of other programs may have none
        if not isinstance(journal_id, str) or len(journal_id) > _LONGEST_ID:
            raise ValueError(f"the id of its journal is {str(journal_id)[:_LONGEST_ID]!r}, which makes no sense")
        return cls(space_of(about.get("observation_space")), space_of(about.get("action_space")), journal_id)

    # -- steps and chunks ---------------------------------------------------------------------------------------

    def chunks(self, journal: Journal, n: int) -> Iterator[Chunk]:
        """The first ``n`` transitions of a journal."""
        steps = itertools.islice(journal.steps(), n)
        while some := list(itertools.islice(steps, self.rows)):
            yield self._chunk(some)

    def _chunk(self, steps: list[Transition]) -> Chunk:
        everything = np.ones(int(self.action_space.n), dtype=bool)
        values: dict[str, list[Any]] = {
            "actions": [step.action for step in steps],
            "rewards": [step.reward for step in steps],
            "terminated": [step.terminated for step in steps],
            "truncated": [step.truncated for step in steps],
            "discounts": [np.nan if step.discount is None else step.discount for step in steps],
            "environments": [step.environment for step in steps],
        }
        for key in self._keys:
            before, after = ([getattr(step, name) for step in steps] for name in ("observation", "next_observation"))
            for kind, seen in (("observations", before), ("next_observations", after)):
                values[self._name(kind, key)] = [value[key] for value in seen] if self._is_dict else seen
        given: dict[str, BoolArray] = {}
        for name in MASKS:
            masks = [getattr(step, name) for step in steps]
            given[f"{name}s"] = np.array([mask is not None for mask in masks])
            values[f"{name}s"] = [everything if mask is None else mask for mask in masks]
        return Chunk({name: np.array(values[name], column.dtype) for name, column in self.named.items()}, given)

    def steps(self, chunk: Chunk) -> Iterator[Transition]:
        """The transitions of a chunk, one by one."""
        arrays, discounts = chunk.arrays, chunk.arrays["discounts"]
        for row in range(len(chunk)):
            mask, next_mask = (
                arrays[name][row] if chunk.given[name][row] else None for name in ("masks", "next_masks")
            )
            yield Transition(
                self._observation("observations", arrays, row),
                int(arrays["actions"][row]),
                float(arrays["rewards"][row]),
                self._observation("next_observations", arrays, row),
                bool(arrays["terminated"][row]),
                bool(arrays["truncated"][row]),
                None if np.isnan(discounts[row]) else float(discounts[row]),
                mask,
                next_mask,
                int(arrays["environments"][row]),
            )

    def _observation(self, kind: str, arrays: dict[str, NDArray[Any]], row: int) -> Any:
        if self._is_dict:
            return {key: arrays[f"{kind}.{key}"][row] for key in self._keys}
        return arrays[kind][row]

    # -- checks -------------------------------------------------------------------------------------------------

    def converted(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Values of a file as the numbers that belong there.

        :raises ValueError: when that would change them, or they have another shape
        """
        column = self.named[name]
        if not np.can_cast(values.dtype, column.dtype, "safe"):
            raise ValueError(f"{name} is {values.dtype}, where {column.dtype} belongs: convert it before")
        if values.shape[1:] != column.shape:
            raise ValueError(f"{name} has values of shape {values.shape[1:]}, where {column.shape} belongs")
        return values.astype(column.dtype, copy=False)

    def check(self, chunk: Chunk, before: int) -> None:
        """Whether the transitions make sense.

        :param before: how many transitions came before
        :raises ValueError: at the first that does not
        """
        first, n = int(self.action_space.start), int(self.action_space.n)
        for name, column in self.named.items():
            values = chunk.arrays[name]
            if name == "actions":
                wrong, wanted = (values < first) | (values >= first + n), f"not an action ({first}..{first + n - 1})"
            elif name == "discounts":
                wrong, wanted = ~(np.isnan(values) | ((values >= 0) & (values <= 1))), "not from 0 to 1"
            elif name == "rewards":
                wrong, wanted = ~(np.abs(values) <= LARGEST_REWARD), "not finite in single precision"
            elif name == "environments":
                wrong, wanted = values < 0, "not a number from 0 on"
            elif column.dtype.kind == "f":
                wrong, wanted = ~np.isfinite(values), "not finite"
            elif isinstance(column.space, spaces.Discrete | spaces.MultiDiscrete):
                start, count = _range(column.space)
                wrong, wanted = (values < start) | (values >= start + count), f"outside its space {column.space}"
            else:
                continue
            rows = wrong.reshape(len(values), -1).any(axis=1)
            if rows.any():
                row = int(rows.argmax())
                value = values[row][wrong[row]].flat[0] if column.shape else values[row]
                raise ValueError(f"{name} of transition {before + row + 1} is {value}, {wanted}")


def _range(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[Any, Any]:
    return (space.start, space.n) if isinstance(space, spaces.Discrete) else (space.start, space.nvec)
