"""What a power failure may leave of a recorded program's files, under three models of a file system.

``lost``: names are there, what was written since a file was synced is not. ``flushed``: as that, but renaming a file
syncs it, as ext4 does. ``forgotten``: names go back, too, to when their folder was synced.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MODELS = ("lost", "flushed", "forgotten")
Check = Callable[[Path, int, Path], None]
MARK = "MARK-"  # what a scenario creates, to say that something is safe from now on


@dataclass(frozen=True)
class Record:
    op: str
    inode: int
    offset: int
    data: bytes
    path: str


def compiled(work: Path) -> Path:
    """The library that records."""
    library, source = work / "recorder.so", Path(__file__).with_name("recorder.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


def record(scenario: str, rounds: int, root: Path, work: Path) -> list[Record]:
    """What a scenario does below ``root``, a new folder."""
    log = work / "log"
    root.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(compiled(work)), "CRASH_ROOT": str(root), "CRASH_LOG": str(log)}
    environment |= {"BDPI_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("scenarios.py")), scenario, str(root), str(rounds)]
    subprocess.run(command, env=environment, check=True, timeout=600)
    return list(_parse(log.read_bytes(), str(root)))


def _parse(content: bytes, root: str) -> Iterator[Record]:
    start = 0
    while start < len(content):
        end = content.index(b"\n", start)
        op, inode, offset, length, path = content[start:end].decode().split(" ", 4)
        start = end + 1 + int(length)
        yield Record(op, int(inode), int(offset), content[end + 1 : start], path.removeprefix(root).lstrip("/"))


class Disk:
    """Files as programs see them, and as they are after a power failure.

    Files and folders have numbers of their own: those that a file system gives them are given again.

    :param root: of the recorded paths
    """

    def __init__(self, root: str, model: str) -> None:
        self.root, self.model, self.marks = root, model, 0
        self.numbers, self._inodes = itertools.count(1), dict[int, int]()
        self.content, self.synced = dict[int, bytearray](), dict[int, bytes]()
        # what is in each folder, by its name; the first one is the root
        self.folders: dict[int, dict[str, int]] = {0: {}}
        self.kept: dict[int, dict[str, int]] = {0: {}}

    def _place(self, path: str) -> tuple[dict[str, int], str]:
        *parents, name = path.split("/")
        folder = 0
        for parent in parents:
            folder = self.folders[folder][parent]
        return self.folders[folder], name

    def apply(self, record: Record) -> None:
        """Do what the program did."""
        if record.op in ("write", "sync", "truncate"):
            self._change(record, self._inodes[record.inode])
        elif record.op == "syncdir":
            names, name = self._place(record.path)
            number = names[name] if name else 0
            self.kept[number] = dict(self.folders[number])
        elif os.path.basename(record.path).startswith(MARK):
            self.marks += 1
        else:
            self._change_names(record, *self._place(record.path))

    def _change(self, record: Record, number: int) -> None:
        content, end = self.content[number], record.offset + len(record.data)
        if record.op == "sync":
            self.synced[number] = bytes(content)
            return
        content.extend(bytes(max(0, record.offset - len(content))))
        if record.op == "write":
            content[record.offset : end] = record.data
        else:
            del content[record.offset :]

    def _change_names(self, record: Record, names: dict[str, int], name: str) -> None:
        if record.op in ("unlink", "rmdir"):
            del names[name]
        elif record.op == "mkdir":
            names[name] = number = next(self.numbers)
            self.folders[number], self.kept[number] = {}, {}
        elif record.op == "create":
            names[name] = self._inodes[record.inode] = number = next(self.numbers)
            self.content[number], self.synced[number] = bytearray(), b""
        elif record.op == "rename":
            there, new = self._place(record.data.decode().removeprefix(self.root).lstrip("/"))
            there[new] = number = names.pop(name)
            if self.model == "flushed" and number in self.content:
                self.synced[number] = bytes(self.content[number])

    def write(self, target: Path, folder: int = 0) -> None:
        """Make the files that a power failure would leave now."""
        target.mkdir()
        for name, number in (self.kept if self.model == "forgotten" else self.folders)[folder].items():
            if number in self.folders:
                self.write(target / name, number)
            elif not name.endswith("-shm"):
                (target / name).write_bytes(self.synced[number])


def states(records: list[Record], root: Path, model: str, work: Path, n: int) -> Iterator[tuple[int, Path]]:
    """What is left after a power failure at ``n`` moments: how many marks there were, and the folder."""
    disk = Disk(str(root), model)
    moments = {round(len(records) * (moment + 1) / n) for moment in range(n)}
    for number, each in enumerate(records, 1):
        disk.apply(each)
        if number in moments:
            target = work / f"{model}-{number}"
            disk.write(target)
            yield disk.marks, target


@dataclass
class Tally:
    """How many states there were, how many of them are different, and what became of them.

    :param lost: states in which something is missing that was safe
    :param refused: states with which the program could not go on
    """

    states: int = 0
    different: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def fail(records: list[Record], root: Path, model: str, work: Path, n: int, check: Check) -> Tally:
    """Let the power fail at ``n`` moments, and look at what is left. Of states that are the same, at one."""
    from scenarios import Lost

    tally, known = Tally(), set()
    for marks, folder in states(records, root, model, work, n):
        tally.states += 1
        digest = (marks, _digest(folder))
        if digest not in known:
            known.add(digest)
            tally.different += 1
            try:
                check(folder, marks, root)
            except Lost:
                tally.lost.append(folder.name)
            except Exception as error:
                tally.refused.append(f"{folder.name}: {type(error).__name__}: {error}")
        shutil.rmtree(folder)
    return tally


def _digest(folder: Path) -> bytes:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(str(path.relative_to(folder)).encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.digest()
