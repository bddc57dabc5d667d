"""Files of a stranger: reading them runs nothing that they name or hold."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from bdpi.runs.build import make_environment
from bdpi.runs.config import Place, RunConfig
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, execute
from bdpi.runs.peer_file import load_peer, save_peer
from bdpi.runs.play import open_agent
from bdpi.runs.train import prepare, prepare_resumption
from bdpi.studies.study import Study, load_study

BDPI = [sys.executable, "-m", "bdpi.cli"]


def run_of(path: Path, agent: str, **more: Any) -> RunFolder:
    quick = {"bdpi": {"n_critics": 2, "fit_steps": 1, "batch_size": 8}, "ppo": {"n_steps": 32, "batch_size": 16}}
    config = RunConfig(environment="CartPole-v1", agent=agent, episodes=2, hyperparameters=quick.get(agent, {}), **more)
    session = prepare(config, path)
    session.draws = False
    assert session.run().status == "finished"
    return RunFolder(path)


def renamed(folder: RunFolder, **changes: Any) -> None:
    folder.config.write_text(json.dumps({**json.loads(folder.config.read_text()), **changes}))


def test_a_service_that_a_file_names_gets_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it writes into the run's folder, or the user names it, too."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    folder = run_of(tmp_path / "run", "bdpi")
    renamed(folder, log=["mlflow", "wandb", "csv"], log_id="0" * 32, status="interrupted", episodes=3)
    with pytest.raises(RunError, match="names the log mlflow,wandb"):
        prepare_resumption(folder.path)
    with pytest.raises(RunError, match="names the log mlflow,"):
        prepare_resumption(folder.path, log=["wandb"])
    prepare_resumption(folder.path, log=["wandb", "mlflow"])
    prepare_resumption(folder.path, trust=True)
    renamed(folder, log=["csv"])
    prepare_resumption(folder.path).run()
    assert folder.progress.exists()
    config = RunConfig(**{**dict(folder.read().config), "episodes": 4})
    renamed(folder, log=["mlflow", "wandb"], episodes=4, status="interrupted")
    execute(Job(Place("study", "row", "CartPole-v1", "BDPI", 1), config, folder.path))
    assert folder.read().status.log == []  # of a study, it is the command line that says it
    assert not list((tmp_path / "here").iterdir())


ESCAPES = "x\x1b]0;pwned\x07\x1b[2J"


def test_a_name_in_a_file_tells_the_terminal_nothing(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", "bdpi")
    whole = folder.config.read_text()
    for where in ("env_kwargs", "hyperparameters", "policy_kwargs", "versions", "defaults", "new"):
        folder.config.write_text(whole)
        renamed(folder, **{where: {"in it": [{ESCAPES: 1}]}})
        with pytest.raises(RunError, match="is damaged: it has a name"):
            folder.read()
    done = subprocess.run([*BDPI, "play", str(folder.path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.rstrip().isprintable()


def test_no_error_tells_the_terminal_anything() -> None:
    with pytest.raises(RunError, match="cannot be made") as caught:
        make_environment("CartPole-v1", arguments={ESCAPES: 1, "x" * 1_000_000: 1})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 10_000


def test_a_file_asks_for_few_wrappers(tmp_path: Path) -> None:
    """Thousands were a RecursionError."""
    folder = run_of(tmp_path / "run", "bdpi")
    renamed(folder, wrappers=["gymnasium.wrappers:RecordEpisodeStatistics"] * 3000, episodes=3, status="interrupted")
    with pytest.raises(RunError, match="at most 32 wrappers, not 3000"):
        prepare_resumption(folder.path)


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_the_place_of_a_peer_is_not_read(tmp_path: Path) -> None:
    folder, mark = run_of(tmp_path / "run", "ppo"), tmp_path / "it ran"
    stranger = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16)
    stranger.bomb = Bomb(mark)  # type: ignore[attr-defined]
    stranger.save(folder.agent)
    with pytest.raises(RunError, match="cannot be loaded"):
        open_agent(folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("agent", "environment"), [("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")]
)
def test_a_peer_comes_back_with_its_optimizers(tmp_path: Path, agent: str, environment: str) -> None:
    quick = {"ppo": {"n_steps": 32, "batch_size": 16}, "dqn": {"learning_starts": 20}, "sac": {"learning_starts": 20}}
    config = RunConfig(environment=environment, agent=agent, episodes=None, steps=64, hyperparameters=quick[agent])
    peer: Any = prepare(config, tmp_path / "run").agent
    peer.learn(64)
    with (tmp_path / "agent.zip").open("wb") as file:
        save_peer(peer, file)
    loaded: Any = load_peer(config, tmp_path / "agent.zip", gym.make(environment))
    for name, saved in peer.get_parameters().items():
        assert_same(saved, loaded.get_parameters()[name])
    if agent == "sac":
        assert torch.equal(peer.log_ent_coef, loaded.log_ent_coef)
    seen = np.ones((5, *loaded.observation_space.shape), np.float32)
    assert np.array_equal(peer.predict(seen, deterministic=True)[0], loaded.predict(seen, deterministic=True)[0])


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
    if isinstance(one, dict | list | tuple):
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_a_module_that_a_file_names_is_imported_only_on_trust(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", "bdpi")
    renamed(folder, environment="strange:CartPole-v1")
    (tmp_path / "strange.py").write_text("open('it ran', 'w').close()\n")
    for command in (["play", "run", "--no-watch"], ["train", "--resume", "run"]):
        done = bdpi(tmp_path, *command)
        assert done.returncode == 2
        assert "module strange" in done.stderr
        assert "--trust" in done.stderr
    (tmp_path / "mine.yaml").write_text("environments: {cart: strange:CartPole-v1}\nrows: {one: {BDPI: {}}}\n")
    assert "module strange" in bdpi(tmp_path, "study", "mine.yaml").stderr
    assert not (tmp_path / "it ran").exists()
    assert bdpi(tmp_path, "export", "run", "policy.h").returncode == 0  # which needs the agent's file only
    assert not (tmp_path / "it ran").exists()
    trusted = bdpi(tmp_path, "play", "run", "--no-watch", "--episodes", "1", "--trust")
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "it ran").exists()


def bdpi(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([*BDPI, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_modules_of_gymnasium_need_no_trust(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", "bdpi")
    renamed(folder, environment="gymnasium.envs.classic_control:CartPole-v1")
    assert prepare_resumption(folder.path, episodes=4).config.episodes == 4


@pytest.mark.parametrize("name", ["autosave", "journal", "tensorboard_log"])
def test_a_study_names_no_file_that_its_runs_write(name: str, tmp_path: Path) -> None:
    mine, table = tmp_path / "thesis.txt", tmp_path / "theirs.yaml"
    mine.write_text("mine")
    table.write_text(f"environments: {{c: CartPole-v1}}\nrows: {{one: {{BDPI: {{set: {{{name}: {mine}}}}}}}}}\n")
    with pytest.raises(RunError, match=name):
        load_study(str(table)).jobs(tmp_path / "out")
    assert mine.read_text() == "mine"


def test_a_link_in_the_place_of_a_run_that_is_being_replaced_moves_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "docs" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    folder = run_of(tmp_path / "run", "bdpi")
    (folder.path / ".successor").symlink_to(mine.parent)
    with pytest.raises(RunError, match="is a link"):
        folder.move_successor()
    assert mine.read_text() == "mine"


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "report").symlink_to(tmp_path / "mine")
    done = subprocess.run([*BDPI, "report", str(tmp_path / "study")], capture_output=True, text=True)
    assert done.returncode != 0
    assert "is a link" in done.stderr
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("link", ["theirs", "theirs/one/CartPole-v1", "theirs/one/CartPole-v1/BDPI-seed0"])
def test_a_study_writes_nothing_through_a_link_that_leads_out_of_its_folder(tmp_path: Path, link: str) -> None:
    """Not even to a run of mine that has the same settings, and would become longer."""
    settings = "{set: {n_critics: 2, fit_steps: 1, batch_size: 8}}"
    table = f"environments: {{c: CartPole-v1}}\nseeds: 1\nrows: {{one: {{BDPI: {settings}}}}}\n"
    (tmp_path / "theirs.yaml").write_text(table)
    study, mine = load_study(str(tmp_path / "theirs.yaml")), tmp_path / "mine"
    assert [execute(job).status for job in study.smaller(episodes=1).jobs(mine)] == ["finished"]
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    place = tmp_path / "out" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(mine / link)
    with pytest.raises(RunError, match="is a link"):
        run_all(study, tmp_path / "out")
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def run_all(study: Study, out: Path) -> None:
    for job in study.smaller(episodes=2).jobs(out):
        execute(job)


def test_the_folder_of_all_studies_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large disk")
    assert load_study("figure2").smaller(seeds=1).jobs(tmp_path / "runs")
