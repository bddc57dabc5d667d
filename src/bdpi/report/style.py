"""Colours, names and order: the same in the figure, on the page and in the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

ROWS = ("algorithms", "critics", "noise", "pendulum", "entropy")
ENVIRONMENTS = ("Table", "TableLong", "TableSafe", "LunarLander", "FrozenLake8x8", "Hallway", "Pendulum")
# Okabe and Ito's colours, which can be told apart with any colour vision, without the yellow that vanishes on paper;
# the second of each pair is the same hue for a dark background.
COLOURS = (
    ("#0072b2", "#4c9be8"),  # blue
    ("#d55e00", "#ff7b39"),  # vermilion
    ("#009e73", "#2cc79c"),  # green
    ("#cc79a7", "#e39ac3"),  # pink
    ("#e69f00", "#f2b134"),  # orange
    ("#56b4e9", "#93d8ff"),  # sky
    ("#6b6b6b", "#b9b9b9"),  # grey
    ("#7b4b2a", "#c29a78"),  # brown
)
# By the letters and digits of a name: "BDPI+noise" and "noise" look alike. The subject of each row is blue.
_COLOUR_OF = {
    "bdpi": 0,
    "abcdqn": 1,
    "actormimic": 2,
    "bootstrappeddqn": 3,
    "ppo": 4,
    "acktr": 5,
    "bdpinoise": 1,
    "noise": 1,
    "bdpibinary": 0,
    "sac": 2,
    "td3": 4,
    "1x1": 5,
    "8x8": 2,
    "16x8": 4,
    "16x16": 0,
    "32x16": 1,
    "32x32": 3,
}


def row_rank(row: str) -> tuple[int, str]:
    """For sorting rows."""
    return _rank(ROWS, row.casefold()), row


def ordered_environments(environments: Iterable[str]) -> tuple[str, ...]:
    """In the paper's order."""
    return tuple(sorted(environments, key=lambda name: (_rank(ENVIRONMENTS, environment_title(name)), name)))


def environment_title(environment: str) -> str:
    """The id without namespace and version: ``"FrozenLake8x8"``."""
    return re.sub(r"-v\d+$", "", environment.rsplit(":", 1)[-1].rsplit("/", 1)[-1])


def ordered_series(names: Iterable[str]) -> tuple[str, ...]:
    """Known agents first; then by the alphabet, and numbers in names, such as ``"16x8"``, by their size."""
    return tuple(sorted(names, key=_series_key))


def colours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour for a light and one for a dark background for every series of a row; known names keep theirs.

    More series than colours share colours.
    """
    chosen = {name: _COLOUR_OF[_plain(name)] for name in names if _plain(name) in _COLOUR_OF}
    free = [number for number in range(len(COLOURS)) if number not in chosen.values()] or list(range(len(COLOURS)))
    others = [name for name in names if name not in chosen]
    chosen.update({name: free[number % len(free)] for number, name in enumerate(others)})
    return {name: COLOURS[chosen[name]] for name in names}


def subject(names: Sequence[str]) -> str:
    """The series that the others of a row are compared with: BDPI, or its default configuration, or the first."""
    blue = [name for name in names if _COLOUR_OF.get(_plain(name)) == 0]
    return (blue or list(names))[0]


def _rank(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _series_key(name: str) -> tuple[int, list[tuple[float, str]], str]:
    agents = [agent for agent in _COLOUR_OF if not agent[0].isdigit()]
    if _plain(name) in agents:
        return 0, [(agents.index(_plain(name)), "")], name
    # Words and numbers alternate: "steps = 8" comes before "steps = 16".
    parts = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", name)
    return 1, [(float(number) if number else 0.0, word) for number, word in parts], name
