"""Files that say more than they hold are refused; what that costs is measured in tests/fuzz."""

import gzip
import io
import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from bdpi.envs.descriptions import describe, space_of
from bdpi.runs.errors import RunError
from bdpi.storage.reading import Damaged, parse_json, read_arrays, read_gzip
from bdpi.studies.tables import read_yaml
from small import Walk, quick_agent


def npz(path: Path, shape: tuple[int, ...], name: str = "rewards", megabytes: int = 0) -> Path:
    """An archive of zeros, which compress to a thousandth."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return path


@pytest.mark.parametrize(("shape", "megabytes"), [((10**12,), 0), ((330 << 18,), 330)])
def test_an_array_that_is_larger_than_its_file_warrants(tmp_path: Path, shape: tuple[int, ...], megabytes: int) -> None:
    path = npz(tmp_path / "replay.npz", shape, megabytes=megabytes)
    with path.open("rb") as file, pytest.raises(Damaged, match="too large"):
        read_arrays(file)
    with pytest.raises(ValueError, match="damaged"):
        quick_agent(Walk()).load_replay_buffer(path)


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BDPI_UNPACK_MB", "400")
    with npz(tmp_path / "replay.npz", (330 << 18,), megabytes=330).open("rb") as file:
        assert read_arrays(file)["rewards"].shape == (330 << 18,)


def test_arrays_come_back_and_objects_do_not() -> None:
    file = io.BytesIO()
    given = {"one": np.arange(6).reshape(2, 3), "two": np.array(3.5), "none": np.zeros((0, 4), np.float32)}
    np.savez_compressed(file, **given)
    for name, array in read_arrays(file).items():
        assert np.array_equal(array, given[name])
        assert array.dtype == given[name].dtype
    file = io.BytesIO()
    np.savez(file, one=np.array([{}], dtype=object))
    with pytest.raises(Damaged, match="not numbers"):
        read_arrays(file)


def test_many_large_boxes() -> None:
    box = {"type": "Box", "shape": [1000, 9000], "dtype": "float32", "low": 0.0, "high": 1.0}
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too large"):
            space_of({"type": "Dict", "spaces": {str(number): box for number in range(100)}})
        assert tracemalloc.get_traced_memory()[1] < 10e6  # bytes: not even one bound of a box
    finally:
        tracemalloc.stop()


def test_gzip_and_deep_json(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv.gz").write_bytes(gzip.compress(bytes(40 << 20)))
    with pytest.raises(Damaged, match="unpacks to more"):
        read_gzip(tmp_path / "episodes.csv.gz", 10)
    for text in ("[" * 100_000, "[" * 100 + "]" * 100, '{"a": "\\ud800"}', '{"\\ud800": 1}', "nope", b"\xff"):
        with pytest.raises(Damaged):
            parse_json(text)


def test_yaml_aliases_that_stand_for_billions() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(RunError, match="aliases"):
        read_yaml("\n".join(lines), "study.yaml")
    with pytest.raises(RunError, match="aliases"):
        read_yaml("a: &a [*a]", "study.yaml")
    assert read_yaml("a: &a [1, 2]\nb: *a", "study.yaml") == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8])
def test_bounds_at_the_end_of_their_range_come_back(dtype: type) -> None:
    limits = np.iinfo(dtype)
    space = spaces.Box(limits.min, limits.max, (3,), dtype)
    assert space_of(json.loads(json.dumps(describe(space)))) == space


def test_a_memory_that_fills_a_smaller_one_exactly_is_full(tmp_path: Path) -> None:
    quick_agent(Walk(), buffer_size=60).learn(30).save_replay_buffer(tmp_path / "replay.npz")
    smaller = quick_agent(Walk(), buffer_size=30)
    smaller.load_replay_buffer(tmp_path / "replay.npz")
    assert (smaller.replay_buffer.pos, smaller.replay_buffer.full) == (0, True)
    smaller.learn(10)  # it had no row for the next transition


@pytest.mark.parametrize(
    ("name", "value"), [("actions", -1), ("actions", 2), ("observations", 5), ("discounts", 127), ("discounts", -1)]
)
def test_a_memory_holds_only_actions_and_states_that_exist(tmp_path: Path, name: str, value: int) -> None:
    agent = quick_agent(Walk(spaces.Discrete(5))).learn(30)
    agent.save_replay_buffer(tmp_path / "replay.npz")
    with np.load(tmp_path / "replay.npz") as file:
        arrays = dict(file)
    arrays[name][3] = value
    np.savez(tmp_path / "replay.npz", **arrays)
    with pytest.raises(ValueError, match=f"damaged: {name} holds {value}"):
        agent.load_replay_buffer(tmp_path / "replay.npz")
