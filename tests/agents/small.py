"""Small environments and quick agents that the agent tests share."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from bdpi import BDPI

#: Enough learning to change every parameter, little enough to be quick.
QUICK: dict[str, Any] = {"n_critics": 3, "fit_steps": 2, "critic_iterations": 3, "batch_size": 16, "buffer_size": 200}


class Walk(gym.Env):
    """Left or right on a line, with any observation space: the action 'right' is rewarded.

    :param space: observations are drawn from it at random
    :param length: steps to the end of an episode
    :param truncate: the end is a time limit, not a terminal state
    :param seen: changes an observation, given the environment and what would be observed
    :param pays: the reward instead of the usual one, given the environment and the action
    :param says: the info, given the environment; of a reset, too
    """

    def __init__(self, space: Any = None, length: int = 7, truncate: bool = False, start: int = 0, **changes: Any):
        self.observation_space = copy.deepcopy(space) or spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2, start=start)
        self.length, self.truncate, self.start = length, truncate, start
        self.time = self.steps = self.episodes = 0
        self.seen = changes.pop("seen", lambda env, observation: observation)
        self.pays = changes.pop("pays", lambda env, action: float(action - env.start))
        self.says = changes.pop("says", lambda env: {})
        assert not changes

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        self.episodes += 1
        return self.seen(self, self.observation_space.sample()), self.says(self)

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        self.time += 1
        self.steps += 1
        ended = self.time >= self.length
        ends = ended and not self.truncate, ended and self.truncate
        return self.seen(self, self.observation_space.sample()), self.pays(self, action), *ends, self.says(self)


def quick_agent(env: Any = None, policy: str = "MlpPolicy", seed: int = 0, **arguments: Any) -> BDPI:
    """A BDPI agent with the QUICK settings."""
    return BDPI(policy, Walk() if env is None else env, seed=seed, **{**QUICK, **arguments})


def fingerprint(agent: BDPI) -> bytes:
    """All bits that learning changes."""
    return b"".join(tensor.numpy().tobytes() for tensor in agent.agent_learner.state_dict().values())


def epochs_of(agent: BDPI) -> int:
    """How often it has learned; the attribute is Stable-Baselines3's own."""
    return agent._n_updates
