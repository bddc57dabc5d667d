"""Checkpoints in another thread: nothing is lost, and the log does not grow without end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from bdpi.agents.journal import Journal, Transition
from bdpi.storage.wal import Checkpoints


def test_the_log_is_emptied_while_somebody_writes(tmp_path: Path) -> None:
    path, stop = tmp_path / "rows.sqlite", threading.Event()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE rows (content BLOB)")
    checkpoints, log = Checkpoints(writer, path), path.with_name("rows.sqlite-wal")

    def make() -> None:
        while not stop.wait(0.002):
            checkpoints()

    thread = threading.Thread(target=make)
    thread.start()
    for _ in range(5000):
        writer.execute("INSERT INTO rows VALUES (?)", (bytes(3000),))
    stop.set()
    thread.join()
    checkpoints()
    size = log.stat().st_size
    writer.execute("INSERT INTO rows VALUES ('last')")
    assert log.stat().st_size == size  # it was empty, and is written from its beginning
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader:
        assert reader.execute("SELECT count(*) FROM rows").fetchone() == (5001,)
    assert path.stat().st_size > 15_000_000
    checkpoints.close()
    writer.close()
    assert not log.exists()


@pytest.mark.parametrize("asked", [False, True])
def test_a_journal_is_whole_whoever_makes_its_checkpoints(asked: bool, tmp_path: Path) -> None:
    path, space = tmp_path / "journal.sqlite", spaces.Box(-1, 1, (100,), np.float32)
    with Journal(path, space, spaces.Discrete(2)) as journal:
        make = journal.checkpoints() if asked else lambda: None
        for number in range(2000):
            seen = np.full(100, number / 2000, np.float32)
            journal.append(Transition(seen, number % 2, float(number), seen, False, False))
            if number % 100 == 0:
                make()
        assert journal.checkpoints() is journal.checkpoints()
    with Journal(path, read_only=True) as journal:
        assert [step.reward for step in journal.steps()] == [float(number) for number in range(2000)]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal.sqlite"]
