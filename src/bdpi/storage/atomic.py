"""Replace a file at once: after a crash or a power failure, it is the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedWriter
from pathlib import Path

#: Seconds without a change after which a partial file is abandoned: of a process that is gone, and of any other.
_GROWING, _ABANDONED = 60, 24 * 3600
_numbers = itertools.count()
#: One writer of a file at a time in this process, by its path.
_locks: dict[str, threading.RLock] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.clear)  # those of threads that a child does not have


def write_atomically(path: Path, content: str | bytes | Callable[[BufferedWriter], object]) -> None:
    """Write a file beside another, and put it in its place when it is on the disk.

    :param path: the file that must never be seen half written
    :param content: of the file, or a function that writes it to an open file
    :raises OSError: which names the file, when it cannot be written
    :raises ValueError: when a journal is open there
    """
    refuse_journal(path)
    with replacing(path) as partial, partial.open("wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a partial file, which takes the place of ``path`` if no error is raised."""
    with _locks.setdefault(os.path.abspath(path), threading.RLock()):
        yield from _replacing(path)


def _replacing(path: Path) -> Iterator[Path]:
    _remove_abandoned(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{next(_numbers)}.partial")
    try:
        yield partial
        sync_file(partial)
        os.replace(partial, path)
        sync_folder(path.parent)
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # which left a part of an archive open
            raise error.__context__ from None
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(partial)):
            raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk, for one
        raise
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder outlast a power failure."""
    if os.name != "nt":  # Windows cannot open folders
        with contextlib.suppress(OSError):  # nor can some file systems sync them
            sync_file(folder)


def make_folder(folder: Path) -> None:
    """Make a folder, with those that it is in; their names outlast a power failure."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def sync_file(path: Path) -> None:
    """Have what is in a file outlast a power failure."""
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove the partial files that killed processes have left."""
    with contextlib.suppress(OSError):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial*"):
            number = left.name.removeprefix(f".{path.name}.").partition(".")[0]
            age = time.time() - left.stat().st_mtime
            # Another machine may be writing it: what grows is left alone. Numbers of processes are given again.
            if number.isdecimal() and age > (_ABANDONED if _exists(int(number)) else _GROWING):
                left.unlink(missing_ok=True)


def _exists(process: int) -> bool:
    """Whether there is such a process; always, where that cannot be found out."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def is_special(path: Path) -> bool:
    """Whether it is there, and neither a file nor a folder: a pipe, a device, a link that leads nowhere."""
    return os.path.lexists(path) and not path.is_file() and not path.is_dir()


def refuse_journal(path: str | os.PathLike[str]) -> None:
    """Refuse to open or replace a file that is an open journal, or a pipe or a device, which might never end.

    Closing a file gives back all locks that the process has on it, those of a journal included.

    :raises ValueError: when a journal is open there, or was when its program crashed; when it is no file
    """
    if is_special(Path(path)):
        raise ValueError(f"{path} is not a file: choose another one")
    log = Path(f"{Path(path).resolve()}-wal")
    if log.exists():
        raise ValueError(f"{path} is a journal (there is {log.name} beside it): choose another file")
