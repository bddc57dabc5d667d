"""Damaged journals, and files that only look like one: an error that says so, or no harm.

`make test-all` tries more of them, and BDPI_FUZZ=2000 in the environment still more.
"""

import contextlib
import io
import itertools
import os
import pickle
import shutil
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from journals import read, same

from bdpi import BDPI
from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.agents.journal_files import export_npz, export_parquet, import_npz, import_parquet
from bdpi.agents.journal_info import examine
from bdpi.envs import ControlLoop

FUZZ = int(os.environ.get("BDPI_FUZZ", "240"))
sizes = pytest.mark.parametrize("n", [54, pytest.param(FUZZ, marks=pytest.mark.full)])
SPACE = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})
ACTIONS = spaces.Discrete(4, start=1)
PATIENCE = 30.0  # seconds of the processor for a file; a file that claims to be huge must not take hours

Rng = np.random.Generator


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def steps(n: int) -> Iterator[Transition]:
    SPACE.seed(0)
    rng = np.random.default_rng(0)
    for number in range(n):
        mask = np.array([True, False, True, True]) if number % 4 else None
        ends = number % 7 == 6, number % 11 == 10
        seen, following = SPACE.sample(), SPACE.sample()
        yield Transition(
            seen, int(rng.integers(1, 5)), float(rng.normal()), following, *ends, 0.5, mask, mask, number % 3
        )


def written(path: Path) -> Path:
    with Journal(path, SPACE, ACTIONS) as journal:
        for step in steps(120):
            journal.append(step)
    return path


# -- damage that needs no knowledge of the file ---------------------------------------------------------------------


def flipped(whole: bytes, rng: Rng) -> bytes:
    damaged = bytearray(whole)
    for _ in range(int(rng.integers(1, 20))):
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
    return bytes(damaged)


def truncated(whole: bytes, rng: Rng) -> bytes:
    return whole[: rng.integers(1, len(whole))]


def overwritten(whole: bytes, rng: Rng) -> bytes:
    start = int(rng.integers(len(whole)))
    return whole[:start] + rng.bytes(64) + whole[start + 64 :]


def lengthened(whole: bytes, rng: Rng) -> bytes:
    return whole + rng.bytes(int(rng.integers(1, 20_000)))


# -- damage to an SQLite database -----------------------------------------------------------------------------------


def of_another_version(whole: bytes, rng: Rng) -> bytes:
    """Whose file it is, and which version, are in its header."""
    damaged = bytearray(whole)
    where = int(rng.choice([18, 19, 44, 56, 60, 68]))
    number = int(rng.choice([0, 1, 2, 3, 9, 2**31 - 1, 2**32 - 1]))
    damaged[where : where + 4] = number.to_bytes(4, "big")
    return bytes(damaged)


