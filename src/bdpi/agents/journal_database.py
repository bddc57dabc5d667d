"""The SQLite database behind a journal: its tables, its versions, and how it is opened where nothing can be written."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import spaces

from bdpi.envs.descriptions import describe, space_of
from bdpi.storage.reading import parse_json
from bdpi.storage.wal import Checkpoints

_APPLICATION = 0x62647069  # "bdpi", where SQLite files say whose they are
VERSION = 2
_COLUMNS = (
    "observation, action, reward, discount, next_observation, terminated, truncated, mask, next_mask, environment"
)
_ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
_TRANSITIONS = (
    "CREATE TABLE transitions (id INTEGER PRIMARY KEY, observation BLOB NOT NULL, action INTEGER NOT NULL, "
    "reward REAL NOT NULL, discount REAL, next_observation BLOB NOT NULL, terminated INTEGER NOT NULL, "
    "truncated INTEGER NOT NULL, mask BLOB, next_mask BLOB, environment INTEGER NOT NULL DEFAULT 0)"
)
#: All that a journal has in it: a constraint or a trigger more could make it forget.
_SCHEMA = {
    ("table", "about", _ABOUT),
    ("index", "sqlite_autoindex_about_1", None),
    ("table", "transitions", _TRANSITIONS),
}


class JournalError(ValueError):
    """A journal that cannot be read or written; the message says what to do."""


class JournalDatabase:
    """An SQLite database in WAL mode, without transactions that begin by themselves.

    :param path: of the file
    :param read_only: nothing is written; the file may be where nothing can be
    :raises JournalError: when it cannot be opened
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._absolute = str(path.absolute())
        with self.explained("opened"):
            self._connection = self._connect_to_read() if read_only else self._connect("mode=rwc")
        self._identity = self._found()
        self._checkpoints: Checkpoints | None = None
        #: the log, while this writes it
        self._log: tuple[int, int] | None = None

    def _connect(self, mode: str) -> sqlite3.Connection:
        name = f"{self.path.absolute().as_uri()}?{mode}"
        return sqlite3.connect(name, isolation_level=None, check_same_thread=False, timeout=2.0, uri=True)

    def _connect_to_read(self) -> sqlite3.Connection:
        """SQLite wants a file beside the database, to tell readers from writers. Where it cannot be made, there is no
        writer and no need for it, unless the last transitions are still in the log of a robot that crashed.
        """
        log, index = (self.path.with_name(f"{self.path.name}-{ending}") for ending in ("wal", "shm"))
        has_log = log.exists() and log.stat().st_size > 0
        # "rw" tidies up behind itself, "ro" does not; but of a log, "rw" would put the transitions where they belong.
        connection = self._connect("mode=ro" if has_log else "mode=rw")
        try:
            connection.execute("SELECT 1 FROM sqlite_master")
        except sqlite3.Error as error:
            connection.close()
            if not _is_for_lack_of_permission(error):
                raise
            if has_log:
                raise JournalError(
                    f"{self.path} cannot be read where it is: its last transitions are in {log.name}, and SQLite has "
                    "to make a file beside that. Copy both to a folder that can be written."
                ) from error
            if index.exists():
                raise JournalError(
                    f"{self.path} cannot be read: {error}. Another program has it open, or had when it crashed."
                ) from error
            connection = self._connect("immutable=1")
        connection.execute("PRAGMA query_only = ON")
        return connection

    # -- tables -------------------------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Whether nothing is in the file, not even another program's mark: a new one, or one whose making was cut
        short."""
        marks = [self.run(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version")]
        return marks == [0, 0] and not self.run("SELECT 1 FROM sqlite_master LIMIT 1")

    def create(self, new_id: str, **described: spaces.Space[Any]) -> None:
        """Make the tables.

        :param new_id: tells it from other journals; empty: a random one
        :param described: spaces by their names
        """
        self.run("BEGIN IMMEDIATE")
        if not self.is_empty():  # another program was quicker
            self.run("ROLLBACK")
            return
        self.run(f"PRAGMA application_id = {_APPLICATION}")
        self.run(f"PRAGMA user_version = {VERSION}")
        self.run(_ABOUT)
        self.run(_TRANSITIONS)
        for name, space in described.items():
            self.run("INSERT INTO about VALUES (?, ?)", (name, json.dumps(describe(space))))
        self.run("INSERT INTO about VALUES ('id', ?)", (new_id or uuid.uuid4().hex,))
        self.run("COMMIT")

    def check_identity(self) -> None:
        """:raises JournalError: when it is no journal, or one of another version"""
        application, version = (self.run(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version"))
        if application != _APPLICATION:
            raise JournalError(f"{self.path} is a database, but not a journal: choose another file")
        if version != VERSION:
            raise JournalError(
                f"{self.path} has version {version} of the journal, this program knows {VERSION}: use a newer bdpi"
            )
        rows = self.run("SELECT type, name, substr(sql, 1, 2000) FROM sqlite_master LIMIT 10")
        found = {(kind, name, None if sql is None else " ".join(str(sql).split())) for kind, name, sql in rows}
        if found != _SCHEMA:
            other = next(iter(found ^ _SCHEMA))
            raise JournalError(f"{self.path} is damaged, or not a journal: its {other[0]} {other[1]} is another one")

    def about(self, name: str) -> str | None:
        """What the file says about itself; None: nothing."""
        rows = self.run("SELECT value FROM about WHERE name = ?", (name,))
        return str(rows[0][0]) if len(rows) == 1 else None

    def space(self, name: str) -> spaces.Space[Any]:
        """A space of the transitions."""
        text = self.about(name)
        if text is None:
            raise JournalError(f"{self.path} is damaged: it does not say its {name}")
        try:
            return space_of(parse_json(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise JournalError(f"{self.path} is damaged: {name}: {error}") from error

    # -- transitions --------------------------------------------------------------------------------------------

    def insert(self, rows: list[tuple[Any, ...]]) -> int:
        """Write transitions, all or none, because they are one statement; returns the number of the last one."""
        values = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
        sql = f"INSERT INTO transitions ({_COLUMNS}) VALUES {values}"
        return int(self._connection.execute(sql, [value for row in rows for value in row]).lastrowid or 0)

    def rows(self, after: int, most: int, sizes: dict[str, int]) -> list[tuple[Any, ...]]:
        """Transitions with larger numbers, with their numbers in front.

        :param sizes: bytes of what has a fixed size; all other columns are numbers. What is neither is not even read,
            and is ``"damaged"``
        :raises JournalError: when numbers do not increase, which pages that are there twice lead to
        """
        columns = []
        for name in _COLUMNS.split(", "):
            fits = f"typeof({name}) IN ('integer', 'real')"
            if name in sizes:
                fits = f"typeof({name}) = 'blob' AND length({name}) = {sizes[name]}"
            columns.append(f"CASE WHEN {name} IS NULL OR {fits} THEN {name} ELSE 'damaged' END")
        sql = f"SELECT id, {', '.join(columns)} FROM transitions WHERE id > ? ORDER BY id LIMIT ?"
        rows = self.run(sql, (after, most))
        for row in rows:
            if row[0] <= after:
                raise JournalError(f"{self.path} is damaged: transition {row[0]} comes after {after}")
            after = row[0]
        return rows

    @property
    def size(self) -> int:
        """Of its files, in bytes."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    @property
    def changes(self) -> int:
        """How many rows this connection has written, also those whose writer was interrupted afterwards."""
        return self._connection.total_changes

    # -- whose it is --------------------------------------------------------------------------------------------

    def _found(self, ending: str = "") -> tuple[int, int] | None:
        """Which file has the name of this one, or of its log; None: there is none."""
        try:
            found = os.stat(self._absolute + ending)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check_place(self) -> None:
        """:raises JournalError: when the file that is written has lost its name, and would not be found again"""
        if self._found() != self._identity or (self._log is not None and self._found("-wal") != self._log):
            raise JournalError(
                f"{self.path} is no longer the journal that is being written: it was moved, deleted or replaced. Put "
                "it back, with its -wal, and go on; or save the agent with its replay memory and load it with a new "
                "journal."
            )

    def lock(self) -> int | None:
        """Be the only one who writes, here and in other programs. The lock ends when the file descriptor that this
        returns is closed, or with the process, however it ends; None: there are no locks here.

        :raises JournalError: when it is being written already
        """
        try:
            import fcntl
        except ImportError:  # Windows
            return None
        # The log exists as long as the journal is open anywhere. SQLite does not lock it: closing it gives back no
        # lock of SQLite's.
        try:
            handle = os.open(f"{self.path.resolve()}-wal", os.O_RDWR)
        except OSError:
            return None
        for last_attempt in (False, True):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last_attempt:
                    os.close(handle)
                    raise JournalError(
                        f"{self.path} is being written by another agent: give each a journal of its own, or end the "
                        "other program first. An agent in this one gives its journal back with close_journal()."
                    ) from None
                gc.collect()  # an agent that is no longer referenced does not count
            except OSError:  # some network file systems know no locks: better without than not at all
                break
        self._log = self._found("-wal")
        return handle

    # -- the rest -----------------------------------------------------------------------------------------------

    def run(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def checkpoints(self) -> Checkpoints:
        """See :meth:`bdpi.agents.journal.Journal.checkpoints`."""
        if self._checkpoints is None:
            self._checkpoints = Checkpoints(self._connection, self.path)
        return self._checkpoints

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._connection.close()

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Errors of SQLite become errors for people.

        :param what: cannot be done to the journal then, for instance "read"
        """
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            text = str(error)
            if "closed database" in text:
                raise JournalError(
                    f"the journal {self.path} is closed, and cannot be {what}: keep it open as long as its agent is at "
                    "work, or load the agent with the journal again"
                ) from error
            if "not a database" in text:
                raise JournalError(f"{self.path} is not a journal: choose another file") from error
            remedy = ""
            if "full" in text:
                remedy = " Make room and go on: everything before is safe."
            elif "disk I/O" in text:
                remedy = (
                    " The disk is full or fails, or files may not grow that large (ulimit -f). Make room and go on: "
                    "everything before is safe."
                )
            elif "locked" in text:
                remedy = " Another program writes it."
            elif self.read_only and "readonly" in text:
                remedy = " It was opened for reading only."
            elif _is_for_lack_of_permission(error):
                remedy = " Is there a folder of that name, in which files can be written? Reading alone needs none."
            elif not isinstance(error, sqlite3.OperationalError):
                remedy = " The file is damaged, or not a journal."
            raise JournalError(f"the journal {self.path} cannot be {what}: {text}.{remedy}") from error


def _is_for_lack_of_permission(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and any(
        text in str(error) for text in ("readonly database", "unable to open database file")
    )
