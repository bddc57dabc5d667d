"""Transitions of all kinds, and journals of them, that the tests of journals share."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from bdpi.agents.journal import Journal, Transition

SPACES = [
    spaces.Box(-1, np.inf, (2, 3), np.float32),
    spaces.Box(np.array([0.0, -5]), np.array([1.5, 5]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Discrete(7, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(5),
    spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)}),
]
ACTIONS = spaces.Discrete(4, start=1)
all_spaces = pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)


def transitions(space: spaces.Space[Any], n: int = 12, masks: bool = True) -> Iterator[Transition]:
    """With ends, discounts and masks, of two environments."""
    space.seed(0)
    rng = np.random.default_rng(0)
    for number in range(n):
        yield Transition(
            space.sample(),
            int(rng.integers(1, 5)),
            float(rng.normal()),
            space.sample(),
            terminated=number % 3 == 0,
            truncated=number % 3 == 1,
            discount=None if number % 2 else 0.5,
            mask=None if number % 4 or not masks else np.array([True, False, True, True]),
            environment=number % 2,
        )


def written(path: Path, space: spaces.Space[Any], n: int = 12, masks: bool = True) -> Path:
    with Journal(path, space, ACTIONS) as journal:
        for step in transitions(space, n, masks):
            journal.append(step)
    return path


def read(path: Path) -> list[Transition]:
    with Journal(path, read_only=True) as journal:
        return list(journal.steps())


def same(a: Any, b: Any) -> bool:
    """To the bit, and of the same type."""
    if isinstance(a, Transition):
        a, b = vars(a), vars(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype


def change(path: Path, sql: str) -> None:
    """By another program than this one."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """Where every user can look; pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextlib.contextmanager
def only_readable(folder: Path, hidden: str = "") -> Iterator[None]:
    """Files and folder can only be read. Root, who may write everywhere, becomes another user for a while.

    :param hidden: name of a file that cannot even be read
    """
    for file in folder.iterdir():
        file.chmod(0o444 if file.name != hidden else 0)
    folder.chmod(0o555)
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
