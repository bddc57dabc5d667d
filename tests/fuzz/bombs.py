"""Small files that would take gigabytes or minutes.

``python bombs.py FOLDER NAME ...`` uses some, and prints what each took.

All are below 10 MB. The first ones are those that took 6 to 8 GB, or over a minute, before they were refused.
"""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import watched
from bdpi.agents.journal import Journal, Transition
from kinds import KINDS, Files, packed, unpacked

Bomb = Callable[[Files], Files]
BOMBS: dict[str, tuple[str, Bomb]] = {}
SLOW: set[str] = set()  # bombs that take seconds to make, or to read


def bomb(kind: str, *, slow: bool = False) -> Callable[[Bomb], Bomb]:
    """Declare a bomb: what to change in intact files of a kind."""

    def declare(make: Bomb) -> Bomb:
        BOMBS[make.__name__] = kind, make
        if slow:
            SLOW.add(make.__name__)
        return make

    return declare


def npy(shape: tuple[int, ...], dtype: str = "<f4", megabytes: int = 0) -> Iterator[bytes]:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    yield stream.getvalue()
    for _ in range(megabytes):
        yield bytes(1 << 20)


def rezipped(whole: bytes, **parts: Iterator[bytes]) -> bytes:
    """An NPZ file with other arrays."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, True, 1) as new:
        for name in sorted({*old.namelist(), *(f"{part}.npy" for part in parts)}):
            with new.open(name, "w") as file:
                for piece in parts.get(name.removesuffix(".npy")) or [old.read(name)]:
                    file.write(piece)
    return stream.getvalue()


def agent_with(files: Files, **attributes: Any) -> Files:
    with zipfile.ZipFile(io.BytesIO(files["agent.zip"])) as archive:
        document, arrays = json.loads(archive.read("agent.json")), archive.read("arrays.safetensors")
    document["attributes"] |= attributes
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("agent.json", json.dumps(document))
        archive.writestr("arrays.safetensors", arrays)
    return {"agent.zip": stream.getvalue()}


LARGE = {"type": "Box", "shape": [1000, 9000], "dtype": "float32", "low": 0.0, "high": 1.0}
BOXES = {"type": "Dict", "spaces": {str(number): LARGE for number in range(100)}}


@bomb("replay", slow=True)
def a_memory_of_a_gigabyte_of_zeros(files: Files) -> Files:
    return {"replay.npz": rezipped(files["replay.npz"], rewards=npy((1000 << 18,), megabytes=1000))}


@bomb("replay")
def a_memory_that_says_a_terabyte(files: Files) -> Files:
    return {"replay.npz": rezipped(files["replay.npz"], rewards=npy((10**12,)))}


@bomb("journal")
def a_journal_of_many_large_boxes(files: Files) -> Files:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    content = files["robot.sqlite"]
    connection.deserialize(content[:18] + b"\1\1" + content[20:])
    connection.execute("UPDATE about SET value = ? WHERE name = 'observation_space'", (json.dumps(BOXES),))
    return {"robot.sqlite": bytes(connection.serialize())}


@bomb("export")
def an_export_of_many_large_boxes(files: Files) -> Files:
    about = {"format": "bdpi journal", "version": 2, "id": "", "observation_space": BOXES}
    text = np.array(json.dumps({**about, "action_space": {"type": "Discrete", "n": 2, "start": 0}}))
    parts = npy((), f"<U{text.dtype.itemsize // 4}")
    return {"robot": rezipped(files["robot"], spaces=iter([*parts, text.tobytes()]))}


@bomb("export", slow=True)
def an_export_of_millions_of_equal_rows(files: Files) -> Files:
    """Each array says that it is as long as the others."""
    with zipfile.ZipFile(io.BytesIO(files["robot"])) as archive, np.load(io.BytesIO(files["robot"])) as arrays:
        n, parts = 3_000_000, {}
        for name in (each.removesuffix(".npy") for each in archive.namelist()):
            if name != "spaces":
                array = arrays[name]
                one = np.ones((10_000, *array.shape[1:]), array.dtype).tobytes()
                parts[name] = iter([*npy((n, *array.shape[1:]), array.dtype.str), *[one] * (n // 10_000)])
    return {"robot": rezipped(files["robot"], **parts)}


@bomb("parquet", slow=True)
def a_parquet_file_of_many_equal_rows(files: Files) -> Files:
    import pyarrow
    from pyarrow import parquet

    table, stream = parquet.read_table(io.BytesIO(files["robot"])), io.BytesIO()
    some = pyarrow.concat_tables([table.slice(0, 1)] * 50_000).combine_chunks()
    with parquet.ParquetWriter(stream, table.schema, compression="zstd", write_page_checksum=True) as writer:
        for _ in range(60):
            writer.write_table(some)
    return {"robot": stream.getvalue()}


@bomb("journal")
def a_journal_whose_rows_share_their_pages(_: Files) -> Files:
    folder = Path(sys.argv[1]) / "shared"
    folder.mkdir()
    return {"robot.sqlite": shared_pages(folder / "robot.sqlite", 4_100_000).read_bytes()}


def shared_pages(path: Path, size: int, n: int = 7) -> Path:
    """A journal in which all rows point to the chain of pages of the first one, which alone is in the file."""
    size += next(more for more in range(4096) if _local(2 * (size + more) + 16) < 500)  # so that one page has all rows
    with Journal(path, spaces.Box(0, 1, (size,), np.uint8), spaces.Discrete(2)) as journal:
        for _ in range(n):
            journal.append(Transition(np.zeros(size, np.uint8), 0, 0.0, np.zeros(size, np.uint8), False, False))
    content = bytearray(path.read_bytes())
    leaf = next(p for p in range(4096, len(content), 4096) if content[p] == 13 and content[p + 4] == n)
    cells = [leaf + int.from_bytes(content[leaf + 8 + 2 * i : leaf + 10 + 2 * i], "big") for i in range(n)]
    heads = [_varint(content, cell) for cell in cells]
    ends = [cell + width + 1 + _local(payload) for cell, (payload, width) in zip(cells, heads, strict=True)]
    first = content[ends[0] : ends[0] + 4]
    last_page = int.from_bytes(content[ends[1] : ends[1] + 4], "big") - 1  # the last one of the first row
    for end in ends:
        content[end : end + 4] = first
    content[28:32] = last_page.to_bytes(4, "big")  # how many pages there are
    path.write_bytes(content[: 4096 * last_page])
    return path


def _local(payload: int) -> int:
    """How much of a row SQLite keeps in the page itself."""
    least = (4096 - 12) * 32 // 255 - 23
    most = least + (payload - least) % 4092
    return most if most <= 4096 - 35 else least


def _varint(content: bytearray, start: int) -> tuple[int, int]:
    value = width = 0
    while width < 9:
        byte = content[start + width]
        value, width = value << 7 | byte & 127, width + 1
        if byte < 128:
            break
    return value, width


@bomb("agent")
def an_agent_of_two_billion_threads(files: Files) -> Files:
    return agent_with(files, n_threads=2_000_000_000)


@bomb("agent")
def an_agent_of_large_layers(files: Files) -> Files:
    return agent_with(files, policy_kwargs={"net_arch": [30_000, 30_000]})


@bomb("agent")
def an_agent_of_a_large_memory(files: Files) -> Files:
    return agent_with(files, buffer_size=100_000_000)


@bomb("agent")
def an_agent_of_many_threads(files: Files) -> Files:
    return agent_with(files, n_threads=1024)


@bomb("agent")
def an_agent_of_a_large_batch(files: Files) -> Files:
    return agent_with(files, batch_size=10_000_000, buffer_size=100_000_000)


@bomb("agent")
def an_agent_of_a_batch_for_many_threads(files: Files) -> Files:
    return agent_with(files, batch_size=100_000, buffer_size=100_000_000, n_threads=1024)


@bomb("agent")
def an_agent_of_the_largest_batch(files: Files) -> Files:
    return agent_with(files, batch_size=100_000, buffer_size=100_000, n_threads=10)


@bomb("archive")
def an_archive_of_six_gigabytes(files: Files) -> Files:
    return {**files, "episodes.csv.gz": gzip.compress(bytes(1 << 20)) * 6500}


@bomb("archive", slow=True)
def an_archive_of_many_episodes(files: Files) -> Files:
    """As many as may be in a small file: short rows, 32 MB of them."""
    rows = gzip.compress(b"run,kind,return,length\n") + gzip.compress(b"0,train,0,1\n" * 80_000, 1) * 31
    return {**files, "episodes.csv.gz": rows}


@bomb("archive", slow=True)
def an_archive_of_many_entropies(files: Files) -> Files:
    described = {**json.loads(files["runs.json"]), "entropy_block": 10_000}
    arrays = rezipped(files["entropies.npz"], **{"0": npy((500 << 19,), "<f2", megabytes=500)})
    return {**files, "runs.json": json.dumps(described).encode(), "entropies.npz": arrays}


@bomb("study")
def a_study_of_aliases(_: Files) -> Files:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return {"study.yaml": "\n".join(lines).encode()}


@bomb("study")
def a_study_of_a_billion_seeds(files: Files) -> Files:
    return {"study.yaml": files["study.yaml"].replace(b"seeds: 2", b"seeds: 1000000000")}


@bomb("study", slow=True)
def a_study_of_many_series_that_show_each_other(files: Files) -> Files:
    rows = "".join(f"    s{number}: {{same_as: one/s{number - 1}}}\n" for number in range(1, 6_000))
    return {"study.yaml": files["study.yaml"] + b"    s0: {}\n" + rows.encode()}


@bomb("study")
def a_study_of_megabytes(files: Files) -> Files:
    return {"study.yaml": b"title: [" + b"a," * 4_000_000 + b"]\n" + files["study.yaml"]}


@bomb("results", slow=True)
def a_monitor_of_many_episodes(files: Files) -> Files:
    return {
        **files,
        "run0/monitor.csv": b"\n".join(files["run0/monitor.csv"].split(b"\n")[:2]) + b"\n0,1,1" * 1_600_000,
    }


@bomb("results", slow=True)
def an_index_of_many_runs(files: Files) -> Files:
    entry = ["study", "row", "CartPole-v1", "BDPI"]
    runs = [[*entry, number, f"r{number}"] for number in range(160_000)]
    return {**files, "study.json": json.dumps({"title": "", "runs": runs}).encode()}


@bomb("results", slow=True)
def an_index_of_empty_lists(files: Files) -> Files:
    return {**files, "study.json": b"[" + b"[]," * 3_300_000 + b"[]]"}


@bomb("run", slow=True)
def an_episode_of_many_actions(files: Files) -> Files:
    trace = json.loads(files["episode.json"])
    return {**files, "episode.json": json.dumps({**trace, "actions": [0] * 3_000_000}).encode()}


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        kind, make = BOMBS[name]
        (folder / name).mkdir()
        data = packed(make(unpacked(KINDS[kind].examples(folder / name)[0])))
        outcome = watched.use(kind, data, folder / "use")
        figures = {"size": len(data), "peak": watched.peak_memory() >> 20}
        print(json.dumps({"name": name, **vars(outcome), **figures}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
