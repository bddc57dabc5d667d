"""What a power failure may leave of a recorded program's files, under three models of a file system.

``lost``: names are there, what was written since a file was synced is not. ``flushed``: as that, but renaming a file
syncs it, as ext4 does. ``forgotten``: names go back, too, to when their folder was synced.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MODELS = ("lost", "flushed", "forgotten")
MARK = "MARK-"  # what a scenario creates, to say that something is safe from now on


@dataclass(frozen=True)
class Record:
    op: str
    inode: int
    offset: int
    data: bytes
    path: str


def record(scenario: str, root: Path, work: Path) -> list[Record]:
    """What a Python program does below ``root``, a new folder that it finds in ``sys.argv[1]``."""
    library, log = work / "recorder.so", work / "log"
    source = Path(__file__).with_name("recorder.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True)
    root.mkdir()
    helpers = Path(__file__).parents[1] / "agents"
    environment = {**os.environ, "LD_PRELOAD": str(library), "CRASH_ROOT": str(root), "CRASH_LOG": str(log)}
    environment |= {"PYTHONPATH": str(helpers), "BDPI_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", scenario, str(root)], env=environment, check=True, timeout=300)
    return list(_parse(log.read_bytes(), str(root)))


def _parse(content: bytes, root: str) -> Iterator[Record]:
    start = 0
    while start < len(content):
        end = content.index(b"\n", start)
        op, inode, offset, length, path = content[start:end].decode().split(" ", 4)
        start = end + 1 + int(length)
        yield Record(op, int(inode), int(offset), content[end + 1 : start], path.removeprefix(root).lstrip("/"))


@dataclass
class Disk:
    """Files as programs see them, and as they are after a power failure.

    :param root: of the recorded paths
    """

    root: str
    model: str
    names: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    content: dict[int, bytes] = field(default_factory=dict)
    synced: dict[int, bytes] = field(default_factory=dict)
    kept_names: dict[str, int] = field(default_factory=dict)
    kept_folders: set[str] = field(default_factory=set)
    marks: int = 0

    def apply(self, record: Record) -> None:
        """Do what the program did."""
        path, inode = record.path, record.inode
        if record.op == "create" and os.path.basename(path).startswith(MARK):
            self.marks += 1
        elif record.op == "create":
            self.names[path], self.content[inode], self.synced[inode] = inode, b"", b""
        elif record.op == "write":
            before = self.content.get(inode, b"").ljust(record.offset, b"\0")
            self.content[inode] = before[: record.offset] + record.data + before[record.offset + len(record.data) :]
        elif record.op == "truncate":
            self.content[inode] = self.content.get(inode, b"")[: record.offset].ljust(record.offset, b"\0")
        elif record.op == "sync":
            self.synced[inode] = self.content.get(inode, b"")
        elif record.op == "syncdir":
            self._keep(path)
        elif record.op == "unlink":
            self.names.pop(path, None)
        elif record.op == "mkdir":
            self.folders.add(path)
        elif record.op == "rmdir":
            self.folders.discard(path)
        elif record.op == "rename":
            self._rename(path, record.data.decode().removeprefix(self.root).lstrip("/"))

    def _rename(self, old: str, new: str) -> None:
        if old in self.folders:
            moved = {name for name in self.names if name.startswith(f"{old}/")}
            for name in moved:
                self.names[new + name.removeprefix(old)] = self.names.pop(name)
            inside = {each for each in self.folders if f"{each}/".startswith(f"{old}/")}
            self.folders = self.folders - inside | {new + each.removeprefix(old) for each in inside}
            return
        inode = self.names.pop(old)
        self.names[new] = inode
        if self.model == "flushed":
            self.synced[inode] = self.content[inode]

    def _keep(self, folder: str) -> None:
        """The names in a folder are safe from now on."""
        inside = [name for name in self.kept_names if os.path.dirname(name) == folder and name not in self.names]
        for name in inside:
            del self.kept_names[name]
        self.kept_names |= {name: inode for name, inode in self.names.items() if os.path.dirname(name) == folder}
        self.kept_folders |= {each for each in self.folders if os.path.dirname(each) == folder}

    def write(self, target: Path) -> None:
        """Make the files that a power failure would leave now."""
        forgets = self.model == "forgotten"
        folders = self.kept_folders if forgets else self.folders
        for folder in sorted(folders):
            (target / folder).mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for name, inode in (self.kept_names if forgets else self.names).items():
            if not name.endswith("-shm") and (target / name).parent.is_dir():
                (target / name).write_bytes(self.synced.get(inode, b""))


def states(records: list[Record], root: Path, model: str, work: Path, every: int) -> Iterator[tuple[int, Path]]:
    """What is left after a power failure at many moments: how many marks there were, and the folder.

    :param every: so many operations between two moments
    """
    disk = Disk(str(root), model)
    for number, each in enumerate(records, 1):
        disk.apply(each)
        if number % every == 0 or number == len(records):
            target = work / f"{model}-{number}"
            disk.write(target)
            yield disk.marks, target
