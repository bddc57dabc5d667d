"""An agent's attributes as JSON and arrays, and back, by names of things that are known: reading never runs code.

What JSON does not have is an object with the key ``"is"``: ``{"is": "tuple", "items": [1, 2]}``.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from functools import cache
from typing import Any

import numpy as np
import stable_baselines3.common.torch_layers as sb3_layers
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn, optim

from bdpi.envs.descriptions import describe, space_of

Arrays = dict[str, NDArray[Any]]

_BIT_GENERATORS = {"PCG64": np.random.PCG64, "PCG64DXSM": np.random.PCG64DXSM, "MT19937": np.random.MT19937}
_LONGEST = 1_000_000  # items of a list
_SMALL_SPACE = 4_000_000  # numbers in an observation that the arrays of a file need not account for
#: Attributes that are spaces. No other value can be one: each takes its bounds in memory, which a file need not hold.
_SPACES = ("attributes.observation_space", "attributes.action_space")


class Foreign:
    """Something that a file cannot hold, and that the reader has to supply.

    :param what: it is, for people
    """

    def __init__(self, what: str) -> None:
        self.what = what


@cache
def known_classes() -> dict[str, type]:
    """Classes that files may name: PyTorch's layers and optimisers, feature extractors, and our policies."""
    from bdpi.agents import extractors, policies

    found: dict[str, type] = {}
    modules = [(module, nn.Module) for module in (nn, sb3_layers, policies, extractors)]
    for module, base in [*modules, (optim, optim.Optimizer)]:
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, base):
                found[f"{module.__name__}.{name}"] = value
    return found


def encode(value: Any, arrays: Arrays, name: str) -> Any:
    """JSON for a value; arrays in it are put into ``arrays``.

    :param name: of the value, from which names of arrays are made
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"is": "float", "value": str(value)}
    if isinstance(value, np.generic):
        return {"is": "scalar", "dtype": value.dtype.name, "value": encode(value.item(), arrays, name)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays[name] = value
        return {"is": "array", "name": name}
    if isinstance(value, list):
        return [encode(item, arrays, f"{name}.{index}") for index, item in enumerate(value)]
    if isinstance(value, TrainFreq):
        return {"is": "train_freq", "frequency": value.frequency, "unit": value.unit.value}
    if isinstance(value, tuple):
        return {"is": "tuple", "items": encode(list(value), arrays, name)}
    if isinstance(value, deque):
        return {"is": "deque", "items": encode(list(value), arrays, name), "most": value.maxlen}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and "is" not in value:
            return {key: encode(item, arrays, f"{name}.{key}") for key, item in value.items()}
        return {"is": "dict", "items": encode([list(pair) for pair in value.items()], arrays, name)}
    return _encode_object(value, arrays, name)


def _encode_object(value: Any, arrays: Arrays, name: str) -> Any:
    if isinstance(value, np.random.Generator) and name.count(".") < 2:  # an attribute itself
        return {"is": "generator", "state": encode(value.bit_generator.state, arrays, name)}
    if isinstance(value, spaces.Space) and name in _SPACES:
        return {"is": "space", "space": describe(value)}
    if isinstance(value, FloatSchedule):
        return encode(value.value_schedule, arrays, name)
    if isinstance(value, ConstantSchedule):
        return encode(value.val, arrays, name)
    if isinstance(value, LinearSchedule):
        return {"is": "linear", "start": value.start, "end": value.end, "fraction": value.end_fraction}
    if inspect.isclass(value):
        for known, cls in known_classes().items():
            if cls is value:
                return {"is": "class", "name": known}
    what = f"{value.__module__}.{value.__qualname__}" if inspect.isclass(value) else repr(value)
    return {"is": "foreign", "what": what[:200]}


def decode(value: Any, arrays: Arrays, name: str = "") -> Any:
    """What :func:`encode` was given; what a file cannot hold becomes :class:`Foreign`.

    :param name: of the value, as :func:`encode` had it
    :raises ValueError: when it makes no sense
    """
    try:
        if isinstance(value, dict) and value.get("is") == "space" and name in _SPACES:
            held = sum(array.nbytes for array in arrays.values()) // 4  # networks have a weight for each number
            return space_of(value["space"], max(held, _SMALL_SPACE))
        if isinstance(value, dict) and value.get("is") == "generator":  # no part of another value: each takes 0.1 ms
            return _generator(value, arrays)
        return _decode(value, arrays)
    except (KeyError, TypeError, AttributeError, OverflowError, IndexError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _decode(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, list):
        if len(value) > _LONGEST:
            raise ValueError(f"a list of {len(value)} items")
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("is")
    if kind is None:
        return {key: _decode(item, arrays) for key, item in value.items()}
    if not isinstance(kind, str) or kind not in _DECODERS:
        raise ValueError(f"unknown kind of value: {kind!r}")
    return _DECODERS[kind](value, arrays)


def _scalar(value: dict[str, Any], arrays: Arrays) -> Any:
    dtype = np.dtype(str(value["dtype"]))
    if dtype.kind not in "biuf":
        raise ValueError(f"a number of type {dtype}")
    return dtype.type(_decode(value["value"], arrays))


def _deque(value: dict[str, Any], arrays: Arrays) -> deque[Any]:
    most = value["most"]
    if most is not None and (not isinstance(most, int) or not 0 <= most <= _LONGEST):
        raise ValueError(f"a queue of {most!r} items")
    return deque(_decode(value["items"], arrays), maxlen=most)


def _generator(value: dict[str, Any], arrays: Arrays) -> np.random.Generator:
    state = _decode(value["state"], arrays)
    generator = np.random.Generator(_BIT_GENERATORS[state["bit_generator"]]())
    generator.bit_generator.state = state
    return generator


def _class(value: dict[str, Any], _: Arrays) -> type:
    classes = known_classes()
    if value["name"] not in classes:
        raise ValueError(f"unknown class {value['name']!r}")
    return classes[value["name"]]


_DECODERS: dict[str, Any] = {
    "float": lambda value, _: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[value["value"]],
    "scalar": _scalar,
    "array": lambda value, arrays: arrays[value["name"]],
    "tuple": lambda value, arrays: tuple(_decode(value["items"], arrays)),
    "deque": _deque,
    "dict": lambda value, arrays: {key: item for key, item in _decode(value["items"], arrays)},  # noqa: C416
    "train_freq": lambda value, _: TrainFreq(int(value["frequency"]), TrainFrequencyUnit(value["unit"])),
    "linear": lambda value, _: LinearSchedule(float(value["start"]), float(value["end"]), float(value["fraction"])),
    "class": _class,
    "foreign": lambda value, _: Foreign(str(value["what"])),
}
