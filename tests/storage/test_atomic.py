"""Files are replaced at once, or not at all."""

import contextlib
import gc
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bdpi.storage.atomic import replacing, write_atomically


@pytest.mark.parametrize("content", ["new ü", "new ü".encode(), lambda file: file.write("new ü".encode())])
def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text("old")
    write_atomically(path, content)
    assert path.read_text("utf-8") == "new ü"
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_write_that_fails_leaves_the_old_file_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.zip"
    path.write_text("old")

    def fail_halfway(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, fail_halfway)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["agent.zip"]


def test_two_writers_of_one_process_write_beside_each_other(tmp_path: Path) -> None:
    def write_too(file: Any) -> None:
        file.write(b"first")
        write_atomically(tmp_path / "study.json", "second")

    write_atomically(tmp_path / "study.json", write_too)
    assert (tmp_path / "study.json").read_text() == "first"
    assert os.listdir(tmp_path) == ["study.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synced there")
def test_file_and_folder_are_on_the_disk_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []  # whether it is a folder, whether the file was in its place by then
    path = tmp_path / "config.json"
    sync = os.fsync

    def watched(handle: int) -> None:
        synced.append((os.path.samestat(os.fstat(handle), tmp_path.stat()), path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomically(path, "text")
    assert synced == [(False, False), (True, True)]


def test_a_journal_that_is_open_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "robot.sqlite-wal").touch()
    with pytest.raises(ValueError, match="is a journal"):
        write_atomically(tmp_path / "robot.sqlite", "text")


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be asked for there")
def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "agent.zip"
    writing = """
import pathlib, sys, time
from bdpi.storage.atomic import write_atomically


def write(file):
    print(file.write(bytes(1000)), flush=True)
    time.sleep(60)


write_atomically(pathlib.Path(sys.argv[1]), write)
"""
    with subprocess.Popen([sys.executable, "-c", writing, target], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1000\n"
        process.kill()
    (left,) = tmp_path.iterdir()
    of_a_living_process = tmp_path / f".agent.zip.{os.getppid()}.0.partial"
    of_another_file = tmp_path / f".other.zip.{process.pid}.0.partial"
    of_an_import = tmp_path / f".agent.zip.{process.pid}.0.partial-wal"
    for path in (of_a_living_process, of_another_file, of_an_import):
        path.touch()
    write_atomically(target, "1")
    assert left.exists()  # on another machine, somebody may be writing it
    now = time.time()
    for path in tmp_path.glob(".*"):
        os.utime(path, (now - 120, now - 120))
    write_atomically(target, "2")
    assert sorted(tmp_path.iterdir()) == sorted([target, of_a_living_process, of_another_file])
    os.utime(of_a_living_process, (now - 2 * 24 * 3600,) * 2)
    write_atomically(target, "3")
    assert sorted(tmp_path.iterdir()) == sorted([target, of_another_file])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the archive, when it is forgotten
def test_an_interrupted_write_raises_the_interrupt(tmp_path: Path) -> None:
    """Not that an archive cannot be closed, because a part of it was still open."""

    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            part = archive.open("part", "w")
            part.write(b"one")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "agent.zip", write)
    assert list(tmp_path.iterdir()) == []
    gc.collect()  # the archive complains now, not in the middle of something else


def test_a_partial_file_may_be_written_by_its_path(tmp_path: Path) -> None:
    with contextlib.suppress(ZeroDivisionError), replacing(tmp_path / "a") as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    with replacing(tmp_path / "b") as partial:
        partial.write_text("whole")
    assert os.listdir(tmp_path) == ["b"]
