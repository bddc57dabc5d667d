"""Journals as NPZ and Parquet: what comes back is what was there, or an error that says why not."""

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from journals import ACTIONS, SPACES, all_spaces, change, read, same, written

from bdpi import BDPI
from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.agents.journal_columns import Columns
from bdpi.agents.journal_files import export_npz, export_parquet, import_npz, import_parquet
from bdpi.envs import ControlLoop

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None
needs_pyarrow = pytest.mark.skipif(pyarrow is None, reason="pyarrow is not installed")
NPZ, PARQUET = (export_npz, import_npz, "npz"), (export_parquet, import_parquet, "parquet")
KINDS = [pytest.param(NPZ, id="npz"), pytest.param(PARQUET, id="parquet", marks=needs_pyarrow)]
kinds = pytest.mark.parametrize("kind", KINDS)
Kind = tuple[Callable[..., int], Callable[..., int], str]


def alike(before: Transition, after: Transition, masks_are_filled: bool) -> bool:
    """Without a mask, every action is allowed; NPZ has no way to leave some rows of an array out."""
    fills = masks_are_filled and before.mask is None and after.mask is not None
    return same({**vars(before), "mask": np.ones(4, dtype=bool)} if fills else vars(before), vars(after))


def export(kind: Kind, journal: Path, path: Path) -> Path:
    with Journal(journal) as opened:
        kind[0](opened, path)
    return path


@kinds
@all_spaces
def test_there_and_back(space, kind, tmp_path):
    first = written(tmp_path / "first.sqlite", space)
    file = export(kind, first, tmp_path / f"file.{kind[2]}")
    told: list[tuple[int, int]] = []
    assert kind[1](file, tmp_path / "second.sqlite", lambda *how_far: told.append(how_far)) == 12
    assert told[-1] == (12, 12)
    with Journal(tmp_path / "second.sqlite") as journal:
        assert (journal.observation_space, journal.action_space) == (space, ACTIONS)
    for before, after in zip(read(first), read(tmp_path / "second.sqlite"), strict=True):
        assert alike(before, after, masks_are_filled=kind[2] == "npz")
    assert kind[1](file, tmp_path / "second.sqlite") == 12  # behind what is there
    assert len(read(tmp_path / "second.sqlite")) == 24
    assert sorted(os.listdir(tmp_path)) == sorted(["first.sqlite", "second.sqlite", file.name])


