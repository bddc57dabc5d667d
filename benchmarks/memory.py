"""One observation, and the last three of them, in CartPole without its velocities; beside CartPole as it is.

python benchmarks/memory.py --steps 3000 --seeds 4
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI


def cart_pole(shows_velocities: bool) -> gym.Env[Any, Any]:
    """The position of the cart and the angle of the pole, and perhaps how fast they change."""
    env = gym.make("CartPole-v1")
    if shows_velocities:
        return env
    limits = env.observation_space.high[::2]  # type: ignore[attr-defined]
    return TransformObservation(env, lambda seen: seen[::2], spaces.Box(-limits, limits))


def late_return(shows_velocities: bool, n_stack: int, steps: int, seed: int) -> float:
    """Mean return of the episodes in the second half of training."""
    env = Monitor(cart_pole(shows_velocities))
    BDPI("MlpPolicy", env, seed=seed, n_stack=n_stack, n_threads=1).learn(steps)
    ends = np.cumsum(env.get_episode_lengths())
    return float(np.mean(np.array(env.get_episode_rewards())[ends > steps / 2]))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    for shows_velocities, n_stack in ((False, 3), (False, 1), (True, 1)):
        returns = [late_return(shows_velocities, n_stack, given.steps, seed) for seed in range(given.seeds)]
        spread = 1.96 * np.std(returns, ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
        what = f"{'with' if shows_velocities else 'without'} velocities, n_stack={n_stack}"
        print(f"{what:32} {np.mean(returns):6.1f} ± {spread:.1f}", flush=True)


if __name__ == "__main__":
    main()
