"""Spaces of configurations: a list of values for each hyper-parameter, and how one of the combinations is drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bdpi.runs.errors import RunError

_MOST_CHOICES = 1_000
_ATTEMPTS = 1_000  # a rule that refuses so many configurations in a row leaves none


@dataclass(frozen=True)
class Configuration:
    """One point of a space.

    :param settings: a value for each hyper-parameter
    :param indices: for each hyper-parameter that was drawn, which of its values it is, counted from 0, and how many
        values it has
    """

    settings: dict[str, Any]
    indices: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Space:
    """All combinations of some values, except those that a rule excludes.

    :param values: of each hyper-parameter, in their order: neighbours in the list are neighbours in the space
    :param at_most: the first of two hyper-parameters must not be larger than the second
    :param same: hyper-parameters that are not drawn and always have the value of another one
    """

    values: Mapping[str, tuple[Any, ...]]
    at_most: Mapping[str, str] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, values: Any, at_most: Any, same: Any, where: str) -> Space:
        """A space from a study's table.

        :param where: for messages
        :raises RunError: when it makes no sense
        """
        if not isinstance(values, Mapping) or not values:
            raise RunError(f"the space of {where} must be a table of names and lists of values, not {values!r}")
        for name, choices in values.items():
            if not isinstance(name, str):
                raise RunError(f"the space of {where} has {name!r}, which is no name of a hyper-parameter")
            if not isinstance(choices, list) or not choices:
                raise RunError(
                    f"{name} in the space of {where} needs a list of values, such as [1, 2], not {choices!r}"
                )
            if len(choices) > _MOST_CHOICES:
                raise RunError(
                    f"{name} in the space of {where} has {len(choices)} values: give {_MOST_CHOICES} at most"
                )
            if any(choices.count(choice) > 1 for choice in choices):
                raise RunError(f"{name} in the space of {where} has a value twice: {choices!r}")
        for rule, pairs in (("at_most", at_most), ("same", same)):
            if not isinstance(pairs, Mapping):
                raise RunError(f"{rule} of {where} must be a table of pairs of hyper-parameters, not {pairs!r}")
            names = [*pairs.values(), *(pairs if rule == "at_most" else ())]
            missing = sorted({str(name) for name in names if not isinstance(name, str) or name not in values})
            if missing:
                raise RunError(f"{rule} of {where} names {', '.join(missing)}: its space has {', '.join(values)}")
        drawn = sorted(str(name) for name in same if name in values)
        if drawn:
            raise RunError(f"{', '.join(drawn)} of {where} cannot be drawn and be the same as another: choose one")
        return cls({str(name): tuple(choices) for name, choices in values.items()}, dict(at_most), dict(same))

    @property
    def all_values(self) -> dict[str, tuple[Any, ...]]:
        """What each hyper-parameter may have, those that are not drawn included."""
        return {**self.values, **{name: self.values[other] for name, other in self.same.items()}}

    def draw(self, algorithm: str, number: int) -> Configuration:
        """One configuration, all that are allowed being equally likely.

        It depends on the arguments and on the lists of values, and on nothing else: neither on how many are drawn, nor
        on the order of the hyper-parameters, nor on the version of a random number generator. Where a rule excludes
        what was drawn, the whole configuration is drawn again.

        :param algorithm: configurations of different algorithms are independent; its name with the paper's settings
            means the same one
        :param number: which configuration, from 0
        :raises RunError: when the rules exclude all of them
        """
        algorithm = algorithm.removesuffix("-paper").removesuffix("-code")
        for attempt in range(_ATTEMPTS):
            indices = {
                name: _index(f"{algorithm}/{number}/{attempt}/{name}", len(choices))
                for name, choices in self.values.items()
            }
            settings = {name: self.values[name][index] for name, index in indices.items()}
            if all(self._is_at_most(settings, *pair) for pair in self.at_most.items()):
                settings |= {name: settings[other] for name, other in self.same.items()}
                return Configuration(settings, {name: (i, len(self.values[name])) for name, i in indices.items()})
        rules = ", ".join(f"{small} is at most {large}" for small, large in self.at_most.items())
        raise RunError(f"no configuration of {algorithm} was found in which {rules}: give the lists smaller values")

    @staticmethod
    def _is_at_most(settings: dict[str, Any], small: str, large: str) -> bool:
        try:
            return bool(settings[small] <= settings[large])
        except TypeError:
            raise RunError(
                f"{small}, {settings[small]!r}, and {large}, {settings[large]!r}, cannot be compared: give numbers"
            ) from None


def _index(text: str, n: int) -> int:
    """A number below ``n`` that looks random, from the SHA-256 of a text: with 256 bits, each is equally likely."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big") % n