@kinds
def test_many_transitions_and_none(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("bdpi.agents.journal_columns._MOST_ROWS", 100)
    for n in (0, 100, 1234):
        first = written(tmp_path / f"{n}.sqlite", SPACES[6], n, masks=False)
        file = export(kind, first, tmp_path / f"{n}.{kind[2]}")
        assert kind[1](file, tmp_path / f"{n}-again.sqlite") == n
        again = read(tmp_path / f"{n}-again.sqlite")
        assert all(alike(*pair, masks_are_filled=False) for pair in zip(read(first), again, strict=True))


def test_the_arrays_of_an_npz_file(tmp_path):
    file = export(NPZ, written(tmp_path / "j.sqlite", SPACES[6]), tmp_path / "file.npz")
    with np.load(file, allow_pickle=False) as arrays:
        shapes = {name: arrays[name].shape for name in arrays.files}
        assert json.loads(str(arrays["spaces"]))["observation_space"]["type"] == "Dict"
        assert np.isnan(arrays["discounts"]).sum() == 6
        assert arrays["masks"].sum() == 12 * 4 - 3
    assert shapes == {
        "observations.arm": (12, 2),
        "observations.mode": (12,),
        "next_observations.arm": (12, 2),
        "next_observations.mode": (12,),
        **dict.fromkeys(("actions", "rewards", "terminated", "truncated", "discounts", "environments"), (12,)),
        "masks": (12, 4),
        "spaces": (),
    }


@needs_pyarrow
def test_the_table_of_a_parquet_file(tmp_path):
    file = export(PARQUET, written(tmp_path / "j.sqlite", SPACES[6]), tmp_path / "file.parquet")
    table = pyarrow.parquet.read_table(file)
    steps = read(tmp_path / "j.sqlite")
    assert table["rewards"].to_pylist() == [step.reward for step in steps]
    assert table["discounts"].to_pylist() == [step.discount for step in steps]
    assert table["masks"].to_pylist() == [None if step.mask is None else step.mask.tolist() for step in steps]
    assert table["observations.arm"].to_pylist() == [step.observation["arm"].tolist() for step in steps]


@kinds
def test_other_spaces_are_refused_with_the_difference(kind, tmp_path):
    file = export(kind, written(tmp_path / "box.sqlite", SPACES[0]), tmp_path / f"file.{kind[2]}")
    others = {
        "observation_space: Discrete there, Box here": written(tmp_path / "discrete.sqlite", SPACES[3]),
        "observation_space: dtype uint8 there, float32 here": written(tmp_path / "image.sqlite", SPACES[2]),
    }
    with Journal(tmp_path / "actions.sqlite", SPACES[0], spaces.Discrete(3)):
        others["action_space: n 3 there, 4 here"] = tmp_path / "actions.sqlite"
    for message, path in others.items():
        before = path.read_bytes()
        with pytest.raises(JournalError, match=message):
            kind[1](file, path)
        assert path.read_bytes() == before


@pytest.fixture
def exported(tmp_path):
    """A journal as an NPZ file, and its arrays."""
    file = export(NPZ, written(tmp_path / "j.sqlite", SPACES[1]), tmp_path / "file.npz")
    with np.load(file, allow_pickle=False) as given:
        return file, {name: given[name] for name in given.files}


def altered(file: Path, arrays: dict[str, Any], **others: Any) -> Path:
    """A copy in which some arrays are others; None: missing."""
    held = {name: array for name, array in {**arrays, **others}.items() if array is not None}
    np.savez_compressed(file.with_name("altered.npz"), **held)
    return file.with_name("altered.npz")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("observations", lambda a: np.where(np.arange(12)[:, None] == 4, np.nan, a), "of transition 5 is nan, not fin"),
        ("next_observations", lambda a: a[:, :1], r"next_observations has shape \(12, 1\), where \(12, 2\) belongs"),
        ("rewards", lambda a: np.where(np.arange(12) == 11, np.inf, a), "rewards of transition 12 is inf, not finite"),
        ("rewards", lambda a: a * 0 + 1e300, r"rewards of transition 1 is 1e\+300, not finite in single precision"),
        ("rewards", lambda a: a[:11], r"rewards has shape \(11,\), where \(12,\) belongs"),
        ("rewards", lambda a: a.astype(str), "rewards is <U.*, where float64 belongs"),
        ("rewards", lambda a: a.astype(object), "cannot be imported"),
        ("actions", lambda a: a + 1, "actions of transition .* is 5, not an action"),
        ("actions", lambda a: a.astype(float), "actions is float64, where int64 belongs"),
        ("actions", lambda a: np.array(3), "cannot be imported"),
        ("discounts", lambda a: a * 3, r"discounts of transition 1 is 1.5, not from 0 to 1"),
        ("terminated", lambda a: a.astype(np.int64), "terminated is int64, where bool belongs"),
        ("masks", lambda a: a[:, :3], "masks has shape"),
        ("truncated", lambda a: None, "it has no truncated"),
        ("environments", lambda a: None, "it has no environments"),
        ("environments", lambda a: a - 1, "environments of transition 1 is -1, not a number from 0 on"),
        ("spaces", lambda a: None, "it has no array spaces"),
        ("spaces", lambda a: np.array("{}"), "does not say that it holds a journal"),
        ("spaces", lambda a: np.array("[" * 100_000), "cannot be imported"),
        ("spaces", lambda a: np.array(str(a).replace('"version": 2', '"version": 3')), "use a newer bdpi"),
        ("spaces", lambda a: np.array(str(a).replace("Discrete", "Strange")), "not the description of a space"),
    ],
)
def test_values_that_make_no_sense(name, change, message, exported, tmp_path):
    wrong = altered(*exported, **{name: change(exported[1][name])})
    before = (tmp_path / "j.sqlite").read_bytes()
    for target in ("j.sqlite", "new.sqlite"):
        with pytest.raises(JournalError, match=message):
            import_npz(wrong, tmp_path / target)
    assert (tmp_path / "j.sqlite").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["altered.npz", "file.npz", "j.sqlite"]


def test_numbers_outside_their_space(tmp_path):
    for number, value, message in ((3, 5, "is 5, outside its space"), (4, [2, 4], "is 4, outside")):
        file = export(NPZ, written(tmp_path / f"{number}.sqlite", SPACES[number]), tmp_path / "file.npz")
        with np.load(file, allow_pickle=False) as given:
            arrays = {name: given[name] for name in given.files}
        arrays["observations"][6] = value
        with pytest.raises(JournalError, match=f"of transition 7 {message}"):
            import_npz(altered(file, arrays), tmp_path / "new.sqlite")


def test_smaller_numbers_are_converted(exported, tmp_path):
    smaller = {"actions": exported[1]["actions"].astype(np.uint8), "rewards": exported[1]["rewards"].astype(">f4")}
    import_npz(altered(*exported, **smaller), tmp_path / "new.sqlite")
    assert [step.action for step in read(tmp_path / "new.sqlite")] == smaller["actions"].tolist()
    assert [step.reward for step in read(tmp_path / "new.sqlite")] == smaller["rewards"].tolist()


