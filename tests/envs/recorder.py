"""An environment that keeps what it was told to do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Recorder(gym.Env[Any, Any]):
    """Keeps the actions of an episode of ``length`` steps; the reward counts the steps.

    :param actions: their space
    :param observations: their space, of which random ones are shown
    :param length: of an episode
    """

    def __init__(
        self, actions: spaces.Space[Any] | None = None, observations: spaces.Space[Any] | None = None, length: int = 3
    ) -> None:
        self.action_space = actions or spaces.Box(-2, 2, (1,), np.float32)
        self.observation_space = observations or spaces.Box(-5, 5, (2,), np.float32)
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.actions: list[Any] = []
        return self.observation_space.sample(), {"first": True}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.actions.append(action)
        ended = len(self.actions) == self.length
        return self.observation_space.sample(), float(len(self.actions)), ended, False, {"last": ended}
