"""What a random policy finds whose random numbers are kept for a while: no learning.

    python benchmarks/scales/cover.py

Actions are drawn by a race of exponential times, which are kept for a number of steps with a fixed mean (1: never).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scales import tasks
from scales.analyse import print_table

EPISODES = {
    "FrozenLake8x8-v1": 2000,
    "Table-v0": 400,
    "MountainCar-v0": 150,
    "Acrobot-v1": 40,
    "LunarLander-v3": 120,
    "CartPole-v1": 300,
    "PendulumTorques-v0": 60,
}
MEANS = 1, 2, 4, 8, 16, 32


def returns(name: str, mean: int, episodes: int) -> np.ndarray:
    """Returns of the policy's episodes."""
    env, generator = tasks.make(tasks.find(name).task), np.random.default_rng(1)
    actions = int(env.action_space.n)  # type: ignore[attr-defined]
    found = np.zeros(episodes)
    for episode in range(episodes):
        env.reset(seed=5 if episode == 0 else None)
        times, ended = generator.exponential(size=actions), False
        while not ended:
            if generator.random() < 1 / mean:
                times = generator.exponential(size=actions)
            _, reward, terminated, truncated, _ = env.step(int(times.argmin()))
            found[episode] += float(reward)
            ended = terminated or truncated
    env.close()
    return found


def main() -> None:
    for name, episodes in EPISODES.items():
        rows = []
        for mean in MEANS:
            found = returns(name, mean, episodes)
            rows.append([str(mean), f"{found.mean():.2f}", f"{found.max():.1f}", f"{100 * np.mean(found > 0):.2f}"])
        print_table([f"{name}, {episodes} episodes: mean steps", "mean return", "best", "% above 0"], rows)


if __name__ == "__main__":
    main()
