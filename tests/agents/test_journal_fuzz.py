"""What is read from damaged logs and exports is what was written, or the beginning of it. tests/fuzz has more damage.

`make test-all` tries more of them, and BDPI_FUZZ=2000 in the environment still more.
"""

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from journals import read, same

from bdpi.agents.journal import Journal, JournalError
from bdpi.agents.journal_files import export_npz, export_parquet, import_npz, import_parquet
from kinds import ACTIONS, SPACE, transitions

FUZZ = int(os.environ.get("BDPI_FUZZ", "240"))
sizes = pytest.mark.parametrize("n", [54, pytest.param(FUZZ, marks=pytest.mark.full)])

Rng = np.random.Generator


def written(path: Path) -> Path:
    with Journal(path, SPACE, ACTIONS) as journal:
        for step in transitions(120):
            journal.append(step)
    return path


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


@sizes
def test_damaged_logs_of_a_robot_that_crashed(n, tmp_path):
    """What is read from a damaged log is the beginning of what was written."""
    with Journal(tmp_path / "robot.sqlite", SPACE, ACTIONS) as journal:
        rewards = [step.reward for step in transitions(120) if journal.append(step)]
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


@sizes
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_damaged_exports(ending, n, tmp_path):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    export, import_ = (export_npz, import_npz) if ending == "npz" else (export_parquet, import_parquet)
    with Journal(written(tmp_path / "robot.sqlite")) as journal:
        export(journal, tmp_path / "good")
    whole, kinds = (tmp_path / "good").read_bytes(), [flipped, truncated, overwritten, lengthened]
    import_(tmp_path / "good", tmp_path / "again.sqlite")
    expected = read(tmp_path / "again.sqlite")
    rng, imported, target = np.random.default_rng(n), 0, tmp_path / "new.sqlite"
    for number in range(n):
        (tmp_path / "bad").write_bytes(kinds[number % len(kinds)](whole, rng))
        target.unlink(missing_ok=True)
        try:
            imported += import_(tmp_path / "bad", target) == 120
            if ending == "npz":  # it has a checksum for everything but its directory
                assert all(map(same, expected, read(target)))
        except JournalError:
            assert not target.exists()
    assert imported < n // 2
