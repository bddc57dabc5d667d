"""Incremental actions stay where they were, take no time, and say what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import InvalidAction
from stable_baselines3.common.env_checker import check_env

from bdpi import BDPI
from bdpi.envs.wrappers import IncrementalAction
from bdpi.runs.config import RunConfig
from bdpi.runs.train import prepare
from recorder import Recorder

UP, DOWN, COMMIT = 0, 1, 2


def played(decisions: list[int], box: spaces.Box | None = None, **arguments: Any) -> list[float]:
    """The actions that decisions lead to."""
    recorder = Recorder(box, length=10**9)
    env = IncrementalAction(recorder, **arguments)
    env.reset()
    for decision in decisions:
        env.step(decision)
    return [float(action[0]) for action in recorder.actions]


@pytest.mark.parametrize(
    ("decisions", "actions"),
    [
        ([COMMIT], [0]),
        ([UP, COMMIT], [2]),  # the first move reaches the bound
        ([UP, DOWN, COMMIT], [1]),
        ([UP, DOWN, DOWN, COMMIT], [0.5]),
        ([UP, DOWN, DOWN, DOWN], [0.25]),  # the fourth move needs no commit
        ([UP, UP, DOWN, COMMIT], [1.5]),  # moves stop at the bound
        ([DOWN, UP, COMMIT, COMMIT, COMMIT], [-1, -1, -1]),  # the action stays
        ([DOWN, UP, COMMIT, UP, COMMIT], [-1, 1]),  # and moves are long again
    ],
)
def test_moves_get_shorter_and_the_action_stays(decisions: list[int], actions: list[float]) -> None:
    assert played(decisions) == actions
    assert played([UP, UP, DOWN], moves=1) == [2, 2, 0]
    not_symmetric = spaces.Box(0, 10, (1,), np.float64)
    assert played([COMMIT, UP, DOWN, COMMIT, DOWN, COMMIT], not_symmetric) == [5, 7.5, 2.5]


def test_an_episode_starts_in_the_middle() -> None:
    recorder = Recorder(length=1)
    env = IncrementalAction(recorder)
    for _ in range(2):
        assert env.reset()[0][2:].tolist() == [0, 0]
        env.step(UP)
        assert env.step(COMMIT)[2]
    assert recorder.actions[0].tolist() == [2]


def test_the_agent_sees_the_action_and_the_moves() -> None:
    env = IncrementalAction(Recorder())
    seen = env.reset()[0][:2]
    for decision, appended in ((DOWN, [-1, 0.25]), (UP, [-0.5, 0.5]), (UP, [-0.25, 0.75])):
        observation = env.step(decision)[0]
        np.testing.assert_array_equal(observation[:2], seen)  # the world stands still
        assert observation[2:].tolist() == appended
    observation = env.step(UP)[0]
    assert not np.array_equal(observation[:2], seen)
    assert observation[2:].tolist() == [-0.125, 0]


@pytest.mark.parametrize("discount_decisions", [False, True])
def test_inner_decisions_take_no_time_unless_they_are_to_be_discounted(discount_decisions: bool) -> None:
    env = IncrementalAction(Recorder(length=1), discount_decisions=discount_decisions)
    env.reset()
    _, reward, terminated, truncated, info = env.step(UP)
    assert (reward, terminated, truncated) == (0, False, False)
    assert info == ({} if discount_decisions else {"discount": 1.0})
    _, reward, terminated, truncated, info = env.step(COMMIT)
    assert (reward, terminated, truncated) == (1, True, False)
    assert "discount" not in info


@pytest.mark.parametrize("discount_decisions", [False, True])
def test_the_agent_discounts_as_it_is_told(discount_decisions: bool) -> None:
    env = IncrementalAction(gym.make("Pendulum-v1"), discount_decisions=discount_decisions)
    agent = BDPI("MlpPolicy", env, n_critics=1, fit_steps=1, critic_iterations=1, batch_size=16, gamma=0.9, seed=0)
    agent.learn(100)
    transitions = agent.replay_buffer.transitions()
    inner = transitions.rewards == 0
    assert 0 < inner.sum() < 100
    np.testing.assert_array_equal(transitions.discounts[inner], np.float32(0.9 if discount_decisions else 1))
    np.testing.assert_array_equal(transitions.discounts[~inner], np.float32(0.9))


@pytest.mark.parametrize(
    "make", [lambda: IncrementalAction(gym.make("Pendulum-v1")), lambda: gym.make("PendulumIncrements-v0")]
)
def test_time_limits_and_statistics_count_real_steps(make: Any) -> None:
    env = make()
    check_env(env, warn=True)
    agent = BDPI("MlpPolicy", env, n_critics=1)
    assert agent.get_env().envs[0] is env  # Stable-Baselines3 has put no Monitor around it
    env.reset(seed=1)
    total, n_decisions, truncated = 0.0, 0, False
    while not truncated:
        _, reward, _, truncated, info = env.step(np.int64(n_decisions % 2))
        total, n_decisions = total + float(reward), n_decisions + 1
    assert n_decisions == 800
    assert info["episode"]["l"] == 200
    assert info["episode"]["r"] == pytest.approx(total, abs=1e-5)


def test_runs_of_peers_count_real_steps(tmp_path: Path) -> None:
    plan = RunConfig(environment="PendulumIncrements-v0", agent="ppo", seed=1, episodes=2)
    session = prepare(plan, tmp_path / "run")
    session.draws = False
    session.run()
    assert session.progress.episodes.lengths == [200, 200]


def test_wrong_calls_are_explained() -> None:
    with pytest.raises(ValueError, match="moves"):
        IncrementalAction(Recorder(), moves=0)
    with pytest.raises(ValueError, match=r"for actions of one number.*BinaryActionSearch"):
        IncrementalAction(Recorder(spaces.Box(-1, 1, (2,))))
    env = IncrementalAction(Recorder())
    env.reset()
    with pytest.raises(InvalidAction, match="commit"):
        env.step(3)
