"""Saved agents: one file each, written at once or not at all, and read without running anything in it.

A file is a zip archive of two uncompressed parts: ``agent.json``, and ``arrays.safetensors`` with the networks, Adam's
moments and, if wanted, the replay memory.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import pathlib
import time
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bdpi.agents.encoding import Arrays

FORMAT, VERSION = "bdpi agent", 1
_DOCUMENT, _ARRAYS = "agent.json", "arrays.safetensors"
_LARGEST_DOCUMENT = 64 << 20  # bytes
_PIECE = 1 << 20  # bytes that are written at a time
#: Seconds without a change after which a partial file is nobody's: of a process that is gone, and of any other.
_GROWING, _ABANDONED = 60, 24 * 3600

#: What comes out of NumPy's archives, and of Parquet, when they are damaged, or something else.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,  # headers of arrays are Python
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    SyntaxError,
    EOFError,
    NotImplementedError,
    RuntimeError,  # encrypted
    OverflowError,
    MemoryError,
    OSError,
)

File = str | os.PathLike[str] | io.BufferedIOBase


def write_agent(path: File, document: dict[str, Any], arrays: Arrays) -> None:
    """Write a saved agent.

    :param path: ``.zip`` is added where there is no ending, and folders are made; or an open file
    :param document: JSON
    :param arrays: by their names; contiguous
    """
    header = {"format": FORMAT, "version": VERSION}
    text = json.dumps({**header, **document}, indent=1, allow_nan=False).encode()
    head = _head_of(arrays)

    def write(file: Any) -> None:
        archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        try:
            archive.writestr(zipfile.ZipInfo(_DOCUMENT), text)  # without the time: same agent, same file
            info = zipfile.ZipInfo(_ARRAYS)
            info.file_size = len(head) + sum(array.nbytes for array in arrays.values())
            with archive.open(info, "w") as part:
                part.write(head)
                for array in arrays.values():
                    content = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
                    for start in range(0, content.size, _PIECE):
                        part.write(content[start : start + _PIECE].data)
            archive.close()
        except BaseException:
            archive.fp = None  # nobody needs it, and it would complain of the part that is still open
            raise

    if not isinstance(path, str | os.PathLike):
        write(path)
        return
    target = with_ending(pathlib.Path(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, write)


def _head_of(arrays: Arrays) -> bytes:
    """What is in front of the arrays in a file of safetensors, whose own functions keep other threads waiting while
    they copy all arrays at once."""
    head, end = {}, 0
    for name, array in arrays.items():
        kind = "BOOL" if array.dtype == bool else f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}"
        head[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def replace_file(path: pathlib.Path, write: Callable[[Any], object]) -> None:
    """Write a file beside another, and put it in its place when it is on the disk.

    :raises OSError: which names the file, when it cannot be written
    """
    refuse_journal(path)
    partial = new_partial(path)
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # which left a part of an archive open
            raise error.__context__ from None
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:  # a full disk, for one
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def new_partial(path: pathlib.Path) -> pathlib.Path:
    """Where to write a file until it is complete. What processes that were killed have left there is removed."""
    with contextlib.suppress(OSError):  # it is only tidied up
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial*"):
            number = left.name.removeprefix(f".{path.name}.").partition(".")[0]
            age = time.time() - left.stat().st_mtime
            # Another machine may be writing it: what grows is left alone. Numbers of processes are given again.
            if number.isdecimal() and age > (_ABANDONED if _exists(int(number)) else _GROWING):
                left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _exists(process: int) -> bool:
    """Whether there is such a process; nobody can ask on Windows."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def with_ending(path: pathlib.Path, ending: str = ".zip") -> pathlib.Path:
    """The path, with an ending where it has none."""
    return path if path.suffix else path.with_name(path.name + ending)


