"""Replay memories in files: which arrays a file has to have, and whether those that it has fit into a memory."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdpi.agents.apart import pieces
from bdpi.agents.encoding import Arrays
from bdpi.agents.files import File, refuse_pickle, with_ending
from bdpi.agents.following import Following
from bdpi.storage.atomic import write_atomically
from bdpi.storage.reading import Damaged, Headers, read_arrays

if TYPE_CHECKING:
    from bdpi.agents.buffers import TransitionMemory


@dataclass(frozen=True)
class Contents:
    """What a memory is to hold; it fits.

    :param whole: all arrays of the memory: the rows of the ring, and behind them those of demonstrations
    :param rows: that are held, of the ring
    :param position: the row of the ring that comes next
    :param is_full: all rows of the ring are held
    :param n_shown: rows of demonstrations
    :param apart: see :meth:`bdpi.agents.stacks.Links.kept_apart`
    """

    whole: Arrays
    rows: int
    position: int
    is_full: bool
    n_shown: int
    apart: Arrays


def write(path: File, held: Arrays) -> None:
    """See :meth:`bdpi.agents.buffers.TransitionMemory.save_npz`."""

    def save(file: Any) -> None:
        np.savez_compressed(file, **held)  # type: ignore[arg-type]

    if isinstance(path, str | os.PathLike):
        path = with_ending(pathlib.Path(path), ".npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save)
    else:
        save(path)


def read(path: File, memory: TransitionMemory) -> Contents:
    """See :meth:`bdpi.agents.buffers.TransitionMemory.load_npz`."""
    where = "the file"
    if isinstance(path, str | os.PathLike):
        path = pathlib.Path(path)
        tried = path, with_ending(path, ".npz"), with_ending(path, ".pkl")  # the last is SB3's, and refused
        path = next((each for each in tried if each.exists()), tried[1])
        where = str(path)
    refuse_pickle(path)
    whole: Arrays = {}

    def unpacked(file: Any) -> Arrays:
        return read_arrays(file, lambda headers: _room(memory, headers, whole))

    try:
        if isinstance(path, pathlib.Path):
            with path.open("rb") as file:
                loaded = unpacked(file)
        else:
            loaded = unpacked(path)
    except Damaged as error:
        raise ValueError(f"{path} is not a replay memory, or it is damaged: {error}") from error
    return _checked(memory, loaded, whole, where)


def placed(memory: TransitionMemory, loaded: Arrays, where: str) -> Contents:
    """See :meth:`bdpi.agents.buffers.TransitionMemory.take_over`."""
    whole: Arrays = {}
    room = _room(memory, {name: (array.shape, array.dtype) for name, array in loaded.items()}, whole)
    for name, place in room.items():
        place[...] = loaded[name]
    return _checked(memory, {**loaded, **room}, whole, where)


def _own(memory: TransitionMemory, names: Container[str]) -> Arrays:
    """The arrays that a file should have; with masks, if it has some."""
    own = memory.arrays()
    if "masks" in names and "masks" not in own:
        assert isinstance(memory.action_space, spaces.Discrete)
        shape = (len(memory.actions), memory.n_envs, int(memory.action_space.n))
        own |= {name: np.zeros(shape, dtype=bool) for name in ("masks", "next_masks")}
    return own


def _room(memory: TransitionMemory, found: Headers, whole: Arrays) -> Arrays:
    """Places for the arrays of a file that fit, in those that the memory will have.

    :param whole: gets the latter: zeros, which take no memory before they are overwritten
    """
    room: Arrays = {}
    for name, array in _own(memory, found).items():
        length = {"": 0, "shown.": 0}
        for prefix in length:
            shape, dtype = found.get(prefix + name, ((), None))
            if shape[1:] == array.shape[1:] and dtype == array.dtype:
                length[prefix] = shape[0]
        n, n_shown = length.values()
        if n <= memory.buffer_size:
            whole[name] = np.zeros((memory.buffer_size + n_shown, *array.shape[1:]), array.dtype)
            both = {name: whole[name][:n], f"shown.{name}": whole[name][memory.buffer_size :]}
            room |= {key: place for key, place in both.items() if key in found and found[key][0] == place.shape}
    return room


def _checked(memory: TransitionMemory, loaded: Arrays, whole: Arrays, where: str) -> Contents:
    """:param whole: arrays of the memory, as :func:`_room` made them; they hold what of ``loaded`` fits
    :raises ValueError: for a file that is damaged, or of another memory
    """
    loaded = dict(loaded)
    position = loaded.pop("position", np.zeros(0))
    apart = {name: loaded.pop(name) for name in list(loaded) if name in ("apart", "apart_at")}
    shown = {name.removeprefix("shown."): loaded.pop(name) for name in list(loaded) if name.startswith("shown.")}
    own = _own(memory, loaded)
    if loaded.keys() != own.keys() or position.shape != (2,) or position.dtype.kind != "i":
        raise ValueError(f"{where} is not a replay memory of this kind of agent: it holds {sorted(loaded)}")
    saved_shape = loaded["actions"].shape
    if len(saved_shape) == 3 and saved_shape[1] != memory.n_envs:
        raise ValueError(
            f"{where} does not fit: its replay memory was saved with {saved_shape[1]} environments, and this agent "
            f"has {memory.n_envs}. Give it make_vec_env(..., n_envs={saved_shape[1]}); or go on without that memory: "
            "load the agent without env and save it again, without include_buffer."
        )
    pos, full = (int(value) for value in position)
    if not 0 <= pos < memory.buffer_size + (not full):
        raise ValueError(f"{where} does not fit: it ends at position {pos}, this memory has {memory.buffer_size} rows")
    if pos == memory.buffer_size:  # of a larger memory, where it was not full
        pos, full = 0, True
    rows = memory.buffer_size if full else pos
    if shown and isinstance(memory.next_observations, Following):
        raise ValueError(f"{where} does not fit: with optimize_memory_usage=True there are no demonstrations")
    if shown and shown.keys() != own.keys():
        raise ValueError(f"{where} is not a replay memory of this kind of agent: it shows {sorted(shown)}")
    n_shown = len(shown["actions"]) if shown else 0
    parts = [(loaded, rows, ""), *([(shown, n_shown, "the demonstrations' ")] if shown else [])]
    for given, length, whose in parts:
        for name, array in own.items():
            found = given[name]
            if found.shape != (length, *array.shape[1:]) or (given is loaded and rows > len(array)):
                raise ValueError(
                    f"{where} does not fit: {whose}{name} has shape {found.shape}, this memory {array.shape}"
                )
            if found.dtype != array.dtype:
                raise ValueError(f"{where} does not fit: {whose}{name} is {found.dtype}, this memory {array.dtype}")
            for piece in pieces(length, array[:1].size):
                if wrong := _wrong(memory, name, found[piece]):
                    raise ValueError(f"{where} is damaged: {whose}{name} holds {wrong}")
    if memory.links is not None:
        for given, is_full, kept in ((loaded, bool(full), apart), (shown, False, {})):
            if given:
                memory.links.check(given["back"], is_full, kept, memory.observations[0, 0], where)
    return Contents(whole, rows, pos, bool(full), n_shown, apart)


def _wrong(memory: TransitionMemory, name: str, values: NDArray[Any]) -> str:
    """What cannot be in the array of this name, if there is such: a number that is not finite, a share above 1, or an
    action or state that does not exist (both are counted from zero here)."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return "numbers that are not finite"
    if name in ("discounts", "dones", "timeouts"):
        wrong = (values < 0) | (values > 1)
        return f"{values[wrong][0]}, which is not from 0 to 1" if wrong.any() else ""
    kind, _, key = name.partition(".")
    if name != "actions" and kind not in ("observations", "next_observations"):
        return ""
    space: Any = memory.action_space if name == "actions" else memory.observation_space
    space = space.spaces[key] if key else space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        wrong = (values < 0) | (values >= count)
        return f"{values[wrong][0]}, which {space} has not" if wrong.any() else ""
    return ""
