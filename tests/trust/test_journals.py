"""Journals of strangers, and journals that a disk has damaged."""

import contextlib
import itertools
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from journals import change

from bdpi.agents.journal import Journal, JournalError, Transition
from bombs import shared_pages

SPACES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


def step(action: int = 0, size: int = 3) -> Transition:
    return Transition(np.zeros(size, np.float32), action, 0.0, np.zeros(size, np.float32), False, False)


def made(path: Path, n: int, size: int = 3) -> Path:
    with Journal(path, spaces.Box(-1, 1, (size,), np.float32), SPACES[1]) as journal:
        for _ in range(n):
            journal.append(step(size=size))
    return path


def test_a_page_that_is_there_twice_is_no_endless_loop(tmp_path: Path) -> None:
    path = made(tmp_path / "robot.sqlite", 2000)
    content = bytearray(path.read_bytes())
    leaves = [page for page in range(0, len(content), 4096) if content[page] == 13]  # of a table
    content[leaves[-1] : leaves[-1] + 4096] = content[leaves[3] : leaves[3] + 4096]
    path.write_bytes(content)
    with Journal(path) as journal, pytest.raises(JournalError, match=r"damaged: transition \d+ comes after"):
        list(itertools.islice(journal.steps(), 5000))


@pytest.mark.parametrize(
    "forgets",
    [
        "CREATE UNIQUE INDEX one ON transitions (action)",
        "CREATE TRIGGER forget AFTER INSERT ON transitions BEGIN DELETE FROM transitions WHERE id < NEW.id; END",
        "CREATE TABLE more (name TEXT)",
    ],
)
def test_a_journal_with_more_in_it_is_refused(tmp_path: Path, forgets: str) -> None:
    path = made(tmp_path / "robot.sqlite", 2)
    change(path, "DELETE FROM transitions")
    change(path, forgets)
    with pytest.raises(JournalError, match="damaged"):
        Journal(path)


def test_a_journal_that_forgets_without_a_word_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "robot.sqlite", 0)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'transitions'").fetchone()
    change(path, "DROP TABLE transitions")
    change(path, f"{sql[:-1]}, UNIQUE (action) ON CONFLICT IGNORE)")
    with pytest.raises(JournalError, match="damaged"):
        Journal(path, *SPACES)


@pytest.mark.parametrize("number", [-5, 0, 2**63 - 1])
def test_numbers_that_hide_a_transition_or_cannot_be_continued(tmp_path: Path, number: int) -> None:
    path = made(tmp_path / "robot.sqlite", 2)
    change(path, f"UPDATE transitions SET id = {number} WHERE id = 2")
    with pytest.raises(JournalError, match="damaged: its transitions have the numbers"):
        Journal(path)


def test_what_is_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "robot.sqlite", *SPACES) as journal:
        journal.append(step())
        monkeypatch.setattr(journal._file, "insert", lambda rows: 1)  # as a table does that ignores a row
        with pytest.raises(JournalError, match="stored 0 of 1"):
            journal.append(step())


def test_a_log_that_is_removed_is_noticed(tmp_path: Path) -> None:
    with Journal(tmp_path / "robot.sqlite", *SPACES) as journal:
        journal.append(step())
        (tmp_path / "robot.sqlite-wal").unlink()
        with pytest.raises(JournalError, match="no longer the journal"):
            journal.append(step())


def test_transitions_that_share_pages_do_not_fill_the_memory(tmp_path: Path) -> None:
    """All rows point to the chain of pages of the first one, which alone is in the file: 0.8 MB that read as 6."""
    path = shared_pages(tmp_path / "robot.sqlite", 400_000)
    with Journal(path, read_only=True) as journal, pytest.raises(JournalError, match="share"):
        list(journal.steps())


@pytest.mark.parametrize("column", ["action", "reward", "discount", "mask", "environment"])
def test_what_is_too_large_for_its_column_is_not_even_read(tmp_path: Path, column: str) -> None:
    path = made(tmp_path / "robot.sqlite", 2)
    change(path, f"UPDATE transitions SET {column} = zeroblob(1000000) WHERE id = 2")
    with Journal(path, read_only=True) as journal:
        read = journal._file.rows(0, 10, {"observation": 12, "next_observation": 12, "mask": 2, "next_mask": 2})
        assert max(len(value) for row in read for value in row if isinstance(value, str | bytes)) < 100
        with pytest.raises(JournalError, match="transition 2 makes no sense"):
            list(journal.steps())
