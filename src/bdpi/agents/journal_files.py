"""Journals as files for other programs, there and back: NumPy's NPZ, and Parquet.

Both have a column for each part of a transition: ``observations`` (of Dict spaces: ``observations.KEY``),
``next_observations``, ``actions``, ``rewards``, ``terminated``, ``truncated``, ``discounts`` (NaN or null: that of the
agent), ``masks``, ``next_masks`` and ``environments`` (where an agent learned in several at once, the number of that
one); and the spaces and the journal's id as JSON. Neither runs anything when it is read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bdpi.agents.journal import Journal, JournalError
from bdpi.agents.journal_columns import MASKS, Chunk, Columns
from bdpi.storage.atomic import refuse_journal, replacing, write_atomically
from bdpi.storage.reading import UNREADABLE, most_unpacked, n_bytes, read_header

#: Told how many transitions are done, and of how many.
Progress = Callable[[int, int], object]

_SPACES = "spaces"
_LARGEST_JSON = 64 << 20  # bytes
_AT_ONCE = 200  # transitions that are appended by one statement
_UNPACKED = 20  # how many times its size an export may hold


def _silent(done: int, total: int) -> None:
    pass


# -- NPZ --------------------------------------------------------------------------------------------------------


def export_npz(journal: Journal, path: str | os.PathLike[str], progress: Progress = _silent) -> int:
    """Write the transitions to a compressed NumPy file; returns how many. All of them have to fit in memory.

    :param journal: may go on growing meanwhile
    :param path: of the file, which is replaced when the new one is complete
    :param progress: told now and then how far this is
    """
    n = len(journal)
    columns = Columns(journal.observation_space, journal.action_space, journal.id)
    arrays = {name: np.empty((n, *column.shape), column.dtype) for name, column in columns.named.items()}
    given = {f"{name}s": False for name in MASKS}
    done = 0
    for chunk in columns.chunks(journal, n):
        for name, values in chunk.arrays.items():
            arrays[name][done : done + len(chunk)] = values
        for name, which in chunk.given.items():
            given[name] |= bool(which.any())
        done += len(chunk)
        progress(done, n)
    held = {name: array[:done] for name, array in arrays.items() if given.get(name, True)}
    held[_SPACES] = np.array(columns.as_json())
    write_atomically(Path(path), lambda file: np.savez_compressed(file, **held))  # type: ignore[arg-type]
    return done


def import_npz(path: str | os.PathLike[str], journal_path: str | os.PathLike[str], progress: Progress = _silent) -> int:
    """Append the transitions of :func:`export_npz` to a journal, all or none; returns how many.

    :param path: of the NumPy file
    :param journal_path: of the journal, which is made where there is none
    :param progress: told now and then how far this is
    :raises JournalError: for a file that is damaged or something else, and for a journal of other spaces
    """
    with _explained(path), zipfile.ZipFile(path) as archive:
        if len(set(archive.namelist())) != len(archive.namelist()):
            raise ValueError("it holds two arrays of the same name")
        columns = Columns.from_json(_read_json(archive))
    return _append(_npz_chunks(Path(path), columns), columns, journal_path, progress)


def _read_json(archive: zipfile.ZipFile) -> str:
    if f"{_SPACES}.npy" not in archive.namelist():
        raise ValueError(f"it has no array {_SPACES}, which says what it holds")
    with archive.open(f"{_SPACES}.npy") as file:
        shape, dtype = read_header(file, _SPACES)
        if dtype.kind != "U" or int(np.prod(shape, dtype=object)) != 1 or dtype.itemsize > _LARGEST_JSON:
            raise ValueError(f"{_SPACES} is not one text")
        return str(np.frombuffer(file.read(dtype.itemsize), dtype)[0])


def _npz_chunks(path: Path, columns: Columns) -> Iterator[tuple[Chunk, int]]:
    """Transitions, and how many there are in all. All arrays are read side by side, a few rows at a time."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_explained(path))
        archive = stack.enter_context(zipfile.ZipFile(path))
        held = [name for name in columns.named if f"{name}.npy" in archive.namelist()]
        _check_complete(held, columns)
        files = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in held}
        headers = {name: read_header(file, name) for name, file in files.items()}
        n = headers["actions"][0][0] if headers["actions"][0] else -1
        for name, (shape, _) in headers.items():
            if shape != (n, *columns.named[name].shape):
                raise ValueError(f"{name} has shape {shape}, where {(n, *columns.named[name].shape)} belongs")
        _check_size(sum(n_bytes(*header) for header in headers.values()), path)
        for start in range(0, n, columns.rows):
            rows = min(columns.rows, n - start)
            arrays = {
                name: columns.converted(name, _read_rows(files[name], name, (rows, *shape[1:]), dtype))
                for name, (shape, dtype) in headers.items()
            }
            yield _completed(arrays, columns, start), n
        for name, file in files.items():
            if file.read(1):
                raise ValueError(f"{name} is longer than it says")


