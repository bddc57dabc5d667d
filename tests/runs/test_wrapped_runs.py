"""Runs with continuous actions, with off-policy noise and clean tests, and with every agent."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import unwrap_wrapper

from bdpi.envs.wrappers import BinaryActionSearch, OffPolicyNoise
from bdpi.runs import recorder
from bdpi.runs.build import announcements, make_environment
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.play import play
from bdpi.runs.train import AgentDriver, prepare, prepare_resumption

QUICK = {"n_critics": 2, "fit_steps": 2, "batch_size": 16, "n_threads": 1}


def quick(environment: str = "FrozenLake-v1", episodes: int | None = 10, **more: Any) -> RunConfig:
    return RunConfig(environment=environment, episodes=episodes, hyperparameters=QUICK, **more)


def after(n: int) -> Callable[[], bool]:
    """Asks to stop when it is asked for the n-th time."""
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= n

    return should_stop


# -- agents


# -- continuous actions


def test_continuous_actions_are_wrapped_and_announced_in_one_line(tmp_path: Path) -> None:
    notes: list[str] = []
    session = prepare(quick("odd_worlds:Steered-v0", episodes=4), tmp_path, note=notes.append)
    (note,) = notes
    assert "6 binary decisions for each of its 2 numbers (--action-bits would change it)" in note
    assert (session.config.action_bits, session.status.policy) == (6, "MlpPolicy")
    assert session.run().status == "finished"
    discrete = prepare(quick(), note=notes.append)  # is left alone
    assert (len(notes), discrete.config.action_bits) == (1, None)
    assert unwrap_wrapper(discrete.environment, BinaryActionSearch) is None


def test_what_pictures_and_noise_change_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    notes: list[str] = []
    plan = RunConfig(environment="odd_worlds:Pictures-v0", episodes=1, off_policy_noise=0.2)
    prepare(plan, tmp_path, note=notes.append)
    pictures, cost, noise = notes
    assert "pictures, so CnnPolicy and fit_steps=1 (--set fit_steps=20 would change it)" in pictures
    assert "random with probability 0.2; a test without that comes after each training episode" in noise
    prepare(plan.changed(off_policy_noise=None, hyperparameters={"fit_steps": 2}), note=notes.append)
    assert len(notes) == 3
    quick = dict(setting.split("=") for setting in re.findall(r"--set (\S+)", cost))
    prepare(plan.changed(hyperparameters={name: int(value) for name, value in quick.items()}), note=notes.append)
    assert notes[3:] == [pictures, noise]  # what it costs is not said of a run that follows the advice
    environment = make_environment("odd_worlds:Pictures-v0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for settings, agent, is_said in (({}, "bdpi", True), ({}, "ppo", False), ({"precision": "float32"}, "bdpi", False)):
        plan = RunConfig(environment="odd_worlds:Pictures-v0", agent=agent, hyperparameters=settings)
        assert any("precision=bfloat16" in text for text in announcements(plan, environment)) == is_said


def test_all_files_count_real_steps(tmp_path: Path) -> None:
    outcome = prepare(quick("odd_worlds:Steered-v0", episodes=4, action_bits=3), tmp_path).run()
    assert read_monitor(outcome.folder.monitor).lengths == [5] * 4
    assert (outcome.summary.episodes, outcome.summary.steps) == (4, 20)
    assert outcome.folder.read().status.result.steps == 20
    resumed = prepare_resumption(tmp_path, episodes=6)
    assert resumed.agent.num_timesteps == 20 * 3 * 2  # decisions
    assert resumed.run().summary.steps == 30
    assert [(episode.episode_return, episode.length) for episode in play(outcome.folder, 2)] == [(5.0, 5), (5.0, 5)]
    session = prepare(quick("odd_worlds:Steered-v0", episodes=None, steps=13, action_bits=2), tmp_path / "steps")
    assert session.run().summary.steps == 13
    assert session.agent.num_timesteps == 13 * 4
    noisy = quick("odd_worlds:Steered-v0", episodes=3, action_bits=2, off_policy_noise=0.5)
    session = prepare(noisy, tmp_path / "noisy")  # which replaces decisions
    assert read_monitor(session.run().folder.test).lengths == [5] * 3
    assert len(session.agent.replay_buffer) == 3 * 5 * 4


def test_a_stopped_search_resumes_with_whole_steps(tmp_path: Path) -> None:
    plan = quick("odd_worlds:Steered-v0", episodes=6, action_bits=3)
    outcome = prepare(plan, tmp_path).run(should_stop=after(12))
    assert (outcome.status, outcome.summary.steps) == ("interrupted", 12)
    outcome = prepare_resumption(tmp_path).run()
    # Two episodes had ended; the two steps of the third are given up.
    assert (outcome.status, outcome.summary.steps) == ("finished", 12 + 4 * 5)
    assert read_monitor(outcome.folder.monitor).lengths == [5] * 6


def test_actions_of_several_numbers_are_trained_resumed_and_played(tmp_path: Path) -> None:
    notes: list[str] = []
    session = prepare(quick("odd_worlds:Levers-v0", episodes=4), tmp_path, note=notes.append)
    assert "MultiDiscrete([3 3]), so 2 decisions one after the other" in notes[0]
    outcome = session.run(should_stop=after(13))
    assert (outcome.status, outcome.summary.steps) == ("interrupted", 13)
    resumed = prepare_resumption(tmp_path)
    outcome = resumed.run()
    assert (outcome.status, outcome.summary.steps, resumed.agent.num_timesteps) == ("finished", 20, 20)
    assert read_monitor(outcome.folder.monitor).lengths == [5] * 4
    assert [episode.length for episode in play(outcome.folder, 2)] == [5, 5]
    for more, says in (({"off_policy_noise": 0.1}, "Discrete actions"), ({"record_entropy": True}, "entropy")):
        with pytest.raises(RunError, match=says):
            prepare(quick("odd_worlds:Levers-v0", **more))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (quick("odd_worlds:Continuous-v0"), "Binary Action Search.*TransformAction"),
        (quick("odd_worlds:Steered-v0", action_bits=0), "bits must be a whole number"),
        (quick("CartPole-v1", action_bits=3), "leave --action-bits out"),
        (quick("CarRacing-v3"), "pictures"),
    ],
)
def test_actions_that_cannot_be_searched_are_refused(plan: RunConfig, says: str) -> None:
    with pytest.raises(RunError, match=says):
        prepare(plan)


# -- noise and tests


def test_noisy_training_episodes_alternate_with_tests_that_are_not_learned_from(tmp_path: Path) -> None:
    session = prepare(quick("CartPole-v1", episodes=6, off_policy_noise=0.2), tmp_path)
    noise = unwrap_wrapper(session.environment, OffPolicyNoise)
    assert isinstance(noise, OffPolicyNoise)
    assert noise.probability == 0.2
    outcome = session.run()
    trained, tested = read_monitor(outcome.folder.monitor), read_monitor(outcome.folder.test)
    assert len(trained) == len(tested) == 6
    in_turn = [time for pair in zip(trained.seconds, tested.seconds, strict=True) for time in pair]
    assert in_turn == sorted(in_turn)
    assert len(session.agent.replay_buffer) == sum(trained.lengths) == outcome.summary.steps
    assert outcome.summary.test_episodes == 6
    assert outcome.summary.mean_return == pytest.approx(np.mean(tested.returns))


def test_pure_noise_teaches_what_the_tests_show(tmp_path: Path) -> None:
    hyperparameters = {**QUICK, "learning_rate": 1e-2, "fit_steps": 20}
    plan = RunConfig(
        environment="odd_worlds:Right-v0", episodes=80, hyperparameters=hyperparameters, off_policy_noise=1.0
    )
    folder = prepare(plan, tmp_path).run().folder
    # Training draws every action at random: the mean of 40 episodes is 2.5, with a standard deviation of 0.18.
    assert np.mean(read_monitor(folder.monitor).returns[40:]) == pytest.approx(2.5, abs=0.9)
    assert np.mean(read_monitor(folder.test).returns[40:]) > 4.5
    assert [episode.episode_return for episode in play(folder, 3)] == [5.0] * 3  # no noise here either


def test_tests_do_not_change_training(tmp_path: Path) -> None:
    without = prepare(quick("CartPole-v1", episodes=8), tmp_path / "without").run().folder
    with_tests = prepare(quick("CartPole-v1", episodes=8, off_policy_noise=0.0), tmp_path / "with").run().folder
    assert read_monitor(without.monitor).returns == read_monitor(with_tests.monitor).returns
    assert not without.test.exists()


def test_no_two_tests_begin_in_the_same_state(tmp_path: Path) -> None:
    session = prepare(quick("CartPole-v1", off_policy_noise=0.2), tmp_path)
    assert isinstance(session.driver, AgentDriver)
    tester = session.driver.tester
    assert tester is not None
    tester.open(0, 0.0)
    tmp_path.mkdir(exist_ok=True)
    first: list[Any] = []
    reset = tester._environment.reset
    tester._environment.reset = lambda: first.append(reset()) or first[-1].copy()  # type: ignore[method-assign]
    for number in (0, 1, 2, 0):
        tester.play(number, lambda: False)
    states = [tuple(state[0]) for state in first]
    assert len(set(states[:3])) == 3
    assert states[3] == states[0]  # whatever was played in between: a resumed run tests as the first would have


@pytest.mark.parametrize("n_tests", [0, 3])
def test_a_test_that_was_stopped_is_played_when_the_run_resumes(tmp_path: Path, n_tests: int) -> None:
    session = prepare(quick("CartPole-v1", episodes=6, off_policy_noise=0.2), tmp_path)
    progress = session.progress
    outcome = session.run(should_stop=lambda: (len(progress.tests), len(progress.episodes)) == (n_tests, n_tests + 1))
    assert outcome.status == "interrupted"
    assert (outcome.summary.episodes, outcome.summary.test_episodes) == (n_tests + 1, n_tests)
    outcome = prepare_resumption(tmp_path).run()
    assert (outcome.status, outcome.summary.episodes, outcome.summary.test_episodes) == ("finished", 6, 6)
    trained, tested = read_monitor(outcome.folder.monitor), read_monitor(outcome.folder.test)
    assert len(tested) == 6
    assert tested.seconds[n_tests] < trained.seconds[n_tests + 1]  # before anything more is learned


def test_a_killed_run_forgets_the_tests_of_the_agent_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_SECONDS", 0.0)
    session = prepare(quick("CartPole-v1", episodes=200, off_policy_noise=0.2), tmp_path)
    saved: list[int] = []

    def killed() -> bool:
        config = json.loads((tmp_path / "config.json").read_text())
        n_saved = config["result"]["episodes"] if config["result"] else 0
        if n_saved >= 2:
            monkeypatch.setattr(session, "save", lambda status: None)  # no later checkpoint
            if len(session.progress.tests) > n_saved:
                saved.append(n_saved)
                raise SystemExit
        return False

    with pytest.raises(SystemExit):
        session.run(should_stop=killed)
    folder = RunFolder(tmp_path)
    assert len(read_monitor(folder.test)) > saved[0]
    prepare_resumption(tmp_path, episodes=saved[0] + 2).run()
    assert len(read_monitor(folder.test)) == len(read_monitor(folder.monitor)) == saved[0] + 2


def test_tests_play_and_film_respect_action_masks(tmp_path: Path) -> None:
    folder = prepare(quick("odd_worlds:Masked-v0", episodes=10, off_policy_noise=0.5), tmp_path).run().folder
    assert read_monitor(folder.monitor).lengths == [5] * 10  # an action that is not allowed would end the episode
    assert read_monitor(folder.test).lengths == [5] * 10
    for deterministic in (True, False):
        assert {episode.length for episode in play(folder, 10, deterministic=deterministic)} == {5}
