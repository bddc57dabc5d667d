"""Which requests were answered, in a file: a request that is repeated, even after a crash, is not stored twice.

Before a transition goes to the journal, its request and its answer are written here, with the number that the
transition will have. After a crash, the journal decides: what it does not hold was not done, and is forgotten here.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS robots (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS requests (
    robot INTEGER NOT NULL, seq INTEGER NOT NULL, transition INTEGER NOT NULL, digest BLOB NOT NULL,
    observation BLOB, mask BLOB, answer TEXT NOT NULL, PRIMARY KEY (robot, seq)
) WITHOUT ROWID;
"""


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


class Sessions:
    """The last requests of all robots.

    :param path: of the file
    :param last: number of the last transition in the journal
    :param durable: wait for the disk
    """

    def __init__(self, path: Path, last: int, durable: bool = False) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._database.executescript(_SCHEMA)
        self._database.execute("DELETE FROM requests WHERE transition > ?", (last,))

    def robots(self) -> dict[str, int]:
        """Numbers of all robots, by their names."""
        return dict(self._database.execute("SELECT name, number FROM robots ORDER BY number").fetchall())

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
        run("BEGIN IMMEDIATE")
        try:
            run("DELETE FROM requests WHERE transition > ?", (last,))
            values = done.seq, done.transition, done.digest, done.observation, done.mask, done.answer
            run("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?)", (robot, *values))
            run("DELETE FROM requests WHERE robot = ? AND seq < ?", (robot, done.seq - 1))
            run("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                run("ROLLBACK")
            raise

    def close(self) -> None:
        self._database.close()
