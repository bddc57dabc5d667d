"""One factor of an action after the other, beside all combinations as one action, in CartPole with two factors.

python benchmarks/factors.py --steps 3000 --seeds 5
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI

STRENGTHS = (1.0, 2.5, 5.0, 10.0, 20.0)  # newton; CartPole's own is 10


class Pushed(gym.ActionWrapper[Any, Any, Any]):
    """CartPole with two factors: left or right, and how strongly."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__(gym.make("CartPole-v1"))
        sizes = [2, len(STRENGTHS)]
        self.action_space = spaces.Discrete(int(np.prod(sizes))) if flat else spaces.MultiDiscrete(sizes)

    def action(self, action: Any) -> int:
        """CartPole's own action, after the strength is set."""
        direction, strength = divmod(int(action), len(STRENGTHS)) if np.ndim(action) == 0 else action
        self.env.unwrapped.force_mag = STRENGTHS[strength]  # type: ignore[attr-defined]
        return int(direction)


def late_return(flat: bool, epochs: int, steps: int, seed: int) -> float:
    """Mean return of the episodes in the second half of training."""
    env = Monitor(Pushed(flat))
    BDPI("MlpPolicy", env, seed=seed, gradient_steps=epochs, n_threads=1).learn(steps)
    ends = np.cumsum(env.get_episode_lengths())
    return float(np.mean(np.array(env.get_episode_rewards())[ends > steps / 2]))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for flat, epochs in ((False, 1), (True, 1), (True, 2)):  # two decisions are worth two epochs
        returns = [late_return(flat, epochs, given.steps, seed) for seed in range(given.seeds)]
        spread = 1.96 * np.std(returns, ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
        print(
            f"{Pushed(flat).action_space!s:22} gradient_steps={epochs} {np.mean(returns):6.1f} ± {spread:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