def refuse_pickle(path: File) -> None:
    """:raises ValueError: for a replay memory that is a pickle, as those of Stable-Baselines3 are"""
    if isinstance(path, str | os.PathLike):
        refuse_journal(path)
        with pathlib.Path(path).open("rb") as file:
            first = file.read(1)
    else:
        position = path.tell()
        first = path.read(1)
        path.seek(position)
    if first == b"\x80":  # how pickles begin
        name = path if isinstance(path, str | os.PathLike) else "the file"
        raise ValueError(
            f"{name} is a pickle, which can run anything when it is read, and is not read here. If you trust whoever "
            "wrote it, convert it once: memory = stable_baselines3.common.save_util.load_from_pkl(path), and then "
            "memory.save_npz(new_path) if an agent of bdpi wrote it, else agent.add_demonstrations(memory)"
        )


def read_parameters(path: File) -> Arrays:
    """The arrays of a saved agent of any class: those of its networks and of its learner, by part and name.

    :raises ValueError: for a file that is damaged or foreign
    """
    return _open(path)[1]


def refuse_journal(path: str | os.PathLike[str]) -> None:
    """Asked before a file of another kind is opened. Whoever closes a file gives back all locks that the process has on
    it; also those of a journal, which is then no longer safe from other programs.

    :raises ValueError: when a journal is open there, or was when its program crashed
    """
    log = pathlib.Path(f"{pathlib.Path(path).resolve()}-wal")
    if log.exists():
        raise ValueError(f"{path} is a journal (there is {log.name} beside it): choose another file")


def class_of(path: File) -> str:
    """Name of the class of a saved agent.

    :raises ValueError: for a file that is damaged or foreign
    """
    return str(_open(path)[0].get("class"))


def read_agent(path: File, class_name: str) -> tuple[dict[str, Any], Arrays]:
    """What :func:`write_agent` was given.

    :param class_name: the agent's class
    :raises ValueError: for a file that is damaged, foreign, or of another class
    """
    document, arrays = _open(path)
    saved_class = document.get("class")
    if saved_class != class_name:
        raise ValueError(f"{path} holds an agent of class {saved_class}; {class_name}.load reads what its save wrote")
    return document, arrays


def _open(path: File) -> tuple[dict[str, Any], Arrays]:
    if not isinstance(path, str | os.PathLike):
        return _read(path, getattr(path, "name", "the file"))
    file = pathlib.Path(path)
    file = file if file.exists() else with_ending(file)
    if not file.exists():
        raise FileNotFoundError(f"there is no saved agent {file}")
    refuse_journal(file)
    with file.open("rb") as opened:
        return _read(opened, file)


def _read(file: Any, where: Any) -> tuple[dict[str, Any], Arrays]:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            if _DOCUMENT not in infos:
                raise ValueError(
                    f"{where} holds no bdpi agent, or one of an earlier version, which cannot be read safely"
                )
            if infos.keys() != {_DOCUMENT, _ARRAYS} or len(archive.infolist()) != 2:
                raise ValueError(f"{where} is damaged: it holds {', '.join(infos)}")
            size = _size_of(file)
            for info in infos.values():
                # Sizes are only claims until they are read: nothing may be larger than the file it is in.
                if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                    raise ValueError(f"{where} is damaged: {info.filename} is compressed")
                if info.file_size > size or (info.filename == _DOCUMENT and info.file_size > _LARGEST_DOCUMENT):
                    raise ValueError(f"{where} is damaged: {info.filename} cannot have {info.file_size} bytes")
            text, packed = archive.read(_DOCUMENT), archive.read(_ARRAYS)
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"{where} holds no bdpi agent")
        if document.get("version") != VERSION:
            version = document.get("version")
            raise ValueError(f"{where} has version {version!r} of the format, and {VERSION} is known: use a newer bdpi")
        return document, safetensors.numpy.load(packed)
    except (
        zipfile.BadZipFile,
        UnicodeDecodeError,
        json.JSONDecodeError,
        RecursionError,
        EOFError,
        NotImplementedError,
        RuntimeError,  # encrypted
        OverflowError,
        KeyError,
        TypeError,
        AttributeError,
        safetensors.SafetensorError,
        OSError,
    ) as error:
        raise ValueError(
            f"{where} is not a saved agent, or it is damaged: {error}; take another copy of it, or train again"
        ) from error


def _size_of(file: Any) -> int:
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(position)
    return int(size)