def huge(whole: bytes, rng: Rng) -> bytes:
    """The header claims a size, or a row does."""
    damaged = bytearray(whole)
    number = int(rng.choice([0, 1, 2**16 - 1, 2**31 - 1, 2**32 - 1]))
    if rng.random() < 0.5:
        where = int(rng.choice([16, 20, 24, 28, 32, 36, 40, 48, 52]))
        damaged[where : where + 4] = number.to_bytes(4, "big")
    else:
        page = int(rng.integers(len(whole) // 4096)) * 4096
        first = page + (100 if page == 0 else 0)
        cell = int.from_bytes(whole[first + 8 : first + 10], "big")  # where its first row is
        damaged[page + cell : page + cell + 9] = b"\xff" * 9
    return bytes(damaged)


_VALUES: list[Any] = [None, "text", -1, 2**62, 1e308, b"", b"\0" * 100_000, float("inf")]
_SPACES = [
    '{"type": "Box", "shape": [1000000000, 1000000000], "dtype": "float32", "low": 0, "high": 1}',
    '{"type": "Discrete", "n": 99999999999999999999, "start": 0}',
    '{"type": "Dict", "spaces": ' * 5000,
    "[" * 100_000,
    "null",
    "3",
    "{}",
]
_TABLES = [
    "DROP TABLE transitions",
    "DROP TABLE about",
    "DELETE FROM about",
    "CREATE VIEW more AS SELECT 1",
    "CREATE TRIGGER later AFTER INSERT ON transitions BEGIN DELETE FROM transitions; END",
    "ALTER TABLE transitions DROP COLUMN environment",
    "ALTER TABLE transitions ADD COLUMN huge BLOB AS (zeroblob(1000000000))",
    # computed when it is read: a gigabyte for each row
    "ALTER TABLE transitions DROP COLUMN mask; ALTER TABLE transitions ADD COLUMN mask BLOB AS (zeroblob(1000000000))",
    "ALTER TABLE transitions RENAME TO others; CREATE VIEW transitions AS SELECT * FROM others a, others b, others c",
    "INSERT INTO transitions SELECT 9223372036854775807, observation, action, reward, discount, next_observation, "
    "terminated, truncated, mask, next_mask, environment FROM transitions WHERE id = 1",
]


def changed(whole: bytes, rng: Rng, folder: Path, payload: bytes) -> bytes:
    """An intact database in which something else is."""
    path = folder / "changed.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path, isolation_level=None)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(transitions)")]
    kind, row = int(rng.integers(4)), int(rng.integers(1, 121))
    with contextlib.suppress(sqlite3.Error):  # not everything can be written
        if kind == 0:
            value = _VALUES[rng.integers(len(_VALUES))]
            connection.execute(f"UPDATE transitions SET {rng.choice(columns)} = ? WHERE id = {row}", (value,))
        elif kind == 1:
            name = rng.choice(["observation_space", "action_space", "id"])
            connection.execute("UPDATE about SET value = ? WHERE name = ?", (_SPACES[rng.integers(7)], str(name)))
        elif kind == 2:
            connection.executescript(_TABLES[rng.integers(len(_TABLES))])
        elif rng.random() < 0.5:
            connection.execute(f"UPDATE transitions SET {rng.choice(columns[1:])} = ? WHERE id = {row}", (payload,))
        else:
            connection.execute("UPDATE about SET value = ?", (payload,))
    connection.execute("PRAGMA journal_mode = DELETE" if rng.random() < 0.5 else "PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.read_bytes()


def use(path: Path, number: int) -> bool:
    """All that is done with journals; returns whether every transition could be read."""
    intact = False
    with contextlib.suppress(JournalError):
        intact = examine(path).problem is None
    with contextlib.suppress(JournalError), Journal(path, read_only=True) as journal:
        assert len(journal) >= 0
        for step in itertools.islice(journal.steps(), 1000):
            assert np.isfinite(np.float32(step.reward))  # as it is learned from
            assert 1 <= step.action <= 4
            assert step.environment >= 0
    if number % 8 == 0:
        with contextlib.suppress(JournalError):
            agent = BDPI("MultiInputPolicy", ControlLoop(SPACE, ACTIONS), journal=path, n_critics=2, batch_size=16)
            agent.learn_once()
            agent.close_journal()
    with contextlib.suppress(JournalError), Journal(path, SPACE, ACTIONS) as journal:
        journal.append(next(steps(1)))
    return intact


@sizes
def test_damaged_journals(n, tmp_path):
    whole = written(tmp_path / "robot.sqlite").read_bytes()
    bomb = tmp_path / "exploded"
    payload = pickle.dumps(Bomb(bomb))

    def exploding(whole: bytes, rng: Rng) -> bytes:
        start = int(rng.integers(100, len(whole) - len(payload)))
        return whole[:start] + payload + whole[start + len(payload) :]

    def other(whole: bytes, rng: Rng) -> bytes:
        return changed(whole, rng, tmp_path, payload)

    kinds = [flipped, truncated, overwritten, lengthened, of_another_version, huge, exploding, other, other]
    rng, intact = np.random.default_rng(n), 0
    for number in range(n):
        path = tmp_path / "damaged.sqlite"
        for file in tmp_path.glob("damaged.sqlite*"):
            file.unlink()
        path.write_bytes(kinds[number % len(kinds)](whole, rng))
        began = time.process_time()
        try:
            intact += use(path, number)
        except BaseException as error:
            raise AssertionError(f"file {number}: {type(error).__name__}: {error}") from error
        assert time.process_time() - began < PATIENCE, f"file {number}"
    assert not bomb.exists()
    assert 0 < intact < n // 2


@sizes
def test_damaged_logs_of_a_robot_that_crashed(n, tmp_path):
    """What is read from a damaged log is the beginning of what was written."""
    with Journal(tmp_path / "robot.sqlite", SPACE, ACTIONS) as journal:
        rewards = [step.reward for step in steps(120) if journal.append(step)]
        files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    log, rng, lengths = files["robot.sqlite-wal"], np.random.default_rng(n), set()
    kinds = [flipped, truncated, overwritten, lengthened]
    for number in range(n):
        folder = tmp_path / "card"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "robot.sqlite").write_bytes(files["robot.sqlite"])
        (folder / "robot.sqlite-wal").write_bytes(kinds[number % len(kinds)](log, rng))
        with contextlib.suppress(JournalError), Journal(folder / "robot.sqlite", read_only=True) as journal:
            found = [step.reward for step in journal.steps()]
            assert found == rewards[: len(found)]
            lengths.add(len(found))
    assert len(lengths) > n // 24
    assert max(lengths) == 120


