"""The tables that studies are written as. What would be lost without a word is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from bdpi.runs.errors import RunError

_MOST_NODES = 100_000
_LONGEST = 2_000  # characters of a value; a longer number may be one that Python does not print
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses a name that is there twice in a table, of which PyYAML takes the last, and values that are too long."""

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if len(node.value) > _LONGEST:
            line = node.start_mark.line + 1
            raise RunError(f"{self.name} has a value of {len(node.value)} characters (line {line}): write less")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # When it is composed, and not when it is constructed: by then, other tables may have been merged into it.
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                other = first.setdefault((key.tag, key.value), key)
                if other is not key:
                    lines = " and ".join(str(each.start_mark.line + 1) for each in (other, key))
                    raise RunError(f"{self.name} has {key.value!r} twice in one table (lines {lines}): leave one out")
        return node


def _expanded(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node stands for; infinitely many, where it is in itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        known[id(node)] = 1 + sum(
            _expanded(part, known) for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))
        )
    return known[id(node)]


def read_yaml(text: str, name: str) -> Any:
    """What a YAML file holds.

    :param name: of the file, for messages
    :raises RunError: when a table has a name twice
    :raises yaml.YAMLError: when it is no YAML
    """
    loader = _Loader(text)
    loader.name = name
    try:
        node = loader.get_single_node()
        if node is not None and _expanded(node, {}) > _MOST_NODES:
            raise RunError(f"{name} has aliases that stand for more than {_MOST_NODES} values: write less")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def mapping(value: Any, what: str) -> dict[str, Any]:
    """A table, its names as texts.

    :raises RunError: when it is none, or two names are the same text
    """
    if not isinstance(value, Mapping):
        raise RunError(f"{what} must be a table (names and values), not {value!r}")
    twice = [name for name, n in Counter(map(str, value)).items() if n > 1]  # 8 and "8"
    if twice:
        raise RunError(f"{what} has {twice[0]!r} twice: leave one out")
    return {str(name): each for name, each in value.items()}


def only_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """:raises RunError: for unknown names"""
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5]))
        raise RunError(f"{what} has the unknown {shown}: known are {', '.join(known)}")


def whole(value: Any, what: str) -> int:
    """:raises RunError: for anything but 1, 2, 3 and so on"""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RunError(f"{what} must be a whole number from 1 on, not {value!r}")
    return value
