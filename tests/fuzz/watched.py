"""Use a stranger's files, and say what went wrong: another error than those that are documented, too much memory or
time, code that was run, files that were written elsewhere."""

from __future__ import annotations

import contextlib
import linecache
import os
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinds import KINDS, unpacked

MOST_MEMORY = 600 << 20  # bytes beside the program itself, which has 400 MB: 1 GB in all
MOST_SECONDS = 10.0  # of the processor
_RUNS_CODE = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree")
_PACKAGE = f"{os.sep}bdpi{os.sep}"


@dataclass(frozen=True)
class Outcome:
    """What became of some files.

    :param said: the error, where they were refused; empty: they were read
    :param finding: what must not be; empty: nothing
    :param seconds: of the processor
    :param memory: bytes that were needed
    """

    said: str
    finding: str
    seconds: float
    memory: int


class _Watch:
    """Audits what Python does while files are used."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in _RUNS_CODE:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and self._is_outside(path):
                self.seen.append(f"writes {path!r:.200}")
        elif event in _CHANGES and any(self._is_outside(each) for each in arguments[:2]):
            self.seen.append(f"{event} {arguments!r:.200}")

    def _is_outside(self, path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        whole = os.path.realpath(os.fsdecode(path))
        return whole != os.devnull and not whole.startswith(self.folder or "")


_watch: list[_Watch] = []  # an audit hook stays for ever: one is enough


def use(kind: str, data: bytes, folder: Path) -> Outcome:
    """Use files of a kind.

    :param data: the files, packed
    :param folder: where they are unpacked; it is emptied first
    """
    shutil.rmtree(folder, ignore_errors=True)
    files = folder / "files"
    for name, content in unpacked(data).items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(content)
    if not _watch:
        _watch.append(_Watch())
    watch, before, began = _watch[0], peak_memory(reset=True), time.process_time()
    watch.seen, watch.folder = [], os.path.realpath(files)
    said = finding = ""
    try:
        KINDS[kind].use(files)
    except KINDS[kind].errors as error:
        said = str(error)
        finding = _unclear(error)
    except Exception as error:
        finding = _where(error)
    finally:
        watch.folder = None
    seconds, memory = time.process_time() - began, max(0, peak_memory() - before)
    if watch.seen:
        finding = watch.seen[0]
    elif os.listdir(folder) != ["files"]:
        finding = f"writes {os.listdir(folder)} beside the files"
    elif seconds > MOST_SECONDS:
        finding = f"takes {seconds:.0f} s"
    elif memory > MOST_MEMORY:
        finding = f"takes {memory >> 20} MB"
    return Outcome(said, finding, seconds, memory)


def _unclear(error: Exception) -> str:
    """What is wrong with an error of the documented kind: it must be raised by this package, and be a line of text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if _PACKAGE not in frame.filename or "raise" not in linecache.getline(frame.filename, frame.lineno or 0):
        return _where(error)
    try:
        str(error).encode()
    except UnicodeEncodeError:
        return f"an error that cannot be printed: {str(error)!r}"
    return "" if str(error) else f"{type(error).__name__} without a word"


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _PACKAGE in frame.filename] or frames
    place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(ours[-3:]))
    return f"{type(error).__name__} at {place}: {str(error)!r:.200}"


def peak_memory(reset: bool = False) -> int:
    """The most that this process has had, in bytes, since the last reset; 0 where that cannot be found out."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return 0
