"""Actions that are not allowed: take 1, 2 or 3 sticks, and no more than there are. (To learn more: STEPS = 3_000.)"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import bdpi

STEPS = 300


class Sticks(gym.Env[int, int]):
    """Who takes the last stick loses. The other player takes at random."""

    observation_space = spaces.Discrete(13)  # sticks that are left
    action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 13))
        return self.left, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        assert action <= self.left, "the mask does not allow it"
        self.left -= action
        if self.left == 0:
            return 0, -1.0, True, False, self._info()
        self.left -= int(self.np_random.integers(1, min(3, self.left) + 1))
        return self.left, float(self.left == 0), self.left == 0, False, self._info()

    def _info(self) -> dict[str, Any]:
        # one for each action, also where the game is over and none is taken any more
        return {"action_mask": np.array([take <= max(self.left, 1) for take in (1, 2, 3)])}


agent = bdpi.BDPI("MlpPolicy", Sticks(), seed=0)
agent.learn(STEPS)
mean, _ = bdpi.evaluate_policy(agent, Sticks(), n_eval_episodes=40)
print(f"wins {50 + 50 * mean:.0f} % of 40 games after {len(agent.ep_info_buffer)} or more")
take, _ = agent.predict(2, deterministic=True, action_masks=[1, 1, 0])
print(f"of two sticks, it takes {take}")
