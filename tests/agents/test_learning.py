"""It learns, on the real environments: CartPole with the default configuration, the paper's tasks with the paper's.

When a run finds its goal for the first time is a matter of chance, and so of rounding, which is another one on each
processor. One run may be unlucky; three are tried before the agent is said not to learn.
"""

from typing import Any

import gymnasium as gym
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI, PAPER


class StopWhenLearned(BaseCallback):
    """Stops when the last episodes are good enough, on average."""

    def __init__(self, episodes: int, wanted: float) -> None:
        super().__init__()
        self.episodes, self.wanted, self.has_learned = episodes, wanted, False

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or []][-self.episodes :]
        self.has_learned = len(returns) == self.episodes and sum(returns) >= self.wanted * self.episodes
        return not self.has_learned


def learns(env_id: str, seed: int, steps: int, episodes: int, wanted: float, **settings: Any) -> bool:
    """Whether so many steps are enough for episodes in a row with such a mean return, during training."""
    stop = StopWhenLearned(episodes, wanted)
    agent = BDPI("MlpPolicy", Monitor(gym.make(env_id)), seed=seed, **settings)
    agent.learn(steps, callback=stop, log_interval=None)
    return stop.has_learned


@pytest.mark.full
def test_frozen_lake():
    """Slippery, 8 x 8: a random policy reached the goal in 11 of 4000 episodes, here it is every second one of 30."""
    assert any(learns("FrozenLake8x8-v1", seed, steps=20_000, episodes=30, wanted=0.5, **PAPER) for seed in (4, 1, 2))


@pytest.mark.full
def test_cart_pole():
    """A random policy balances for 22 steps on average; no 20 of its 2000 episodes in a row had a mean above 31."""
    assert any(learns("CartPole-v1", seed, steps=8_000, episodes=20, wanted=150) for seed in (1, 2, 3))


@pytest.mark.full
def test_table_docks():
    """A random policy docks in 6 of 100 episodes of 2000 steps: three times in a row is 1 in 5000."""
    assert any(learns("TableLong-v0", seed, steps=15_000, episodes=3, wanted=100, **PAPER) for seed in (0, 2, 5))
