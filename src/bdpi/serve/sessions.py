"""Which requests were answered, in a file: a request that is repeated, even after a crash, is not stored twice.

Before a transition goes to the journal, its request and its answer are written here, with the number that the
transition will have. After a crash, the journal decides: what it does not hold was not done, and is forgotten here.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bdpi.runs.errors import RunError, one_line
from bdpi.serve.protocol import ROBOT
from bdpi.serve.task import RobotTask
from bdpi.storage.reading import Damaged, parse_json
from bdpi.storage.wal import Checkpoints

_TABLES = (
    "CREATE TABLE robots (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE requests (robot INTEGER NOT NULL, place INTEGER NOT NULL, seq INTEGER NOT NULL, "
    "transition INTEGER NOT NULL, digest BLOB NOT NULL, observation BLOB, mask BLOB, answer TEXT NOT NULL, "
    "PRIMARY KEY (robot, place)) WITHOUT ROWID",
    "CREATE TABLE switches (name TEXT PRIMARY KEY) WITHOUT ROWID",
)
#: All that the file has in it; SQLite makes the index of what is unique. A constraint or a trigger more could forget.
_SCHEMA = {*(("table", table) for table in _TABLES), ("index", None)}
#: What a person has switched on, for all robots; it stays so when the server is started again.
SWITCHES = {"stopped", "paused", "rests", "holds"}
_LONGEST = 1 << 20  # characters of an answer


@dataclass(frozen=True)
class Answered:
    """The last request of a robot.

    :param seq: its number
    :param transition: last one in the journal when it is done
    :param digest: of what it said
    :param observation: that the robot is in, float32; None: none, or not known
    :param mask: what it may do there; None: everything
    :param answer: as JSON
    """

    seq: int
    transition: int
    digest: bytes
    observation: bytes | None
    mask: bytes | None
    answer: str

    def fits(self, task: RobotTask) -> bool:
        """Whether a request of this task's robots looks so."""
        whole = isinstance(self.seq, int) and isinstance(self.transition, int) and isinstance(self.digest, bytes)
        if not whole or self.seq < 1 or not isinstance(self.answer, str):
            return False
        try:
            if not isinstance(parse_json(self.answer), dict):
                return False
        except Damaged:
            return False
        if self.observation is None:
            return self.mask is None
        return (
            _is_array(self.observation, 4 * len(task.observations))
            and bool(np.isfinite(np.frombuffer(self.observation, np.float32)).all())
            and (self.mask is None or (_is_array(self.mask, len(task.actions)) and set(self.mask) <= {0, 1}))
        )


def _is_array(value: Any, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size


class Sessions:
    """The last requests of all robots, and what a person has switched on.

    :param path: of the file
    :param task: of the robots
    :param last: number of the last transition in the journal
    :raises RunError: when the file is damaged, or another one
    """

    def __init__(self, path: Path, task: RobotTask, last: int) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {'FULL' if task.durable else 'NORMAL'}")
            if not self._database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall():
                for table in _TABLES:
                    self._database.execute(table)
            self._check(task)
            self._database.execute("DELETE FROM requests WHERE transition > ?", (last,))
            self._noted = last
            #: are to be made now and then, in a thread
            self.checkpoints = Checkpoints(self._database, path)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            self._database.close()
            raise RunError(
                f"{path} cannot be used: {one_line(error)}. Remove it, and robots begin again with seq 1; what they "
                "observed is in the journal"
            ) from None

    def _check(self, task: RobotTask) -> None:
        """:raises ValueError: when the file has not only what was written by :meth:`note`"""
        run = self._database.execute
        found = run("SELECT type, substr(sql, 1, 2000) FROM sqlite_master LIMIT 10").fetchall()
        if len(found) != len(_SCHEMA) or set(found) != _SCHEMA:
            raise ValueError("it has other tables than a file of sessions")
        if (said := run("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":  # computes what other tables ask for
            raise ValueError(f"it is damaged: {said}")
        names = run("SELECT number, substr(name, 1, 100) FROM robots ORDER BY number LIMIT 1001").fetchall()
        if any(number != place or not re.fullmatch(ROBOT, str(name)) for place, (number, name) in enumerate(names)):
            raise ValueError("it has robots that no server gave a number to")
        on = run("SELECT substr(name, 1, 100) FROM switches LIMIT 9").fetchall()
        if not {name for (name,) in on} <= SWITCHES:
            raise ValueError("it has switches that no server has")
        large = "length(answer) > ? OR length(digest) > 64 OR length(observation) > ? OR length(mask) > ?"
        sizes = _LONGEST, 4 * len(task.observations), len(task.actions)
        (n, most), large_ones = (
            run("SELECT count(*), max(robot) FROM requests").fetchone(),
            run(f"SELECT 1 FROM requests WHERE {large} LIMIT 1", sizes).fetchall(),
        )
        if n > 2 * len(names) or large_ones or (n and most >= len(names)):
            raise ValueError("it has requests that no server wrote")
        for number in range(len(names)):
            last = self.last(number)
            if last is not None and not last.fits(task):
                raise ValueError(f"the last request of {names[number][1]} makes no sense")

    def robots(self) -> dict[str, int]:
        """Numbers of all robots, by their names."""
        return dict(self._database.execute("SELECT name, number FROM robots ORDER BY number").fetchall())

    def switches(self) -> set[str]:
        """Those of :data:`SWITCHES` that are on."""
        return {name for (name,) in self._database.execute("SELECT name FROM switches").fetchall()}

    def switch(self, name: str, on: bool) -> None:
        sql = "INSERT OR IGNORE INTO switches VALUES (?)" if on else "DELETE FROM switches WHERE name = ?"
        self._database.execute(sql, (name,))

    def add_robot(self, name: str, number: int) -> None:
        self._database.execute("INSERT INTO robots VALUES (?, ?)", (number, name))

    def last(self, robot: int) -> Answered | None:
        """The last request of a robot that was done; None: there was none."""
        columns = "seq, transition, digest, observation, mask, answer"
        rows = self._database.execute(
            f"SELECT {columns} FROM requests WHERE robot = ? ORDER BY seq DESC LIMIT 1", (robot,)
        ).fetchall()
        return Answered(*rows[0]) if rows else None

    def note(self, robot: int, done: Answered, last: int) -> None:
        """Remember a request, before its transition is stored. The one before is kept: it counts if this one does not.

        :param last: transition in the journal; requests whose transition could not be stored are forgotten
        """
        run = self._database.execute
        if self._noted > last:
            run("DELETE FROM requests WHERE transition > ?", (last,))
        self._noted = done.transition
        values = done.seq, done.transition, done.digest, done.observation, done.mask, done.answer
        # One statement: after each, a thread that learns may take its turn.
        run("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (robot, done.seq % 2, *values))

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.checkpoints.close()
        self._database.close()
