"""An environment of your own: a tank that a valve fills, and that empties by itself. (To learn more: STEPS = 5_000.)"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import bdpi

STEPS = 320


class Tank(gym.Env[np.ndarray, int]):
    """Keep the level at the mark, which is elsewhere in each episode."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)  # level and mark, in millimetres
    action_space = spaces.Discrete(3)  # valve closed, half open, open

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.level, self.mark = self.np_random.uniform(100, 900, 2)
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.level = float(np.clip(self.level + 40 * action - 0.05 * self.level, 0, 1000))
        overflows = self.level >= 1000
        reward = -abs(self.level - self.mark) - 1000 * overflows
        return self._seen(), float(reward), overflows, False, {}  # max_episode_steps truncates

    def _seen(self) -> np.ndarray:
        return np.array([self.level, self.mark], np.float32)


check_env(Tank(), skip_render_check=True)
gym.register("Tank-v0", entry_point=Tank, max_episode_steps=50)
agent = bdpi.BDPI("MlpPolicy", "Tank-v0", seed=0)
agent.learn(STEPS)
returns = [episode["r"] for episode in agent.ep_info_buffer]
print(f"first three episodes {np.mean(returns[:3]):.0f}, last three {np.mean(returns[-3:]):.0f}")
for finding in agent.health():
    print(finding.message, finding.remedy)
