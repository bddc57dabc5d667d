"""Discrete actions stand for evenly spaced continuous ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import InvalidAction
from stable_baselines3.common.env_checker import check_env

from bdpi.envs.wrappers import DiscreteAction


class Echo(gym.Env[Any, Any]):
    """Says what was done, as a safety layer would."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return np.zeros(1, np.float32), 0.0, False, False, {"executed_action": action}


def executed(space: spaces.Box, n: int) -> list[Any]:
    env = DiscreteAction(Echo(space), n)
    assert isinstance(env.action_space, spaces.Discrete)
    env.reset()
    return [env.step(np.int64(action))[4]["executed_action"] for action in range(int(env.action_space.n))]


@pytest.mark.parametrize(
    ("box", "n", "expected"),
    [
        (spaces.Box(-2, 2, (1,)), 5, [[-2], [-1], [0], [1], [2]]),
        (spaces.Box(np.float32([-1, 0]), np.float32([1, 10])), 2, [[-1, 0], [-1, 10], [1, 0], [1, 10]]),
        (spaces.Box(0, 3, (), np.int64), 4, [0, 1, 2, 3]),  # whole numbers stay whole
    ],
)
def test_numbers_get_all_combinations_of_evenly_spaced_values(box: spaces.Box, n: int, expected: Any) -> None:
    assert np.array(executed(box, n)).tolist() == expected


def test_up_to_256_actions() -> None:
    assert len(executed(spaces.Box(-1, 1, (8,)), 2)) == 256
    with pytest.raises(ValueError, match="512 actions"):
        DiscreteAction(Echo(spaces.Box(-1, 1, (9,))), 2)


@pytest.mark.parametrize("n", [1, 257, 2.0, True, None])
def test_n_must_be_a_sensible_whole_number(n: Any) -> None:
    with pytest.raises(ValueError, match="n must be a whole number"):
        DiscreteAction(gym.make("Pendulum-v1"), n)


def test_pendulum_with_five_torques_is_pendulum() -> None:
    env, pendulum = gym.make("PendulumTorques-v0"), gym.make("Pendulum-v1")
    assert env.action_space == spaces.Discrete(5)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 200
    env.reset(seed=3)
    pendulum.reset(seed=3)
    for action, torque in enumerate([-2, -1, 0, 1, 2]):
        ours, theirs = env.step(action), pendulum.step(np.float32([torque]))
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]
    check_env(env, warn=True)
    with pytest.raises(InvalidAction, match="no action"):
        env.step(5)
    again = gym.make(env.spec)
    assert again.action_space == env.action_space
