"""Wrappers for ``bdpi train --wrapper odd_wrappers:…``."""

from typing import Any

import gymnasium as gym


class Longer(gym.RewardWrapper[Any, Any]):
    """A goal counts tenfold."""

    def reward(self, reward: Any) -> float:
        return 10 * float(reward)
