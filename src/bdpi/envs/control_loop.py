"""For robots and plants whose control loop is elsewhere: an agent needs to know what it sees and what it can do."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
from gymnasium import spaces


class ControlLoop(gym.Env[Any, Any]):
    """The spaces of a system that calls the agent (``act``, ``observe``), instead of being called by it.

    >>> import numpy as np
    >>> sees = spaces.Box(-1, 1, (4,), np.float32)
    >>> robot = ControlLoop(observation_space=sees, action_space=spaces.Discrete(3))

    :param observation_space: what the agent sees
    :param action_space: what it can do
    """

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> NoReturn:
        """There is nothing to reset."""
        raise RuntimeError(
            "a ControlLoop has spaces and nothing else, so learn() and evaluations cannot run in it: call the agent's "
            "act, observe and learn_once from your own loop"
        )

    def step(self, action: Any) -> NoReturn:
        """There is nothing to step."""
        self.reset()