# -- files for other programs ---------------------------------------------------------------------------------------


def rezipped(whole: bytes, rng: Rng, payload: bytes) -> bytes:
    """An archive whose checksums are right, with an array that is not."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = str(rng.choice(list(parts)))
    kind = int(rng.integers(5))
    if kind == 0:
        parts[name] = parts[name].replace(b"(120,", b"(99999999999999,")
    elif kind == 1:
        pickled = io.BytesIO()
        np.lib.format.write_array_header_1_0(pickled, {"descr": "|O", "fortran_order": False, "shape": (120,)})
        parts[name] = pickled.getvalue() + payload
    elif kind == 2:
        parts["spaces.npy"] = parts["spaces.npy"].replace(b"2\0\0\0}", b"9\0\0\0}").replace(b"v\0\0\0e", b"w\0\0\0e")
    elif kind == 3:
        damaged = bytearray(parts[name])
        for _ in range(int(rng.integers(1, 6))):
            damaged[rng.integers(min(400, len(damaged)))] = int(rng.choice([0, 0x28, 0x2C, 0x39, 0x4F, 0xFF]))
        parts[name] = bytes(damaged)
    else:
        parts[name] = payload
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return stream.getvalue()


@sizes
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_damaged_exports(ending, n, tmp_path):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    export, import_ = (export_npz, import_npz) if ending == "npz" else (export_parquet, import_parquet)
    with Journal(written(tmp_path / "robot.sqlite")) as journal:
        export(journal, tmp_path / "good")
    whole, bomb = (tmp_path / "good").read_bytes(), tmp_path / "exploded"
    payload = pickle.dumps(Bomb(bomb))

    def other(whole: bytes, rng: Rng) -> bytes:
        return rezipped(whole, rng, payload)

    kinds = [flipped, truncated, overwritten]
    kinds += [other, other] if ending == "npz" else [lengthened]
    import_(tmp_path / "good", tmp_path / "again.sqlite")
    expected = read(tmp_path / "again.sqlite")
    rng, imported, target = np.random.default_rng(n), 0, tmp_path / "new.sqlite"
    for number in range(n):
        damage = kinds[number % len(kinds)]
        (tmp_path / "bad").write_bytes(damage(whole, rng))
        target.unlink(missing_ok=True)
        began = time.process_time()
        try:
            imported += import_(tmp_path / "bad", target) == 120
            if ending == "npz" and damage is not other:  # it has a checksum for everything but its directory
                assert all(map(same, expected, read(target)))
        except JournalError:
            assert not target.exists()
        except BaseException as error:
            raise AssertionError(f"file {number}: {type(error).__name__}: {error}") from error
        assert time.process_time() - began < PATIENCE, f"file {number}"
    assert not bomb.exists()
    assert imported < n // 2
