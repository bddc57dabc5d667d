"""What the published code does and the text does not say: each setting changes what it says, and that alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import bdpi
from bdpi.agents import AGENTS, PAPER_AGENTS, BootstrappedDQN
from bdpi.envs.table import TURN_LEFT, TURN_RIGHT
from bdpi.envs.wrappers import EndAtTimeLimit, IncrementsInTime
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.play import play
from bdpi.runs.train import prepare

QUICK: dict[str, Any] = {"n_critics": 4, "critic_iterations": 1, "fit_steps": 1, "batch_size": 16, "n_threads": 1}
ENDS = "bdpi.envs.wrappers:EndAtTimeLimit"


def finished(path: Path, environment: str = "FrozenLake-v1", **more: Any) -> Any:
    plan = RunConfig(environment=environment, **{"episodes": 8, "seed": 3, "hyperparameters": QUICK, **more})
    session = prepare(plan, path)
    assert session.run().status == "finished"
    return session


def test_the_settings_differ_from_the_papers_where_the_code_does() -> None:
    differ = {name: bdpi.CODE[name] for name in bdpi.CODE if bdpi.CODE[name] != bdpi.PAPER.get(name)}
    assert differ == {"gamma": 0.999, "actor_learning_rate": 1e-5, "repeat_critics": True}
    assert bdpi.CODE["learning_rate"] == 1e-4
    for name, (agent, settings) in PAPER_AGENTS.items():
        made = AGENTS[agent]("MlpPolicy", "CartPole-v1", **settings)
        assert made.repeat_critics == name.endswith("-code")
        assert made.gamma == (0.999 if name.endswith("-code") else 0.99)
    assert PAPER_AGENTS["bootstrapped-dqn-code"][1]["critic_step_size"] == 0.2
    assert BootstrappedDQN("MlpPolicy", "CartPole-v1").critic_step_size == 1


def test_critics_are_drawn_with_replacement(tmp_path: Path) -> None:
    agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", seed=0, repeat_critics=True, **QUICK)
    drawn: list[list[int]] = []
    learner = agent.agent_learner.learner
    epoch = learner.epoch
    learner.epoch = lambda t, b, critics, h: (drawn.append(critics.tolist()), epoch(t, b, critics, h))[1]  # type: ignore[method-assign]
    agent.learn(60)
    assert agent.hyperparameters().repeats
    assert {len(each) for each in drawn} == {4}
    assert {critic for each in drawn for critic in each} == set(range(4))
    assert 0.7 < np.mean([len(set(each)) < 4 for each in drawn]) < 1  # 1 - 4! / 4 ** 4 = 0.91
    steps = agent.agent_learner.learner.state_dict()["critics.steps"]
    assert steps.sum() == 4 * len(drawn)
    assert len(set(steps.sum(axis=1).tolist())) > 1  # some were trained more often than others
    del learner.epoch
    agent.save(tmp_path / "agent", include_buffer=True)
    again = bdpi.BDPI.load(tmp_path / "agent", env="CartPole-v1")
    assert again.repeat_critics


def test_without_it_nothing_says_so(tmp_path: Path) -> None:
    session = finished(tmp_path)
    assert "repeat_critics" not in session.folder.config.read_text()
    assert "remember_tests" not in session.folder.config.read_text()


def test_time_limits_are_ends() -> None:
    for wrapper, discount in ((lambda env: env, 0.99), (EndAtTimeLimit, 0.0)):
        env = wrapper(gym.make("CartPole-v1", max_episode_steps=3))
        agent = bdpi.BDPI("MlpPolicy", env, seed=0, **{**bdpi.PAPER, **QUICK, "batch_size": 500}).learn(12)
        np.testing.assert_array_equal(agent.replay_buffer.transitions().discounts[2::3], np.float32(discount))


def test_headings_go_from_0_to_2_pi() -> None:
    table, positive = gym.make("TableLong-v0"), gym.make("TableLong-v0", positive_heading=True)
    assert positive.observation_space.high[2] == np.float32(math.tau)
    for env in (table, positive):
        env.reset()
    for action in [TURN_RIGHT] * 40 + [TURN_LEFT] * 120:
        mine, other = positive.step(action)[0], table.step(action)[0]
        assert mine in positive.observation_space
        assert mine[2] == pytest.approx(other[2] % math.tau, abs=1e-5)
        np.testing.assert_array_equal(mine[:2], other[:2])


@pytest.mark.parametrize("environment", ["FrozenLake-v1", "CartPole-v1"])
def test_test_episodes_are_remembered(tmp_path: Path, environment: str) -> None:
    """And are what they are without that: the agent that plays the first one has learned the same."""
    forgets, remembers = (
        finished(tmp_path / str(each), environment, off_policy_noise=0.2, remember_tests=each) for each in (False, True)
    )
    for session, of_tests in ((forgets, 0), (remembers, 1)):
        tests, steps = read_monitor(session.folder.test).lengths, session.progress.steps
        assert len(session.agent.replay_buffer) == steps + of_tests * sum(tests)
        assert session.agent.num_timesteps == steps
        assert (session.agent.replay_buffer.transitions().discounts == 0).sum() == 8 * (1 + of_tests)
    files = [read_monitor(session.folder.test).returns[0] for session in (forgets, remembers)]
    assert files[0] == files[1]
    with pytest.raises(RunError, match="remember_tests is for runs with off_policy_noise"):
        RunConfig(environment=environment, remember_tests=True)


def test_the_last_convolution_has_as_many_filters_as_asked_for(tmp_path: Path) -> None:
    policy = {"normalize_images": False, "last_filters": 32}
    session = finished(tmp_path, "odd_worlds:Pictures-v0", episodes=1, policy_kwargs=policy)
    cnn = session.agent.policy.actor[0].cnn
    assert [layer.out_channels for layer in cnn if hasattr(layer, "out_channels")] == [32, 64, 32]
    assert session.agent.policy.actor[1].in_features == session.agent.policy.actor[0].features_dim
    assert len(play(RunFolder(tmp_path), 1, trust=True)) == 1  # it is built again from its file
    with pytest.raises(RunError, match="last_filters must be from 1"):
        prepare(RunConfig(environment="odd_worlds:Pictures-v0", policy_kwargs={"last_filters": 10**9}), tmp_path / "b")


def test_pendulum_is_moved_step_by_step_and_each_decision_is_discounted(tmp_path: Path) -> None:
    wrappers = [ENDS, "bdpi.envs.wrappers:IncrementsInTime"]
    settings = {**QUICK, "batch_size": 10_000}
    session = finished(tmp_path, "Pendulum-v1", episodes=1, wrappers=wrappers, hyperparameters=settings)
    transitions = session.agent.replay_buffer.transitions()
    assert 200 < len(transitions.rewards) <= 800  # decisions
    assert read_monitor(session.folder.monitor).lengths == [200]
    assert (transitions.discounts[:-1] == np.float32(0.99)).all()
    assert transitions.discounts[-1] == 0
    assert repr(IncrementsInTime(gym.make("Pendulum-v1"))).startswith("<IncrementsInTime")
