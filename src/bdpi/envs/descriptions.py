"""Spaces as JSON, for files: written without pickle, read without running anything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

_MOST_NUMBERS = 10_000_000  # of an observation; a damaged file may ask for more than there is memory


def describe(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as JSON.

    :raises ValueError: for kinds of spaces that agents do not take
    """
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: describe(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": {str(index): describe(part) for index, part in enumerate(space.spaces)}}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Box):
        bounds = {"low": _short(space.low), "high": _short(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    raise ValueError(f"{space} cannot be written to a file")


def _short(bounds: NDArray[Any]) -> Any:
    """One number where all are the same; infinite ones as text, which JSON has no numbers for."""
    flat = bounds.reshape(-1)
    all_same = flat.size > 0 and bool((flat == flat[0]).all())
    values = [value if math.isfinite(value) else str(value) for value in flat[: 1 if all_same else None].tolist()]
    return values[0] if all_same else values


def space_of(description: Any, most: int = _MOST_NUMBERS) -> spaces.Space[Any]:
    """What :func:`describe` was given.

    :param most: numbers in an observation
    :raises ValueError: when it is not such a description
    """
    try:
        if _count(description) > min(most, _MOST_NUMBERS):
            raise ValueError(f"an observation of more than {min(most, _MOST_NUMBERS)} numbers is too large")
        return _space_of(description)
    except (KeyError, TypeError, AttributeError, OverflowError, AssertionError, RecursionError) as error:
        raise ValueError(f"not the description of a space: {str(description)[:200]}") from error


def _count(description: dict[str, Any]) -> int:
    """Numbers in an observation, before any array is made for them."""
    if description["type"] in ("Dict", "Tuple"):
        return sum(map(_count, description["spaces"].values()))
    sizes = description["nvec"] if description["type"] == "MultiDiscrete" else description.get("shape", [])
    return len(sizes) if description["type"] == "MultiDiscrete" else math.prod(map(_size, sizes))


def _space_of(description: dict[str, Any]) -> spaces.Space[Any]:
    kind = description["type"]
    if kind == "Dict":
        return spaces.Dict({str(key): _space_of(part) for key, part in description["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space_of(part) for part in description["spaces"].values()])
    if kind == "Discrete":
        return spaces.Discrete(_size(description["n"]), start=int(description["start"]))
    if kind == "MultiDiscrete":
        nvec = np.array([_size(n) for n in description["nvec"]])
        return spaces.MultiDiscrete(nvec, start=np.array(description["start"], dtype=np.int64))
    shape = tuple(_size(n) for n in description["shape"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else list(shape))
    if kind == "Box":
        dtype = np.dtype(str(description["dtype"]))
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise ValueError(f"a Box of {dtype} is not supported")
        low, high = (_bounds(description[name], shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    raise ValueError(f"unknown space {kind!r}")


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST_NUMBERS:
        raise ValueError(f"not a size: {value!r}")
    return value


def _bounds(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    number = float if dtype.kind == "f" else int  # whole numbers up to 2**64 are not all floats
    values = np.array([number(value) for value in (given if isinstance(given, list) else [given])], dtype)
    return np.broadcast_to(values if values.size == 1 else values.reshape(shape), shape).copy()


def difference(there: dict[str, Any], here: dict[str, Any]) -> str | None:
    """In which way two descriptions differ; None: they do not."""
    if there.get("type") != here.get("type"):
        return f"{there.get('type')} there, {here.get('type')} here"
    for key in sorted(there.keys() | here.keys()):
        if there.get(key) == here.get(key):
            continue
        if key == "spaces":
            ours, theirs = here[key], there[key]
            if ours.keys() != theirs.keys():
                return f"keys {', '.join(theirs)} there, {', '.join(ours)} here"
            parts = ((name, difference(theirs[name], ours[name])) for name in ours)
            return ", ".join(f"{name}: {text}" for name, text in parts if text)
        return f"{key} {there.get(key)} there, {here.get(key)} here"
    return None
