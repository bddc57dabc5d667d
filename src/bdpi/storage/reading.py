"""Read what others may have written: nothing hangs, and nothing takes more memory than the file's size warrants.

Whatever is wrong with a file is a :class:`Damaged`, which callers skip or show.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_MB = 1 << 20
_LARGEST_JSON = 64 * _MB
_DEEPEST = 60  # levels of JSON
_FORMATS = ((1, 0), (2, 0))  # of NumPy's arrays
_ARRAYS = 320  # megabytes that a small file may hold: whole arrays are read fast
_LONGEST_HEADER, _MOST_ARRAYS = 1000, 5000  # NumPy takes milliseconds for some long headers


class Damaged(ValueError):
    """A file that is damaged, of another kind, or larger than it may be. The message says why, not which file."""


def most_unpacked(size: int, factor: int = 32, least: int = 32) -> int:
    """How many bytes a compressed file may hold: some times its own size, and not too few for a small one.

    The environment variable ``BDPI_UNPACK_MB`` raises it.

    :param size: of the file, in bytes
    :param factor: how many times
    :param least: megabytes that any file may hold
    """
    return max(least * _MB, factor * size, int(os.environ.get("BDPI_UNPACK_MB", "0")) * _MB)


def printable(text: str) -> str:
    """The text without what moves a terminal's cursor, or tells it something: names in files may hold that."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a file: not of a pipe or a device, which might never end.

    :param most: bytes that it may have; None: any number
    :raises Damaged: when it is no file, or larger
    :raises OSError: when it cannot be read
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged("it is not a file")
        if most is not None and found.st_size > most:
            raise Damaged(f"it has {found.st_size} bytes, and {most} at most make sense")
        return file.read()


def read_json(path: Path) -> Any:
    """What a file of JSON holds.

    :raises Damaged: when it is none
    :raises OSError: when it cannot be read
    """
    return parse_json(read_bytes(path, _LARGEST_JSON))


def parse_json(text: str | bytes) -> Any:
    """What JSON says.

    :raises Damaged: when it is none, is nested too deeply, or has text that cannot be written again
    """
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError, SystemError) as error:  # the last of arrays of text that no Unicode has
        raise Damaged(f"it is no JSON: {str(error) or type(error).__name__}") from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return value
    raise Damaged(f"it is nested more than {_DEEPEST} levels deep")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list):
        return [part for part in value if part and isinstance(part, (dict, list, str))]  # quicker than dict | list
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Damaged("it has half a character, a lone surrogate") from None
    return []


def read_gzip(path: Path, factor: int) -> bytes:
    """What a compressed file holds.

    :param factor: how many times its size it may hold, see :func:`most_unpacked`
    :raises Damaged: when it is none, or holds more
    :raises OSError: when it cannot be read
    """
    packed = read_bytes(path)
    most = most_unpacked(len(packed), factor)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(most + 1)
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise Damaged(f"it is not compressed by gzip: {error}") from None
    if len(content) > most:
        raise Damaged(f"it unpacks to more than {most} bytes; BDPI_UNPACK_MB=N allows for N megabytes")
    return content


def read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in NumPy's format, of which nothing is read yet.

    :param name: of the array, for messages
    :raises Damaged: for anything but numbers and text in C's order
    """
    version = np.lib.format.read_magic(file)
    if version not in _FORMATS:
        raise Damaged(f"{name} has version {version} of NumPy's format")
    read, width = np.lib.format.read_array_header_1_0, 2
    if version != _FORMATS[0]:
        read, width = np.lib.format.read_array_header_2_0, 4
    size = file.read(width)
    if int.from_bytes(size, "little") > _LONGEST_HEADER:
        raise Damaged(f"{name} has a header of {int.from_bytes(size, 'little')} bytes")
    shape, is_fortran, dtype = read(io.BytesIO(size + file.read(int.from_bytes(size, "little"))))
    if dtype.hasobject or dtype.kind not in "biufU":
        raise Damaged(f"{name} holds {dtype}, not numbers")
    if is_fortran and len(shape) > 1:
        raise Damaged(f"{name} is in Fortran's order: use numpy.ascontiguousarray before")
    return shape, dtype


def n_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Of an array, whatever its header says."""
    return int(np.prod(shape, dtype=object)) * dtype.itemsize


Headers = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


def read_arrays(
    file: IO[bytes], room: Callable[[Headers], dict[str, NDArray[Any]]] = lambda headers: {}
) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file, whose sizes are added up before any of them is read.

    :param room: makes places for some of them, by their shapes and types; the others get one of their own
    :raises Damaged: when it is none, or holds more than it may
    """
    most = most_unpacked(file.seek(0, os.SEEK_END), least=_ARRAYS)
    file.seek(0)
    headers: Headers = {}
    arrays, starts = {}, []
    try:
        with zipfile.ZipFile(file) as archive:
            if len(archive.infolist()) > _MOST_ARRAYS:
                raise Damaged(f"it has {len(archive.infolist())} arrays, more than {_MOST_ARRAYS}")
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                with archive.open(info) as part:
                    header = read_header(part, name)
                    most -= n_bytes(*header)
                    if most < 0 or name in headers:
                        raise Damaged(f"{name} is there twice, or too large; BDPI_UNPACK_MB=N allows for N megabytes")
                    headers[name] = header
                    starts.append(part.tell())
            places = room(headers)
            for info, start, (name, (shape, dtype)) in zip(archive.infolist(), starts, headers.items(), strict=True):
                array = places.get(name)
                if array is None:
                    array = np.empty(n_bytes(shape, dtype), np.uint8).view(dtype).reshape(shape)
                content = array.reshape(-1).view(np.uint8)
                with archive.open(info) as part:
                    part.seek(start)
                    if _fill(part, content) != len(content) or part.read(1):
                        raise Damaged(f"{name} has not as many numbers as it says")
                arrays[name] = array
    except Damaged:
        raise
    except UNREADABLE as error:
        raise Damaged(str(error) or type(error).__name__) from None
    return arrays


def _fill(part: IO[bytes], content: NDArray[np.uint8]) -> int:
    done, view = 0, memoryview(content)  # type: ignore[arg-type]
    while done < len(content):
        some = part.readinto(view[done : done + _MB])  # type: ignore[attr-defined]
        if not some:
            break
        done += some
    return done


#: What comes out of ``zipfile``, NumPy and Parquet when a file is damaged, or something else.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,  # headers of arrays are Python
    SyntaxError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    NotImplementedError,
    RuntimeError,  # encrypted
    OverflowError,
    MemoryError,
    OSError,  # a place before the beginning of the file
)