def _read_rows(file: IO[bytes], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = n_bytes(shape, dtype)
    content = file.read(size)
    if len(content) != size:
        raise ValueError(f"{name} ends too early")
    return np.frombuffer(content, dtype).reshape(shape)


# -- Parquet ----------------------------------------------------------------------------------------------------


def export_parquet(journal: Journal, path: str | os.PathLike[str], progress: Progress = _silent) -> int:
    """Write the transitions to a Parquet file, a few at a time; returns how many.

    Arrays become lists, the last axis changing fastest.

    :param journal: may go on growing meanwhile
    :param path: of the file, which is replaced when the new one is complete
    :param progress: told now and then how far this is
    :raises JournalError: without pyarrow
    """
    arrow, parquet = _pyarrow()
    n, done = len(journal), 0
    columns = Columns(journal.observation_space, journal.action_space, journal.id)
    try:
        fields = []
        for name, column in columns.named.items():
            numbers = arrow.from_numpy_dtype(column.dtype)
            fields.append(arrow.field(name, arrow.list_(numbers) if column.shape else numbers))
        schema = arrow.schema(fields, metadata={_SPACES: columns.as_json()})
    except arrow.ArrowException as error:
        raise JournalError(f"{journal.observation_space} does not fit into Parquet: {error}. Use .npz.") from error

    def write(file: Any) -> None:
        nonlocal done
        with parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            for chunk in columns.chunks(journal, n):
                table = [_arrow_array(arrow, field, chunk) for field in schema]
                writer.write_table(arrow.Table.from_arrays(table, schema=schema))
                done += len(chunk)
                progress(done, n)

    try:
        write_atomically(Path(path), write)
    except arrow.ArrowException as error:
        raise JournalError(f"{path} cannot be written: {error}. Use .npz.") from error
    return done


def _arrow_array(arrow: Any, field: Any, chunk: Chunk) -> Any:
    values, given = chunk.arrays[field.name], chunk.given.get(field.name)
    if given is not None:
        return arrow.array([row if has else None for row, has in zip(values, given, strict=True)], field.type)
    if values.ndim == 1:
        return arrow.array(values, field.type, mask=np.isnan(values) if field.name == "discounts" else None)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * (values.size // max(1, len(values)))
    return arrow.ListArray.from_arrays(offsets, arrow.array(values.reshape(-1)), type=field.type)


def import_parquet(
    path: str | os.PathLike[str], journal_path: str | os.PathLike[str], progress: Progress = _silent
) -> int:
    """Append the transitions of :func:`export_parquet` to a journal, all or none; returns how many.

    :param path: of the Parquet file
    :param journal_path: of the journal, which is made where there is none
    :param progress: told now and then how far this is
    :raises JournalError: for a file that is damaged or something else, for a journal of other spaces; without pyarrow
    """
    _, parquet = _pyarrow()
    with _explained(path), parquet.ParquetFile(path, page_checksum_verification=True) as file:
        about = (file.schema_arrow.metadata or {}).get(_SPACES.encode())
        if about is None:
            raise ValueError(f"it has no entry {_SPACES} in its metadata, which says what it holds")
        columns = Columns.from_json(about)
    return _append(_parquet_chunks(Path(path), columns), columns, journal_path, progress)


def _parquet_chunks(path: Path, columns: Columns) -> Iterator[tuple[Chunk, int]]:
    arrow, parquet = _pyarrow()
    with _explained(path), parquet.ParquetFile(path, page_checksum_verification=True) as file:
        held = [name for name in columns.named if name in file.schema_arrow.names]
        _check_complete(held, columns)
        done, n = 0, int(file.metadata.num_rows)
        _check_size(n * columns.row_bytes, path)
        _check_parquet(arrow, file, {name: columns.named[name].shape for name in held})
        file.scan_contents()  # raises for damaged columns; to ask for their metadata would end the program
        _check_size(_unpacked_size(file.metadata, n, {name: columns.named[name].size for name in held}), path)
        for batch in file.iter_batches(columns.rows):
            given = {name: batch.column(name).is_valid().to_numpy(zero_copy_only=False) for name in held}
            arrays = {}
            for name in held:
                may_miss = name == "discounts" or name.removesuffix("s") in MASKS
                if not may_miss and not given[name].all():
                    raise ValueError(f"{name} of transition {done + int(given[name].argmin()) + 1} is missing")
                values = np.full(
                    (len(batch), *columns.named[name].shape),
                    np.nan if name == "discounts" else 1,
                    columns.named[name].dtype,
                )
                values[given[name]] = columns.converted(
                    name, _numpy_array(arrow, batch.column(name).drop_null(), columns.named[name].shape, name)
                )
                arrays[name] = values
            yield _completed(arrays, columns, done, given), n
            done += len(batch)
        if done != n:
            raise ValueError(f"it has {done} transitions instead of {n}")


def _check_parquet(arrow: Any, file: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """:raises ValueError: for columns of anything but numbers and lists of numbers: text can be of any length"""
    for name, shape in shapes.items():
        kind, numbers = file.schema_arrow.field(name).type, int(np.prod(shape))
        is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        is_list |= arrow.types.is_fixed_size_list(kind) and kind.list_size == numbers
        inner = kind.value_type if shape and is_list else kind
        if not (arrow.types.is_integer(inner) or arrow.types.is_floating(inner) or arrow.types.is_boolean(inner)):
            raise ValueError(
                f"{name} holds {kind}, where {f'lists of {numbers} numbers' if shape else 'numbers'} belong"
            )


def _unpacked_size(about: Any, n: int, sizes: dict[str, int]) -> int:
    """Bytes that the columns say to have.

    :param n: rows
    :param sizes: numbers in a row of each column, by its name
    :raises ValueError: when a column says that it has more numbers than its rows can hold
    """
    unpacked, left = 0, {name: n * size for name, size in sizes.items()}
    for group in map(about.row_group, range(about.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            name = next((each for each in left if f"{chunk.path_in_schema}.".startswith(f"{each}.")), None)
            if name is not None:
                unpacked += chunk.total_uncompressed_size
                left[name] -= chunk.num_values
                if min(chunk.total_uncompressed_size, chunk.num_values, left[name]) < 0:
                    raise ValueError(f"{name} does not have {sizes[name]} numbers in each of {n} rows")
    return unpacked


def _numpy_array(arrow: Any, array: Any, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    n = len(array)
    if shape:
        if not hasattr(array.type, "value_type"):
            raise ValueError(f"{name} holds {array.type}, where lists belong")
        lengths = arrow.compute.list_value_length(array).to_numpy(zero_copy_only=False)
        if (lengths != int(np.prod(shape))).any():
            raise ValueError(f"{name} has lists that do not have {int(np.prod(shape))} numbers")
        array = array.flatten()
    if array.null_count:
        raise ValueError(f"{name} has lists in which numbers are missing")
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    return values.reshape(n, *shape)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise JournalError('Parquet needs pyarrow: pip install "bdpi[parquet]", or use a file .npz') from error
    return pyarrow, pyarrow.parquet


# -- both -------------------------------------------------------------------------------------------------------


def _check_complete(held: list[str], columns: Columns) -> None:
    missing = [name for name in columns.named if name not in held and name.removesuffix("s") not in MASKS]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")


def _check_size(unpacked: int, path: Path) -> None:
    """:raises ValueError: when a file says that it holds much more than its size allows for"""
    most = most_unpacked(path.stat().st_size, _UNPACKED)
    if unpacked > most:
        raise ValueError(
            f"it says that it holds {unpacked} bytes, and {most} at most make sense; BDPI_UNPACK_MB=N raises it"
        )


def _completed(
    arrays: dict[str, NDArray[Any]], columns: Columns, before: int, given: dict[str, NDArray[np.bool_]] | None = None
) -> Chunk:
    """A chunk with the masks that the file has, if any, and whose transitions make sense."""
    rows, which = len(arrays["actions"]), {}
    for name in (f"{mask}s" for mask in MASKS):
        which[name] = np.full(rows, name in arrays) if given is None or name not in given else given[name]
        arrays.setdefault(name, np.ones((rows, *columns.named[name].shape), dtype=bool))
    chunk = Chunk(arrays, which)
    columns.check(chunk, before)
    return chunk


def _append(
    chunks: Iterator[tuple[Chunk, int]], columns: Columns, journal_path: str | os.PathLike[str], progress: Progress
) -> int:
    """Write the chunks, all or none."""
    target = Path(journal_path)
    if target.exists() and target.stat().st_size > 0:
        with Journal(target, columns.observation_space, columns.action_space):
            pass  # it is a journal, and of these spaces
        _refuse_if_open(target)
        return _append_to(target, chunks, columns, progress)
    with replacing(target) as partial:
        try:
            return _append_to(partial, chunks, columns, progress)
        finally:
            for ending in ("-wal", "-shm"):
                partial.with_name(partial.name + ending).unlink(missing_ok=True)


def _append_to(path: Path, chunks: Iterator[tuple[Chunk, int]], columns: Columns, progress: Progress) -> int:
    done = 0
    with (
        Journal(path, columns.observation_space, columns.action_space, new_id=columns.journal_id) as journal,
        _transaction(journal),
    ):
        for chunk, n in chunks:
            steps = columns.steps(chunk)
            while some := list(itertools.islice(steps, _AT_ONCE)):
                journal.append(*some)
            done += len(chunk)
            progress(done, n)
    return done


@contextlib.contextmanager
def _transaction(journal: Journal) -> Iterator[None]:
    run = journal._file.run
    with journal._file.explained("written"):
        run("BEGIN IMMEDIATE")
        try:
            yield
            run("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has undone it already
                run("ROLLBACK")
            raise


def _refuse_if_open(path: Path) -> None:
    """A robot that writes a journal would stumble over transitions that it did not write.

    :raises JournalError: when another program has the journal open
    """
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.5)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        raise JournalError(
            f"{path} cannot be added to: {error}. Another program has it open; stop that first, or import into a new "
            "journal."
        ) from error
    finally:
        connection.close()


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        refuse_journal(path)
        yield
    except (JournalError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise JournalError(f"{path} cannot be imported: {reason}. Is it damaged, or another kind of file?") from error
