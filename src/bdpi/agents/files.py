"""Saved agents: one file each, written at once or not at all, and read without running anything in it.

A file is a zip archive of uncompressed parts: ``agent.json``, ``arrays.safetensors`` with the networks, Adam's moments
and, if wanted, the replay memory, and ``data``, a summary for other programs, which is never read here.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bdpi.agents.encoding import Arrays
from bdpi.storage.atomic import make_folder, refuse_journal, write_atomically
from bdpi.storage.reading import Damaged, parse_json

FORMAT, VERSION = "bdpi agent", 1
_DOCUMENT, _ARRAYS = "agent.json", "arrays.safetensors"
_SUMMARY = "data"  # the name that huggingface_sb3 looks for
_LARGEST_DOCUMENT = 64 << 20  # bytes
_MOST_PARTS = 500_000  # lists and dictionaries of the document, which take 30 times their bytes in memory
_PIECE = 1 << 20  # bytes that are written at a time

File = str | os.PathLike[str] | io.BufferedIOBase


def write_agent(path: File, document: dict[str, Any], arrays: Arrays, summary: dict[str, Any] | None = None) -> None:
    """Write a saved agent.

    :param path: ``.zip`` is added where there is no ending, and folders are made; or an open file
    :param document: JSON
    :param arrays: by their names; contiguous
    :param summary: JSON for other programs; :func:`read_agent` does not read it
    """
    texts = {_DOCUMENT: {"format": FORMAT, "version": VERSION, **document}}
    if summary is not None:
        texts[_SUMMARY] = summary
    parts = {name: json.dumps(text, indent=1, allow_nan=False).encode() for name, text in texts.items()}
    head = _head_of(arrays)

    def write(file: Any) -> None:
        archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        try:
            for name, text in parts.items():
                archive.writestr(zipfile.ZipInfo(name), text)  # without the time: same agent, same file
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
            archive.fp = None  # not needed, and it would complain of the part that is still open
            raise

    if not isinstance(path, str | os.PathLike):
        write(path)
        return
    target = with_ending(pathlib.Path(path))
    make_folder(target.parent)
    write_atomically(target, write)


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
            f"{name} is a pickle, which can run anything when it is read, and is not read here. If you trust its "
            "author, convert it once: memory = stable_baselines3.common.save_util.load_from_pkl(path), and then "
            "memory.save_npz(new_path) if an agent of bdpi wrote it, else agent.add_demonstrations(memory)"
        )


def read_parameters(path: File) -> Arrays:
    """The arrays of a saved agent of any class: those of its networks and of its learner, by part and name.

    :raises ValueError: for a file that is damaged or foreign
    """
    return _open(path)[1]


def class_of(path: File) -> str:
    """Name of the class of a saved agent.

    :raises ValueError: for a file that is damaged or foreign
    """
    return str(_open(path)[0].get("class"))


def read_agent(path: File, class_names: Sequence[str]) -> tuple[dict[str, Any], Arrays]:
    """What :func:`write_agent` was given.

    :param class_names: the agent's class, then those that it is derived from, whose files it reads, too
    :raises ValueError: for a file that is damaged, foreign, or of another class
    """
    document, arrays = _open(path)
    saved_class = document.get("class")
    if saved_class not in class_names:
        raise ValueError(
            f"{path} holds an agent of class {saved_class}; {class_names[0]}.load reads what its save wrote"
        )
    return document, arrays


def _open(path: File) -> tuple[dict[str, Any], Arrays]:
    if not isinstance(path, str | os.PathLike):
        return _read(path, getattr(path, "name", "the file"))
    file = pathlib.Path(path)
    if not file.exists() or file.is_dir():
        file = file.with_name(f"{file.name}.zip")  # which may have a dot before it: pole-0.5.zip
    if not file.exists():
        raise FileNotFoundError(f"there is no saved agent {path}")
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
            if infos.keys() - {_SUMMARY} != {_DOCUMENT, _ARRAYS} or len(archive.infolist()) != len(infos):
                raise ValueError(f"{where} is damaged: it holds {', '.join(infos)}")
            size = _size_of(file)
            for info in infos.values():
                # Sizes are only claims until they are read: nothing may be larger than the file it is in.
                if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                    raise ValueError(f"{where} is damaged: {info.filename} is compressed")
                if info.file_size > size or (info.filename == _DOCUMENT and info.file_size > _LARGEST_DOCUMENT):
                    raise ValueError(f"{where} is damaged: {info.filename} cannot have {info.file_size} bytes")
            text, packed = archive.read(_DOCUMENT), archive.read(_ARRAYS)
        if text.count(b"{") + text.count(b"[") > _MOST_PARTS:
            raise ValueError(f"{where} is damaged: {_DOCUMENT} has more than {_MOST_PARTS} lists and dictionaries")
        document = parse_json(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"{where} holds no bdpi agent")
        if document.get("version") != VERSION:
            version = document.get("version")
            raise ValueError(f"{where} has version {version!r} of the format, and {VERSION} is known: use a newer bdpi")
        return document, _arrays(packed)
    except (
        zipfile.BadZipFile,
        Damaged,
        EOFError,
        NotImplementedError,
        RuntimeError,  # encrypted
        OverflowError,
        KeyError,
        TypeError,
        AttributeError,
        UnicodeDecodeError,
        safetensors.SafetensorError,
        OSError,
    ) as error:
        raise ValueError(
            f"{where} is not a saved agent, or it is damaged: {error}; take another copy of it, or train again"
        ) from error


def _arrays(packed: bytes) -> Arrays:
    try:
        return safetensors.numpy.load(packed)
    except ValueError as error:  # what NumPy says of sizes whose product is 0 and that are too large all the same
        raise Damaged(str(error)) from None


def _size_of(file: Any) -> int:
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(position)
    return int(size)
