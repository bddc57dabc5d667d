"""Change files so that readers get past the first check: archives are packed again, so that checksums are right, and
JSON stays JSON, most of the time."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import re
import sqlite3
import zipfile
from collections.abc import Callable
from typing import Any

from bdpi.storage.reading import UNREADABLE
from kinds import packed, unpacked

#: Changes some bytes: given these, and how many there may be at most.
Bytes = Callable[[bytes, int], bytes]

_ODD: list[Any] = [None, True, -1, 0, 1, 2, 0.5, 1e308, 10**30, 2**31, 2**63, float("nan"), float("inf")]
_ODD += ["", "x\x1b", "\ud800", "../x", "/tmp/x", "os:system", [], {}, [[]], {"a": 1}, [1, 2], {"is": "array"}]
_MORE = 64  # bytes that a file may grow by
#: Where an SQLite file says its version, its sizes, and whose it is.
_HEADER = (16, 18, 19, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 68)
_NUMBERS = (0, 1, 2, 3, 9, 2**16 - 1, 2**31 - 1, 2**32 - 1)
_TABLES = (
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
    "UPDATE transitions SET id = 9223372036854775807 WHERE id = 1",
)


def mutate(data: bytes, rng: random.Random, change: Bytes) -> bytes:
    """Files with a change to one of them, or to which there are."""
    files = unpacked(data)
    name = rng.choice(sorted(files))
    what = rng.random()
    if what < 0.01 and len(files) > 1:
        del files[name]
    elif what < 0.02:
        files[name] = files[rng.choice(sorted(files))]
    else:
        for _ in range(rng.choice([1, 1, 2, 4])):
            files[name] = _changed(files[name], rng, change)
    return packed(files)


def _changed(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    """By what it is; or, now and then, without a look at that."""
    if rng.random() < 0.8:
        for looks_so, how in _FORMATS:
            if looks_so(content):
                with contextlib.suppress(*UNREADABLE, sqlite3.Error):
                    return how(content, rng, change)
    return change(content, len(content) + _MORE)


def _zip(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = [(info.filename, archive.read(info), info.compress_type) for info in archive.infolist()]
    index = rng.randrange(len(parts))
    name, part, method = parts[index]
    what = rng.random()
    if what < 0.02:
        del parts[index]
    elif what < 0.04:
        parts.append((rng.choice([name, "more.npy", "../x"]), part, method))
    else:
        parts[index] = name, _changed(part, rng, change), method
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, part, method in parts:
            archive.writestr(zipfile.ZipInfo(name), part, method)
    return stream.getvalue()


def _gzip(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    return gzip.compress(_changed(gzip.decompress(content), rng, change), 1)


def _json(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    return json.dumps(_other(json.loads(content), rng)).encode()


def _other(value: Any, rng: random.Random) -> Any:
    """The same with one value that is of another kind, elsewhere, or gone."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        copy = value.copy()
        key = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
        what = rng.random()
        if what < 0.1:
            del copy[key]
        elif what < 0.15 and isinstance(copy, dict):
            copy[rng.choice([*copy, "is", "autosave", "more"])] = copy[key]
        elif what < 0.2 and isinstance(copy, list):
            copy.extend(copy[: rng.randint(1, 20)])
        else:
            copy[key] = _other(copy[key], rng)
        return copy
    if isinstance(value, int | float) and rng.random() < 0.5:
        return rng.choice([value + 1, -value, value * 1000, value / 3, 2**62 + value])
    return rng.choice(_ODD)


def _tensors(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    """Of safetensors: the size of a head, the head, the numbers."""
    end = 8 + int.from_bytes(content[:8], "little")
    head, rest = content[8:end], content[end:]
    if rng.random() < 0.5:
        head = _json(head, rng, change)
        return len(head).to_bytes(8, "little") + head + rest
    return content[:end] + change(rest, len(rest))


def _array(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    """Of NumPy: a head, the numbers."""
    end = 10 + int.from_bytes(content[8:10], "little")
    if rng.random() < 0.5:
        return content[:10] + change(content[10:end], end - 10).ljust(end - 10) + content[end:]
    return content[:end] + change(content[end:], len(content) - end)


def _database(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    """An intact journal in which something else is, or which says that it is another."""
    what = rng.random()
    if what < 0.4:
        return change(content, len(content))
    if what < 0.5:
        where, number = rng.choice(_HEADER), rng.choice(_NUMBERS)
        return content[:where] + number.to_bytes(4, "big") + content[where + 4 :]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with contextlib.closing(connection):
        connection.deserialize(content[:18] + b"\1\1" + content[20:])  # without a log, which memory cannot have
        if what < 0.6:
            connection.executescript(rng.choice(_TABLES))
        elif what < 0.8:
            names = [row[1] for row in connection.execute("PRAGMA table_info(transitions)")]
            value = rng.choice([None, "text", -1, 2**62, 1e308, b"", b"\0" * 5000, float("inf"), rng.randbytes(20)])
            row = f"{rng.choice(names)} = ? WHERE id = {rng.randint(1, 20)}"
            connection.execute(f"UPDATE transitions SET {row}", (value,))
        else:
            rows = connection.execute("SELECT name, value FROM about").fetchall()
            name, value = rng.choice(rows)
            value = _changed(value.encode(), rng, change).decode(errors="replace")
            connection.execute("UPDATE about SET value = ? WHERE name = ?", (value, name))
        return bytes(connection.serialize()[:18]) + content[18:20] + bytes(connection.serialize()[20:])


def _text(content: bytes, rng: random.Random, change: Bytes) -> bytes:
    """YAML, CSV: another word or number, or a line more."""
    text = content.decode()
    words = list(re.finditer(r"[\w.+-]+", text))
    if rng.random() < 0.5 or not words:
        return change(content, len(content) + _MORE)
    word, other = rng.choice(words), rng.choice([*map(str, _ODD), "1e9", "*few", "&few", "999999999", "-", "\n", "\t"])
    if rng.random() < 0.3:
        other = rng.choice(words).group()
    return (text[: word.start()] + other + text[word.end() :]).encode(errors="replace")


_FORMATS: list[tuple[Callable[[bytes], bool], Callable[[bytes, random.Random, Bytes], bytes]]] = [
    (lambda content: content.startswith(b"PK"), _zip),
    (lambda content: content.startswith(b"\x1f\x8b"), _gzip),
    (lambda content: content.startswith(b"SQLite format 3"), _database),
    (lambda content: content.startswith(b"\x93NUMPY"), _array),
    (lambda content: content[8:10] == b'{"', _tensors),
    (lambda content: content[:1] in (b"{", b"["), _json),
    (lambda content: b"\0" not in content, _text),
]
