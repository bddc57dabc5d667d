"""A population that learned in Python is read, drawn and played like any other runs."""

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from bdpi import ABCDQN, BDPI, Population
from bdpi.runs.errors import RunError
from bdpi.runs.populations import store_population
from bdpi.runs.results import read_runs

SMALL = {"device": "cpu", "n_critics": 2, "critic_iterations": 1, "fit_steps": 2, "batch_size": 16}


def test_agents_become_runs_with_their_episodes(tmp_path: Path) -> None:
    configs = [{"gamma": 0.9}, {"gamma": 0.9}, {"gamma": 0.8, "seed": 0}, {"gamma": 0.8, "seed": 0}]
    several = Population(BDPI, "FrozenLake-v1", 4, configs, **SMALL).learn(300)
    folders = store_population(several, tmp_path / "mine", title="Mine")
    assert folders == [tmp_path / "mine" / f"agent-{number}" for number in range(4)]
    title, runs, problems = read_runs(tmp_path / "mine")
    assert (title, problems) == ("Mine", [])
    assert [list(run.returns) for run in runs] == several.returns()
    assert all(len(run.returns) > 10 and run.status == "finished" for run in runs)
    assert [(run.place.series, run.place.seed) for run in runs] == [
        ("gamma=0.9", 0),
        ("gamma=0.9", 1),
        ("gamma=0.8, agent 2", 0),
        ("gamma=0.8, agent 3", 0),
    ]
    assert [run.config.hyperparameters["gamma"] for run in runs] == [0.9, 0.9, 0.8, 0.8]
    for command in (["report", tmp_path / "mine", "--out", tmp_path], ["play", folders[3], "--episodes", "1"]):
        done = subprocess.run([sys.executable, "-m", "bdpi.cli", *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "gamma=0.8, agent 2" in (tmp_path / "tables.md").read_text()


def test_a_population_that_was_loaded_is_stored_with_the_settings_that_it_has(tmp_path: Path) -> None:
    configs = [{"trust_region": 0.01}, {"trust_region": 0.01}, {"trust_region": 0.2}, {"train_freq": (1, "episode")}]
    several = Population(BDPI, "FrozenLake-v1", 4, configs, **SMALL).learn(100)
    several.save(tmp_path / "saved", include_buffer=True)
    loaded = Population.load(tmp_path / "saved", "FrozenLake-v1", device="cpu")
    loaded.learn(150, reset_num_timesteps=False)
    series = []
    for name, population in (("before", several), ("after", loaded)):
        store_population(population, tmp_path / name)
        _, runs, _ = read_runs(tmp_path / name)
        series.append([run.place.series for run in runs])
        assert runs[2].config.hyperparameters["trust_region"] == 0.2
        assert "trust_region" not in runs[0].config.hyperparameters  # it has the default
    assert series[0] == series[1]
    assert series[0][1:3] == ["trust_region=0.01, train_freq=1", "trust_region=0.2, train_freq=1"]
    assert [run.config.steps for run in runs][:3] == [150] * 3  # and 100 before it was loaded


def test_agents_that_differ_in_nothing_but_the_seed_have_one_curve(tmp_path: Path) -> None:
    several = Population(ABCDQN, lambda: gym.make("CartPole-v1"), 2, seed=5, **SMALL).learn(60)
    store_population(several, tmp_path)
    _, runs, _ = read_runs(tmp_path)
    assert [(run.place.environment, run.place.series, run.place.seed) for run in runs] == [
        ("CartPole-v1", "ABCDQN", 5),
        ("CartPole-v1", "ABCDQN", 6),
    ]


def test_populations_that_cannot_be_stored_say_why(tmp_path: Path) -> None:
    class Mine(BDPI):
        """A subclass that bdpi does not know."""

    with pytest.raises(RunError, match="Mine is no agent of this package"):
        store_population(Population(Mine, "CartPole-v1", 1, **SMALL), tmp_path / "mine")
    nameless = Population(BDPI, lambda: gym.make("CartPole-v1").unwrapped.__class__(), 1, **SMALL)
    with pytest.raises(RunError, match="has no id: say what to call it, environment='MyEnv-v0'"):
        store_population(nameless, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    store_population(nameless, tmp_path / "mine", "CartPole-v1")
    before = (tmp_path / "mine" / "study.json").read_bytes()
    with pytest.raises(RunError, match="agent-0 already holds a run"):
        store_population(nameless, tmp_path / "mine", "CartPole-v1")
    assert (tmp_path / "mine" / "study.json").read_bytes() == before