@kinds
def test_files_of_another_kind(kind, tmp_path):
    (tmp_path / "text").write_text("a shopping list")
    (tmp_path / "empty").touch()
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("notes.txt", "milk")
    for name in ("text", "empty", "archive"):
        with pytest.raises(JournalError, match="another kind of file"):
            kind[1](tmp_path / name, tmp_path / "new.sqlite")
    with pytest.raises(FileNotFoundError):
        kind[1](tmp_path / "nowhere", tmp_path / "new.sqlite")
    good = export(kind, written(tmp_path / "j.sqlite", SPACES[0]), tmp_path / "good")
    with pytest.raises(JournalError, match="is not a journal"):
        kind[1](good, tmp_path / "text")
    assert (tmp_path / "text").read_text() == "a shopping list"
    assert not (tmp_path / "new.sqlite").exists()


def test_a_journal_that_a_robot_has_open_is_read_but_not_added_to(tmp_path):
    """SQLite's write-ahead log lets others read meanwhile."""
    path = written(tmp_path / "robot.sqlite", SPACES[0])
    step = read(path)[0]
    with Journal(path) as robot:
        robot.append(step)
        file = export(NPZ, path, tmp_path / "file.npz")
        with np.load(file, allow_pickle=False) as arrays:
            assert len(arrays["actions"]) == 13
        with pytest.raises(JournalError, match="Another program"):
            import_npz(file, path)
        robot.append(step)
        assert len(robot) == 14
    assert import_npz(file, path) == 13
    assert len(read(path)) == 27


@kinds
def test_an_agent_goes_on_with_its_journal_that_was_exported_and_imported(kind: Kind, tmp_path: Path) -> None:
    export, import_, ending = kind
    loop = ControlLoop(spaces.Discrete(4), spaces.Discrete(2))
    small: dict[str, Any] = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 1}
    agent = BDPI("MlpPolicy", loop, journal=tmp_path / "robot.sqlite", **small)
    for number in range(12):
        agent.observe(number % 4, agent.act(number % 4), float(number), (number + 1) % 4, False, False)
        if number == 9:
            agent.save(tmp_path / "agent.zip")
    agent.close_journal()
    with Journal(tmp_path / "robot.sqlite", read_only=True) as journal:
        export(journal, tmp_path / f"robot.{ending}")
    assert import_(tmp_path / f"robot.{ending}", tmp_path / "again.sqlite") == 12
    again = BDPI.load(tmp_path / "agent.zip", env=loop, journal=tmp_path / "again.sqlite")
    assert again.replay_buffer.transitions().rewards.tolist() == list(range(12))
    assert again.num_timesteps == 12
    with Journal(tmp_path / "other.sqlite", loop.observation_space, loop.action_space) as other:
        own = other.id
    with Journal(tmp_path / "other.sqlite") as other:
        other.append(Transition(1, 0, 0.0, 2, False, False))
    import_(tmp_path / f"robot.{ending}", tmp_path / "other.sqlite")
    with Journal(tmp_path / "other.sqlite") as other:
        assert other.id == own != journal.id


def test_exports_without_an_id() -> None:
    """Files of other programs have none; and what makes no sense is none."""
    columns = Columns(spaces.Discrete(4), spaces.Discrete(2), "some journal")
    about = json.loads(columns.as_json())
    assert Columns.from_json(json.dumps(about)).journal_id == "some journal"
    del about["id"]
    assert Columns.from_json(json.dumps(about)).journal_id == ""
    for wrong in (7, "x" * 10_000):
        with pytest.raises(ValueError, match="the id of its journal is"):
            Columns.from_json(json.dumps({**about, "id": wrong}))


def test_a_full_disk_adds_nothing(tmp_path, monkeypatch):
    path = written(tmp_path / "small.sqlite", SPACES[0])
    file = export(NPZ, written(tmp_path / "large.sqlite", SPACES[0], 2000), tmp_path / "file.npz")

    class Cramped(Journal):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._file.run("PRAGMA max_page_count = 10")

    monkeypatch.setattr("bdpi.agents.journal_files.Journal", Cramped)
    for target in ("small.sqlite", "new.sqlite"):
        with pytest.raises(JournalError, match="full"):
            import_npz(file, tmp_path / target)
    assert len(read(path)) == 12
    assert sorted(os.listdir(tmp_path)) == ["file.npz", "large.sqlite", "small.sqlite"]


def test_a_damaged_journal_is_not_exported(tmp_path):
    path = written(tmp_path / "j.sqlite", SPACES[0])
    change(path, "UPDATE transitions SET action = 99 WHERE id = 5")
    (tmp_path / "file.npz").write_text("what was there before")
    with pytest.raises(JournalError, match="transition 5"):
        export(NPZ, path, tmp_path / "file.npz")
    assert (tmp_path / "file.npz").read_text() == "what was there before"


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(JournalError, match=r'pip install "bdpi\[parquet\]"'):
        import_parquet(tmp_path / "file.parquet", tmp_path / "new.sqlite")
    with pytest.raises(JournalError, match=r'pip install "bdpi\[parquet\]"'):
        export(PARQUET, written(tmp_path / "j.sqlite", SPACES[0]), tmp_path / "file.parquet")
