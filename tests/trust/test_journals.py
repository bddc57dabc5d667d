"""Journals of strangers, and journals that a disk has damaged."""

import itertools
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from bdpi.agents.journal import Journal, JournalError, Transition

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
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM transitions")
    connection.execute(forgets)
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="damaged"):
        Journal(path)


def test_a_journal_that_forgets_without_a_word_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "robot.sqlite", 0)
    connection = sqlite3.connect(path)
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'transitions'").fetchone()
    connection.execute("DROP TABLE transitions")
    connection.execute(f"{sql[:-1]}, UNIQUE (action) ON CONFLICT IGNORE)")
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="damaged"):
        Journal(path, *SPACES)


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
    n, size, path = 7, 400_000, tmp_path / "robot.sqlite"
    size += next(more for more in range(4096) if _local(2 * (size + more) + 16) < 500)  # so that one page has all rows
    space = spaces.Box(0, 1, (size,), np.uint8)
    with Journal(path, space, SPACES[1]) as journal:
        for _ in range(n):
            journal.append(Transition(np.zeros(size, np.uint8), 0, 0.0, np.zeros(size, np.uint8), False, False))
    content = bytearray(path.read_bytes())
    leaf = next(p for p in range(4096, len(content), 4096) if content[p] == 13 and content[p + 4] == n)
    cells = [leaf + int.from_bytes(content[leaf + 8 + 2 * i : leaf + 10 + 2 * i], "big") for i in range(n)]
    ends = [cell + 4 + _local(_varint(content, cell)) for cell in cells]  # three bytes of size, one of number
    first = content[ends[0] : ends[0] + 4]
    last_page = int.from_bytes(content[ends[1] : ends[1] + 4], "big") - 1  # the last one of the first row
    for end in ends:
        content[end : end + 4] = first
    content[28:32] = last_page.to_bytes(4, "big")  # how many pages there are
    path.write_bytes(content[: 4096 * last_page])
    with Journal(path, read_only=True) as journal, pytest.raises(JournalError, match="share"):
        list(journal.steps())


def _local(payload: int) -> int:
    """How much of a row SQLite keeps in the page itself."""
    least = (4096 - 12) * 32 // 255 - 23
    most = least + (payload - least) % 4092
    return most if most <= 4096 - 35 else least


def _varint(content: bytearray, start: int) -> int:
    value = 0
    for byte in content[start : start + 9]:
        value = value << 7 | byte & 127
        if byte < 128:
            break
    return value
