"""It learns, on the real environments, with the default configuration."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI


def returns_of(env_id: str, episodes: int, seed: int) -> np.ndarray:
    """Returns during training."""
    env = Monitor(gym.make(env_id))
    agent = BDPI("MlpPolicy", env, seed=seed)
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(episodes), log_interval=None)
    return np.array(env.get_episode_rewards())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_frozen_lake(seed):
    """Slippery, 8 x 8: a random policy reached the goal in 11 of 4000 episodes."""
    returns = returns_of("FrozenLake8x8-v1", 250, seed)
    assert returns[150:250].mean() >= 0.5


@pytest.mark.slow
def test_cart_pole():
    """A random policy balances for 22 steps on average; no 40 of its 2000 episodes in a row had a mean above 29."""
    returns = returns_of("CartPole-v1", 100, seed=1)
    assert returns[60:100].mean() >= 150


class StopWhenDocked(BaseCallback):
    """Stops after three successful episodes in a row."""

    def _on_step(self) -> bool:
        assert isinstance(self.model, BDPI)
        last = [episode["r"] for episode in list(self.model.ep_info_buffer or [])[-3:]]
        return last != [100, 100, 100]


@pytest.mark.slow
def test_table_docks():
    """A random policy docks in 6 of 100 episodes of 2000 steps: three times in a row is 1 in 5000."""
    env = Monitor(gym.make("TableLong-v0"))
    agent = BDPI("MlpPolicy", env, seed=0)
    agent.learn(15_000, callback=StopWhenDocked(), log_interval=None)
    assert env.get_episode_rewards()[-3:] == [100, 100, 100]
