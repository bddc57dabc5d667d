"""Run folders, studies and archives that are damaged are skipped, with a line that says why."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdpi import BDPI
from bdpi.runs.config import Place, RunConfig
from bdpi.runs.errors import RunError
from bdpi.runs.job import Job, execute
from bdpi.runs.results import read_runs, write_archive, write_index
from bdpi.runs.train import prepare_resumption
from small import quick_agent

SMALL = {"n_critics": 2, "fit_steps": 1, "batch_size": 8}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "study"
    places = [(Place("study", "row", "CartPole-v1", "BDPI", seed), root / f"run{seed}") for seed in range(2)]
    for place, path in places:
        config = RunConfig(environment="CartPole-v1", seed=place.seed, episodes=2, hyperparameters=SMALL)
        assert execute(Job(place, config, path)).status == "finished"
    write_index(root, "title", places)
    return root


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(trained, tmp_path / "study"))


def changed(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def damage(path: Path, how: str) -> None:
    if how == "deep":
        path.write_text(DEEP)
    elif how == "rather deep":
        changed(path, hyperparameters={"n": json.loads("[" * 500 + "]" * 500)})
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "surrogate":
        path.write_text(path.read_text().replace('"CartPole-v1"', '"Cart\\ud800-v1"'))
    elif how == "escape":
        changed(path, environment="\x1b[31mCartPole-v1")
    else:
        changed(path, **json.loads(how))


HOW = ["deep", "rather deep", "pipe", "folder", "surrogate", "escape", '{"episodes": "x"}', '{"hyperparameters": 5}']


@pytest.mark.parametrize("how", [*HOW, '{"status": []}', '{"result": [1]}', '{"seed": 1e400}', '{"agent": {}}'])
def test_one_damaged_run_does_not_take_a_report_along(study: Path, how: str) -> None:
    damage(study / "run0" / "config.json", how)
    _, runs, problems = read_runs(study)
    assert [run.place.seed for run in runs] == [1]
    assert len(problems) == 1
    assert problems[0].isprintable()
    with pytest.raises(RunError):
        prepare_resumption(study / "run0")


@pytest.mark.parametrize("name", ["monitor.csv", "config.json", "episode.json", "agent.zip", "replay.npz"])
@pytest.mark.parametrize("how", ["deep", "pipe"])
def test_no_file_of_a_run_makes_reading_hang(study: Path, name: str, how: str) -> None:
    damage(study / "run0" / name, how)
    with pytest.raises(RunError):
        prepare_resumption(study / "run0", episodes=3)
    assert len(read_runs(study)[1]) in (1, 2)


def test_a_run_is_not_recorded_in_a_pipe(study: Path) -> None:
    os.mkfifo(study / "run0" / "entropy.f32")
    with pytest.raises(RunError, match=r"entropy\.f32 is not a file"):
        prepare_resumption(study / "run0", episodes=3)


@pytest.mark.parametrize("read", [BDPI.load, lambda path: quick_agent().load_replay_buffer(path)])
def test_a_pipe_is_no_file_of_an_agent(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a file"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize("how", ["deep", '{"runs": [[1]]}', '{"runs": [["s", "r", "e", "n", 0, "../../x"]]}'])
def test_a_damaged_index_is_done_without(study: Path, how: str) -> None:
    damage(study / "study.json", how)
    _, runs, problems = read_runs(study)
    assert len(runs) == 2
    assert "damaged" in problems[0]


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_a_damaged_archive_is_refused_or_read(study: Path, tmp_path: Path, n: int) -> None:
    archive = tmp_path / "archive"
    write_archive(archive, "title", read_runs(study)[1])
    whole = {file: file.read_bytes() for file in archive.iterdir()}
    document, rng = json.loads((archive / "runs.json").read_text()), random.Random(0)
    for _ in range(n):
        file = rng.choice(sorted(whole))
        if file.name == "runs.json":
            file.write_text(json.dumps(_mutated(document, rng)))
        else:
            text = bytearray(gzip.decompress(whole[file]))
            for _ in range(rng.randint(1, 5)):
                text[rng.randrange(len(text))] = rng.choice(b"0123456789,-.x\n\xff")
            file.write_bytes(gzip.compress(bytes(text)))
        try:
            for run in read_runs(archive)[1]:
                assert run.shown_returns.dtype == np.float64
                assert run.counts in (True, False)
        except RunError as error:
            assert str(error).isprintable()  # noqa: PT017
        file.write_bytes(whole[file])


def _mutated(value: Any, rng: random.Random) -> Any:
    """The same JSON with one value of another kind, somewhere."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        copy = value.copy()
        key = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
        copy[key] = _mutated(copy[key], rng)
        return copy
    return rng.choice([None, True, -1, 1e308, 10**30, "", "x\x1b", [], {}, [[]], {"a": 1}])
