"""Errors that a user meets: one line that says what, where, and what to do; and nothing is lost."""

import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from bdpi.agents.journal import Journal
from bdpi.runs import recorder
from bdpi.runs.config import RunConfig
from bdpi.runs.errors import RunError
from bdpi.runs.progress import Observer
from bdpi.runs.train import prepare, prepare_resumption
from small import quick_agent

SMALL = {"n_critics": 2, "fit_steps": 1, "batch_size": 8}
BROKEN_AT = 15


class Broken(gym.Env):
    """Ten steps an episode; from step 15 on, something is wrong."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, how: str) -> None:
        self.how, self.count = how, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        seen, reward, is_over = np.zeros(3, np.float32), 1.0, self.count % 10 == 0 and self.how != "endless"
        if self.count < BROKEN_AT:
            return seen, reward, is_over, False, {}
        if self.how == "shape":
            seen = np.zeros(4, np.float32)
        if self.how == "reward":
            reward = np.ones(2)  # type: ignore[assignment]
        if self.how == "nothing":
            reward = None  # type: ignore[assignment]
        if self.how == "over":
            is_over = np.zeros(2, bool)  # type: ignore[assignment]
        if self.how == "word":
            is_over = "no"  # type: ignore[assignment]
        if self.how == "info":
            return seen, reward, is_over, False, None
        if self.how == "far":
            seen = np.full(3, 1000, np.float32)
        return (seen, reward, is_over, {}) if self.how == "four" else (seen, reward, is_over, False, {})


for each in ("shape", "reward", "nothing", "over", "word", "info", "four", "far", "endless"):
    gym.register(f"Broken{each}-v0", lambda how=each: Broken(how), disable_env_checker=True)


class Notes(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(how: str, path: Path, **more: Any) -> tuple[Any, list[str]]:
    plan = {"environment": f"Broken{how}-v0", "episodes": 3, "hyperparameters": SMALL, **more}
    session, notes = prepare(RunConfig(**plan), path), Notes()
    session.draws = False
    return session.run(notes), notes.notes


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", r"step 15 has shape \(4,\)"),
        ("reward", r"reward of step 15"),
        ("word", r"terminated of step 15 is 'no'"),
        ("nothing", r"reward of step 15 is None"),
        ("over", r"terminated of step 15 is an array"),
        ("info", r"info of step 15 is None"),
        ("four", r"step 15 .* 4 values instead"),
    ],
)
def test_what_an_environment_gets_wrong_is_named(tmp_path: Path, how: str, said: str) -> None:
    outcome, _ = run(how, tmp_path / "run")
    assert outcome.status == "failed"
    assert re.search(said, outcome.error)
    assert "\n" not in outcome.error
    assert len(prepare_resumption(tmp_path / "run").agent.replay_buffer) == BROKEN_AT - 1


def test_observations_far_outside_their_space_are_noted_once(tmp_path: Path) -> None:
    outcome, notes = run("far", tmp_path / "run")
    assert outcome.status == "finished"
    assert len([note for note in notes if "step 15 is 1000, far outside its space" in note]) == 1


def test_an_episode_without_an_end_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_ENDLESS", 20)
    asked = iter(range(60))
    session, notes = (
        prepare(RunConfig(environment="Brokenendless-v0", episodes=3, hyperparameters=SMALL), tmp_path / "run"),
        Notes(),
    )
    session.draws = False
    session.run(notes, lambda: next(asked, None) is None)
    assert len([note for note in notes.notes if "episode 1 has not ended after 20 steps" in note]) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("far", tmp_path / "run")

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    session = prepare_resumption(tmp_path / "run", episodes=5)
    monkeypatch.setattr("bdpi.runs.folder.write_atomically", read_only)
    with pytest.raises(RunError, match=r"run cannot be written: Read-only file system; copy it"):
        session.run()


def test_a_second_interruption_says_what_it_costs(tmp_path: Path) -> None:
    code = """
import time
from bdpi.runs.signals import Stop
stop = Stop()
with stop.on_signals():
    print("ready", flush=True)
    while not stop.requested():
        time.sleep(0.01)
    print("noted", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    for said in ("ready", "noted"):
        assert process.stdout.readline() == f"{said}\n"
        process.send_signal(signal.SIGINT)
    assert "last checkpoint is lost" in process.communicate(timeout=120)[1]
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", r"step 15 has shape \(4,\), .* correct one"),
        ("reward", r"reward of step 15 is an array .* return"),
        ("four", r"step 15 .* 4 values instead of 5: return"),
    ],
)
def test_learn_in_python_names_what_an_environment_gets_wrong(tmp_path: Path, how: str, said: str) -> None:
    agent = quick_agent(Broken(how), journal=tmp_path / "robot.sqlite")
    with pytest.raises(ValueError, match=said) as error:
        agent.learn(60)
    assert "\n" not in str(error.value)
    assert len(agent.replay_buffer) == agent.num_timesteps == BROKEN_AT - 1
    agent.close_journal()
    with Journal(tmp_path / "robot.sqlite") as journal:
        assert len(journal) == BROKEN_AT - 1


def test_learn_in_python_warns_once_of_observations_far_outside_their_space() -> None:
    with pytest.warns(RuntimeWarning, match="step 15 is 1000, far outside its space, from -1 to 1") as warned:
        quick_agent(Broken("far")).learn(40)
    assert len([each for each in warned if "far outside" in str(each.message)]) == 1


def test_act_and_observe_name_what_they_are_given_wrong() -> None:
    agent, good = quick_agent(Broken("nothing")), np.zeros(3, np.float32)
    agent.observe(good, agent.act(good), 1.0, good, False, False)
    with pytest.raises(ValueError, match=r"shape \(3,\), got shape \(4,\) at step 1: correct it"):
        agent.act(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=r"next observation .* got shape \(4,\) at step 2: correct it"):
        agent.observe(good, 0, 1.0, np.zeros(4), False, False)
    with pytest.raises(ValueError, match=r"reward must be a number, got array.* at step 2: give one"):
        agent.observe(good, 0, np.ones(2), good, False, False)
    far = np.full(3, 1000, np.float32)
    with pytest.warns(RuntimeWarning, match="next observation of step 2 is 1000, far outside its space"):
        agent.observe(good, 0, 1.0, far, False, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        agent.observe(good, 0, 1.0, far, False, False)
    assert agent.num_timesteps == 3
