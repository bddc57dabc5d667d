"""Checkpoints of SQLite's write-ahead log in a thread of their own: they wait for the disk, and who writes does not."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

_MOST_PAGES = 25_000  # 100 MB of log, after which the writer makes a checkpoint itself


class Checkpoints:
    """Moves what is in the log of a database into the database, each time that it is called, from any thread.

    :param writer: makes none by itself any more, as long as the log is not huge
    :param path: of the database
    """

    def __init__(self, writer: sqlite3.Connection, path: Path) -> None:
        writer.execute(f"PRAGMA wal_autocheckpoint = {_MOST_PAGES}")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):  # a full disk, of which the writer will tell
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()
