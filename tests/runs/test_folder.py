"""The files of a run."""

import json
from pathlib import Path

import pytest

from bdpi.runs.config import RunConfig, RunRecord, RunStatus
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder, default_path


def test_the_default_folder_is_new_even_within_a_second(tmp_path: Path) -> None:
    paths = []
    for _ in range(3):
        paths.append(default_path("CartPole-v1", "bdpi", 7, tmp_path))
        paths[-1].mkdir(parents=True)
    assert len(set(paths)) == 3
    assert all(path.parent == tmp_path / "CartPole-v1" and path.name.startswith("bdpi-seed7-") for path in paths)


def test_ids_with_slashes_and_colons_become_one_folder(tmp_path: Path) -> None:
    assert default_path("ALE/Pong-v5", "bdpi", 0, tmp_path).parent == tmp_path / "ALE-Pong-v5"
    assert default_path("robots.arm:Dock-v0", "bdpi", 0, tmp_path).parent == tmp_path / "robots.arm-Dock-v0"


@pytest.mark.parametrize("name", ["config.json", "monitor.csv", "agent.zip", "replay.npz"])
def test_a_folder_with_any_file_of_a_run_is_taken(tmp_path: Path, name: str) -> None:
    RunFolder(tmp_path).refuse_if_taken()
    (tmp_path / name).touch()
    remedy = r"already holds a run.*--resume" if name == "config.json" else rf"already holds {name}.*remove it"
    with pytest.raises(RunError, match=remedy):
        RunFolder(tmp_path).refuse_if_taken()


def test_a_run_is_found_by_its_folder_and_by_its_agent(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"environment": "CartPole-v1", "agent": "bdpi"}))
    assert RunFolder.open(tmp_path).path == tmp_path
    assert RunFolder.open(tmp_path / "agent.zip").path == tmp_path


def test_configurations_survive_a_round_trip(tmp_path: Path) -> None:
    config = RunConfig(environment="Größe-v0", hyperparameters={"learning_rate": 1e-4, "n": None})
    record = RunRecord(config, RunStatus(status="running"))
    folder = RunFolder(tmp_path)
    folder.write(record)
    assert folder.read() == record


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"environment": 3, "agent": "bdpi"}', "\ud800"])
def test_foreign_and_damaged_configurations_are_refused(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RunError, match=r"config\.json"):
        folder.read()


def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(RunError, match="another process"), folder.locked():
        pass
    with folder.locked():  # and it is free again
        pass
