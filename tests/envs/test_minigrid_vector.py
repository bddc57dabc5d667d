"""MiniGrid's tasks, seen as vectors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_checker import check_env

import bdpi  # noqa: F401 # registers the environments
from bdpi.envs.wrappers import Retracing
from bdpi.envs.wrappers.retracing import is_simulation

LEFT, RIGHT, FORWARD = 0, 1, 2


@pytest.fixture
def _minigrid() -> None:
    pytest.importorskip("minigrid", reason='needs pip install "bdpi[minigrid]"')


@pytest.mark.usefixtures("_minigrid")
@pytest.mark.parametrize(("name", "limit"), [("Empty", 256), ("DoorKey", 250)])
def test_the_view_is_a_vector(name: str, limit: int) -> None:
    env = gym.make(f"MiniGridVector-{name}-v0")
    check_env(env, warn=True)
    observation, _ = env.reset(seed=1)
    inner: Any = env.unwrapped
    original = inner.gen_obs()
    np.testing.assert_allclose(observation[:147], original["image"].reshape(-1) / 10, rtol=1e-6)
    assert observation[147:].tolist() == [float(direction == original["direction"]) for direction in range(4)]
    assert inner.max_steps == limit
    for step in range(1, limit + 1):
        assert env.step(LEFT)[3] == (step == limit)


@pytest.mark.usefixtures("_minigrid")
def test_the_goal_is_rewarded() -> None:
    env = gym.make("MiniGridVector-Empty-v0")
    env.reset(seed=1)
    results = [env.step(action) for action in [FORWARD] * 5 + [RIGHT] + [FORWARD] * 5]
    assert results[-1][2]
    assert float(results[-1][1]) == pytest.approx(1 - 0.9 * 11 / 256)


@pytest.mark.usefixtures("_minigrid")
def test_an_episode_can_be_continued_elsewhere() -> None:
    assert is_simulation(gym.make("MiniGridVector-DoorKey-v0"))
    env = Retracing(gym.make("MiniGridVector-DoorKey-v0"))
    env.reset(seed=5)
    expected = [env.step(action)[0] for action in (RIGHT, FORWARD)][-1]
    other = Retracing(gym.make("MiniGridVector-DoorKey-v0"))
    other.follow(env.trace())
    np.testing.assert_array_equal(other.reset()[0], expected)
    assert other.followed


def test_what_is_missing_is_named() -> None:
    code = (
        "import sys; sys.modules['minigrid'] = None\n"  # as if it were not installed
        "import bdpi, gymnasium; gymnasium.make('MiniGridVector-Empty-v0')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert 'pip install "bdpi[minigrid]"' in result.stderr.splitlines()[-1]
