"""What scales cost: the time of an epoch with them over that without, measured by turns.

python benchmarks/scales/cost.py
"""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
from stable_baselines3.common.logger import Logger

import bdpi

ROUNDS, EPOCHS = 30, 20


def main() -> None:
    for name in ("Table-v0", "FrozenLake8x8-v1"):
        agents = []
        for settings in ({"observation_size": None, "return_size": None}, {}):
            agent = bdpi.BDPI("MlpPolicy", gym.make(name), seed=0, n_threads=1, **settings)
            agent.set_logger(Logger(folder=None, output_formats=[]))
            agents.append(agent.learn(600))
        ratios = []
        for _ in range(ROUNDS):
            times = []
            for agent in agents:
                start = time.process_time()
                agent.train(EPOCHS, agent.batch_size)
                times.append(time.process_time() - start)
            ratios.append(times[1] / times[0])
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        print(f"{name}: with scales {100 * (middle - 1):+.1f} % [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]")


if __name__ == "__main__":
    main()
