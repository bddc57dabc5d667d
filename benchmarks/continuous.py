"""Pendulum's torque, bit by bit inside the agent, beside bit by bit around the environment (Binary Action Search).

python benchmarks/continuous.py --episodes 40 --seeds 8

Registered before it was run: the default configuration with six bits, seeds 100 to 107 in both, 40 episodes. What
counts is the mean return of episodes 21 to 40 of each seed, and the difference of the means with its 95 % interval
(Welch). The command line decides inside the agent unless that interval is wholly below 0.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI
from bdpi.envs.wrappers import BinaryActionSearch

FIRST_SEED = 100


def returns(job: tuple[bool, int, int]) -> list[float]:
    """Of the episodes of one run.

    :param job: inside the agent or around the environment, the seed, how many episodes
    """
    inside, seed, episodes = job
    monitor = Monitor(gym.make("Pendulum-v1"))
    agent = BDPI("MlpPolicy", monitor if inside else BinaryActionSearch(monitor), seed=seed, n_threads=1)
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(episodes))
    return monitor.get_episode_rewards()


def main() -> None:
    """Print each run, and what is compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    jobs = [(*job, given.episodes) for job in product((True, False), range(FIRST_SEED, FIRST_SEED + given.seeds))]
    late: dict[bool, list[float]] = {True: [], False: []}
    with ProcessPoolExecutor(given.processes) as pool:
        for (inside, seed, _), episodes in zip(jobs, pool.map(returns, jobs), strict=True):
            late[inside].append(float(np.mean(episodes[len(episodes) // 2 :])))
            fives = [round(float(np.mean(part))) for part in np.array_split(episodes, max(1, len(episodes) // 5))]
            print("agent" if inside else "wrapper", seed, f"{late[inside][-1]:.0f}, by fives:", *fives, flush=True)
    means, errors = np.array([[np.mean(late[key]), np.std(late[key], ddof=1) ** 2 / given.seeds] for key in late]).T
    print(f"agent {means[0]:.0f}, wrapper {means[1]:.0f}: difference {means[0] - means[1]:.0f}")
    print(f"± {2.14 * np.sqrt(errors.sum()):.0f}")  # Student's t with 14 degrees of freedom


if __name__ == "__main__":
    main()
