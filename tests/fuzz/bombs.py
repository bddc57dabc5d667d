"""Small files that would take gigabytes or minutes.

``python bombs.py FOLDER NAME ...`` uses some, and prints what each took.

All are below 10 MB. The first ones are those that took 6 to 8 GB, or over a minute, before they were refused.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import safetensors.numpy
from gymnasium import spaces
from numpy.typing import NDArray

import watched
from bdpi import TabularBDPI
from bdpi.agents.journal import Journal, Transition
from kinds import KINDS, SMALL, Files, agent_of, packed, unpacked

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


def agent_with(
    files: Files, *, parts: Any = None, filler: int = 0, weights: int = 0, n_choices: int = 0, **attributes: Any
) -> Files:
    """An agent's file with other settings.

    :param parts: names of groups of arrays that the file says it has; None: as it is
    :param filler: bytes of an array that no agent has
    :param weights: of a network that no agent has
    :param n_choices: whose draws the file has; 0: as it is
    """
    with zipfile.ZipFile(io.BytesIO(files["agent.zip"])) as archive:
        document, arrays = json.loads(archive.read("agent.json")), archive.read("arrays.safetensors")
    document.get("attributes", {}).update(attributes)
    document |= {} if parts is None else {"parts": parts}
    if filler or weights or n_choices:
        held = safetensors.numpy.load(arrays)
        held |= {"learner.filler": np.zeros(filler, np.uint8)} if filler else {}
        held |= {"learner.weights": np.zeros(weights, np.float32)} if weights else {}
        held |= {"attributes._draws.times": np.ones((1, n_choices))} if n_choices else {}
        arrays = safetensors.numpy.save(held)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("agent.json", json.dumps(document, separators=(",", ":")))
        archive.writestr("arrays.safetensors", arrays)
    return {**files, "agent.zip": stream.getvalue()}


def _space(**described: Any) -> Any:
    return {"is": "space", "space": described}


LARGE = {"type": "Box", "shape": [1000, 9000], "dtype": "float32", "low": 0.0, "high": 1.0}
BOXES = {"type": "Dict", "spaces": {str(number): LARGE for number in range(100)}}
BOX = {"type": "Box", "shape": [10_000_000], "dtype": "float64", "low": 0.0, "high": 1.0}
LARGEST = _space(**BOX | {"shape": [4_000_000]})
LONGEST = _space(**BOX | {"shape": [4_000_000], "dtype": "longdouble"})
NATURE = {
    "features_extractor_class": {"is": "class", "name": "stable_baselines3.common.torch_layers.NatureCNN"},
    "features_extractor_kwargs": {"features_dim": 300_000},
}
#: Agents' files with other settings: see agent_with.
AGENTS: dict[str, dict[str, Any]] = {
    "two_billion_threads": {"n_threads": 2_000_000_000},
    "many_threads": {"n_threads": 1024},
    "large_layers": {"policy_kwargs": {"net_arch": [30_000, 30_000]}},
    "many_layers": {"policy_kwargs": {"net_arch": [1] * 1_000_000}},
    "a_large_memory": {"buffer_size": 50_000_000},
    "a_large_memory_that_looks_ahead": {"n_steps": 2, "buffer_size": 5 * 10**7},
    "a_large_memory_that_keeps_each_observation_once": {"optimize_memory_usage": True, "buffer_size": 5 * 10**7},
    "a_memory_that_looks_far_ahead": {"n_steps": 10**6, "buffer_size": 10**9},
    "a_large_batch": {"batch_size": 10_000_000, "buffer_size": 50_000_000},
    "a_batch_for_many_threads": {"batch_size": 100_000, "buffer_size": 50_000_000, "n_threads": 1024},
    "the_largest_batch": {"batch_size": 100_000, "buffer_size": 100_000, "n_threads": 10},
    "a_batch_of_wide_observations": {
        "weights": 2_000_000,
        "observation_space": _space(**BOX | {"shape": [50_000], "dtype": "float32"}),
        "batch_size": 1000,
        "buffer_size": 1000,
        "n_threads": 1000,
    },
    "many_critics": {"n_critics": 500_000},
    "critics_beside_it": {"policy_kwargs": {"net_arch": [4], "n_critics": 10**9}},
    "many_parts": {"parts": ["policy", "learner", *["p"] * 2_000_000]},
    "many_classes": {"policy_kwargs": {"x": [{"is": "class", "name": "torch.nn.GLU"}] * 250_000}},
    "many_dictionaries": {"policy_kwargs": {"x": [[{"": 0}] * 600_000] * 2}},
    "an_activation_that_is_a_transformer": {
        "policy_kwargs": {"net_arch": [4] * 12, "activation_fn": {"is": "class", "name": "torch.nn.Transformer"}}
    },
    "many_spaces": {"policy_kwargs": {"net_arch": [4], "x": [_space(**BOX)] * 60}},
    "larger_spaces": {"observation_space": _space(**BOX), "action_space": _space(**BOX)},
    "the_largest_spaces": {"observation_space": LARGEST, "action_space": LARGEST},
    "the_largest_numbers": {"observation_space": LONGEST, "action_space": LONGEST},
    "billions_of_choices": {
        "action_space": _space(type="MultiDiscrete", nvec=[10_000_000] * 100, start=[0] * 100),
    },
    "parts_of_billions_of_choices": {
        "action_space": _space(
            type="Dict",
            spaces={f"{number}": {"type": "Discrete", "n": 10_000_000, "start": 0} for number in range(100)},
        ),
    },
    "many_bits": {
        "action_space": _space(**BOX | {"dtype": "float32"}),
        "policy_kwargs": {"net_arch": [4], "action_bits": 24},
    },
    "actions_of_many_bits": {
        "weights": 1_800_000,
        "n_choices": 100_000,
        "action_space": _space(type="MultiBinary", shape=[50_000]),
        "policy_kwargs": {"net_arch": [1]},
    },
    "a_million_actions": {
        "filler": 6_000_000,
        "n_choices": 300_000,
        "action_space": _space(type="Discrete", n=300_000, start=0),
        "policy_kwargs": {"net_arch": [2]},
    },
    "millions_of_states": {
        "filler": 9_000_000,
        "observation_space": _space(type="Discrete", n=9_000_000, start=0),
        "policy_kwargs": {"net_arch": [32]},
    },
    "wide_observations": {
        "filler": 130_000,
        "observation_space": _space(**BOX | {"shape": [20_000]}),
        "policy_kwargs": {"net_arch": [20_000]},
    },
    "large_features": {
        "filler": 30_000,
        "observation_space": _space(type="Box", shape=[3, 84, 84], dtype="uint8", low=0, high=255),
        "policy_kwargs": {"net_arch": [4], **NATURE},
    },
}
BOMBS |= {f"an_agent_of_{name}": ("agent", partial(agent_with, **changes)) for name, changes in AGENTS.items()}
SLOW.add("an_agent_of_a_large_memory_that_looks_ahead")


@bomb("replay", slow=True)
def a_memory_of_a_gigabyte_of_zeros(files: Files) -> Files:
    return {"replay.npz": rezipped(files["replay.npz"], rewards=npy((1000 << 18,), megabytes=1000))}


@bomb("replay")
def a_memory_that_says_a_terabyte(files: Files) -> Files:
    return {"replay.npz": rezipped(files["replay.npz"], rewards=npy((10**12,)))}


def replay_of(rows: int, noise: int = 0, shown: int = 0, ends: int = 0, **settings: Any) -> Files:
    """A full memory of zeros.

    :param noise: rewards that do not compress
    :param shown: rows of demonstrations
    :param ends: of each transition: whether an episode ended
    """
    held = agent_of(**settings).replay_buffer.held()
    arrays: dict[str, NDArray[Any]] = {"position": np.array([0, 1])}
    for name in held.keys() - {"position"}:
        for prefix, n in (("", rows), ("shown.", shown)) if shown else (("", rows),):
            arrays[prefix + name] = np.zeros((n, *held[name].shape[1:]), held[name].dtype)
    arrays["rewards"].reshape(-1)[:noise] = np.random.default_rng(0).standard_normal(noise)
    arrays["dones"][:] = ends
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return {"replay.npz": stream.getvalue(), "settings.json": json.dumps({**settings, "buffer_size": rows}).encode()}


@bomb("replay")
def a_memory_of_half_a_million_rows_that_are_kept_once(_: Files) -> Files:
    return replay_of(500_000, optimize_memory_usage=True, n_steps=3)


@bomb("replay")
def a_memory_of_half_a_million_episodes_that_are_kept_once(_: Files) -> Files:
    return replay_of(500_000, ends=1, optimize_memory_usage=True)


@bomb("replay")
def a_memory_of_half_a_million_stacks(_: Files) -> Files:
    files = replay_of(500_000, n_stack=4)
    apart = {"apart_at": np.arange(500_000), "apart": np.zeros((500_000, 3, 4), np.float32)}
    arrays = {**apart, "back": np.full((500_000, 1), -1)}
    parts = {name: iter([*npy(array.shape, array.dtype.str), array.tobytes()]) for name, array in arrays.items()}
    return {**files, "replay.npz": rezipped(files["replay.npz"], **parts)}


@bomb("replay", slow=True)
def a_memory_of_millions_of_rows_that_look_ahead(_: Files) -> Files:
    return replay_of(5_700_000, noise=2_300_000, n_steps=3)


@bomb("replay", slow=True)
def a_memory_of_millions_of_rows_that_are_stacked(_: Files) -> Files:
    return replay_of(5_000_000, noise=2_300_000, n_stack=4)


@bomb("replay", slow=True)
def a_memory_of_millions_of_rows_that_are_kept_once(_: Files) -> Files:
    return replay_of(5_700_000, noise=2_300_000, optimize_memory_usage=True)


@bomb("replay", slow=True)
def a_memory_of_millions_of_episodes_that_are_kept_once(_: Files) -> Files:
    return replay_of(5_700_000, noise=2_300_000, ends=1, optimize_memory_usage=True, n_steps=3)


@bomb("replay", slow=True)
def a_memory_of_millions_of_demonstrations(_: Files) -> Files:
    return replay_of(100_000, shown=5_600_000, n_steps=3)


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


@bomb("parquet")
def a_parquet_file_of_long_text(files: Files) -> Files:
    import pyarrow
    from pyarrow import parquet

    table, stream, n = parquet.read_table(io.BytesIO(files["robot"])), io.BytesIO(), 400
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(n, np.int32)), pyarrow.array(["x" * 4_000_000]))
    some = pyarrow.concat_tables([table.slice(0, 1)] * n).combine_chunks()
    some = some.set_column(table.schema.get_field_index("rewards"), pyarrow.field("rewards", text.type), text)
    parquet.write_table(some.replace_schema_metadata(table.schema.metadata), stream, compression="zstd")
    return {"robot": stream.getvalue()}


@bomb("parquet", slow=True)
def a_parquet_file_of_long_lists(files: Files) -> Files:
    import pyarrow
    from pyarrow import parquet

    table, stream, n = parquet.read_table(io.BytesIO(files["robot"])), io.BytesIO(), 30_000_000
    lists = pyarrow.ListArray.from_arrays([0, *[n] * len(table)], pyarrow.array(np.zeros(n, np.float32)))
    name = "observations.arm"
    some = table.set_column(table.schema.get_field_index(name), pyarrow.field(name, lists.type), lists)
    some = some.replace_schema_metadata(table.schema.metadata)
    with parquet.ParquetWriter(stream, some.schema, compression="zstd", write_page_checksum=True) as writer:
        for _ in range(8):
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


def peer_with(files: Files, filler: int, policy_kwargs: Any = None, **hyperparameters: Any) -> Files:
    config = json.loads(files["config.json"])
    config["hyperparameters"] |= hyperparameters
    config["policy_kwargs"] = policy_kwargs or config["policy_kwargs"]
    return agent_with({**files, "config.json": json.dumps(config).encode()}, filler=filler)


@bomb("peer")
def a_peer_of_wide_layers(files: Files) -> Files:
    return peer_with(files, 9_000_000, {"net_arch": [9_000, 9_000]})


@bomb("peer")
def a_peer_of_a_billion_steps(files: Files) -> Files:
    return peer_with(files, 0, n_steps=10**9)


@bomb("agent")
def an_agent_of_many_generators(files: Files) -> Files:
    state = {"key": {"is": "array", "name": "key"}, "pos": 0}
    one = {"is": "generator", "state": {"bit_generator": "MT19937", "state": state}}
    with zipfile.ZipFile(io.BytesIO(files["agent.zip"])) as archive:
        arrays = {**safetensors.numpy.load(archive.read("arrays.safetensors")), "key": np.zeros(624, np.uint32)}
        document = archive.read("agent.json")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("agent.json", document)
        archive.writestr("arrays.safetensors", safetensors.numpy.save(arrays))
    return agent_with({"agent.zip": stream.getvalue()}, policy_kwargs={"x": [one] * 90_000})


@bomb("agent")
def an_agent_of_actions_of_many_parts(files: Files) -> Files:
    parts = {str(number): {"type": "Discrete", "n": 1, "start": 0} for number in range(50_000)}
    actions = _space(type="Dict", spaces=parts)
    return agent_with(files, weights=1_300_000, n_choices=50_000, action_space=actions, policy_kwargs={"net_arch": [1]})


@bomb("agent")
def an_agent_of_observations_of_many_parts(files: Files) -> Files:
    parts = {str(number): {"type": "Discrete", "n": 1, "start": 0} for number in range(80_000)}
    seen = _space(type="Dict", spaces=parts)
    return agent_with(files, weights=1_200_000, observation_space=seen, policy_kwargs={"net_arch": [1]})


@bomb("agent")
def a_table_of_many_states(_: Files) -> Files:
    path = Path(sys.argv[1]) / "table.zip"
    TabularBDPI("MlpPolicy", gym.make("FrozenLake-v1"), seed=0, **SMALL).learn(10).save(path)
    states, actions = (_space(type="Discrete", n=n, start=0) for n in (12_000, 6_000))
    spaces_of = {"observation_space": states, "action_space": actions}
    return agent_with({"agent.zip": path.read_bytes()}, filler=40_000, n_choices=6_000, **spaces_of)


@bomb("replay", slow=True)
def a_memory_with_a_header_of_a_gigabyte(files: Files) -> Files:
    spaces_of = b" " * 10**7
    header = itertools.chain([b"\x93NUMPY\x02\x00", (10**9).to_bytes(4, "little")], itertools.repeat(spaces_of, 100))
    return {"replay.npz": rezipped(files["replay.npz"], rewards=header)}


@bomb("replay")
def a_memory_of_many_slow_headers(_: Files) -> Files:
    header = b"{'descr':'<f4'" + b" ''" * 3200 + b",'fortran_order':False,'shape':(0L,),}"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(6_000):
            archive.writestr(f"a{number}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return {"replay.npz": stream.getvalue()}


@bomb("served")
def a_served_run_whose_tables_compute(files: Files) -> Files:
    path = Path(sys.argv[1]) / "sessions.sqlite"
    path.write_bytes(files["sessions.sqlite"])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE more (x INTEGER, CHECK (x < length(hex(zeroblob(x)))))")
        database.execute("PRAGMA ignore_check_constraints = 1")
        database.executemany("INSERT INTO more VALUES (?)", [(400_000_000,)] * 30)
    return {**files, "sessions.sqlite": path.read_bytes()}


@bomb("results")
def an_index_that_shows_one_run_often(files: Files) -> Files:
    entries = [["r", "r", "CartPole-v1", "BDPI", number, "run0"] for number in range(2_000)]
    lines = files["run0/monitor.csv"].split(b"\n")[:2]
    long = {"run0/monitor.csv": b"\n".join(lines) + b"\n0,1,1" * 100_000}
    return {**files, **long, "study.json": json.dumps({"title": "t", "runs": entries}).encode()}


@bomb("archive")
def an_archive_of_six_gigabytes(files: Files) -> Files:
    return {**files, "episodes.csv.gz": gzip.compress(bytes(1 << 20)) * 6500}


@bomb("archive", slow=True)
def an_archive_of_many_episodes(files: Files) -> Files:
    """As many as may be in a small file: short rows, 32 MB of them."""
    rows = gzip.compress(b"run,kind,return,length\n") + gzip.compress(b"0,train,0,1\n" * 80_000, 1) * 31
    return {**files, "episodes.csv.gz": rows}


@bomb("archive")
def an_archive_of_episodes_of_no_run(files: Files) -> Files:
    rows = b"run,kind,return,length\n" + b"".join(b"%d,t,0,0\n" % number for number in range(2_300_000))
    return {**files, "episodes.csv.gz": gzip.compress(rows)}


@bomb("archive", slow=True)
def an_archive_of_many_entropies(files: Files) -> Files:
    described = {**json.loads(files["runs.json"]), "entropy_block": 10_000}
    arrays = rezipped(files["entropies.npz"], **{"0": npy((500 << 19,), "<f2", megabytes=500)})
    return {**files, "runs.json": json.dumps(described).encode(), "entropies.npz": arrays}


def aliases() -> bytes:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines).encode()


@bomb("study")
def a_study_of_aliases(_: Files) -> Files:
    return {"study.yaml": aliases()}


@bomb("task")
def a_task_of_aliases(_: Files) -> Files:
    return {"task.yaml": aliases() + b"\nname: *a9"}


@bomb("task")
def a_task_of_megabytes(files: Files) -> Files:
    return {"task.yaml": files["task.yaml"] + b"more: [" + b"a," * 4_000_000 + b"]"}


@bomb("task")
def a_task_of_many_numbers(files: Files) -> Files:
    numbers = b"".join(b"  - {name: n%d, low: 0, high: 1}\n" % number for number in range(8_000))
    return {"task.yaml": files["task.yaml"].replace(b"actions:", numbers + b"actions:", 1)}


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


def run_with(files: Files, **changes: Any) -> Files:
    return {**files, "config.json": json.dumps({**json.loads(files["config.json"]), **changes}).encode()}


@bomb("run")
def a_run_of_many_sessions(files: Files) -> Files:
    return run_with(files, resumed=[{}] * 1_000_000)


@bomb("run")
def a_run_of_many_findings(files: Files) -> Files:
    return run_with(files, findings=[{}] * 1_000_000)


@bomb("run")
def a_run_of_many_names(files: Files) -> Files:
    return run_with(files, defaults={f"{number}": {} for number in range(260_000)})


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
