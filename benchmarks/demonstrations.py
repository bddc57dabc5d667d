"""Do demonstrations help where exploration is hard? ``Table-v0``, the paper's table with 200 steps, with 5 of them.

    make demonstrations

A simple controller shows the agent five ways to the charging station, with detours. The same seeds run as many episodes
without demonstrations. Returns of all episodes go to results/demonstrations/ as each run ends; runs that are there
already are not repeated.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI, PAPER
from bdpi.envs.table import FORWARD, TURN_LEFT, TURN_RIGHT

RESULTS = Path(__file__).resolve().parents[1] / "results" / "demonstrations"
SEEDS, EPISODES, DEMONSTRATIONS = 4, 100, 5


def demonstration(rng: np.random.Generator) -> list[tuple[object, ...]]:
    """An episode of somebody who knows the way, and strays from it now and then."""
    env = gym.make("Table-v0")
    observation, _ = env.reset()
    steps: list[tuple[object, ...]] = []
    while True:
        x, y, heading = observation
        wanted = math.atan2(0.5 - y, 0.5 - x)
        off = math.remainder(wanted - heading, math.tau)
        action = TURN_LEFT if off > 0.1 else TURN_RIGHT if off < -0.1 else FORWARD
        if rng.random() < 0.1:
            action = int(rng.integers(3))
        following, reward, terminated, truncated, _ = env.step(action)
        steps.append((observation, action, reward, following, terminated, truncated))
        observation = following
        if terminated or truncated:
            return steps


def file_of(seed: int, shown: int) -> Path:
    return RESULTS / f"Table-v0-bdpi{'' if shown else '-alone'}-seed{seed}.csv"


def run(job: tuple[int, int]) -> None:
    """One run.

    :param job: its seed, and how many demonstrations it gets
    """
    seed, wanted = job
    if file_of(*job).exists():
        return
    rng = np.random.default_rng(seed)
    env = Monitor(gym.make("Table-v0"))
    agent = BDPI("MlpPolicy", env, seed=seed, n_threads=1, **PAPER)
    shown = [demonstration(rng) for _ in range(wanted)]
    for steps in shown:
        agent.add_demonstrations(steps)
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(EPISODES), log_interval=None)
    docked = [steps[-1][2] for steps in shown].count(100.0)
    returns = "\n".join(f"{value:g}" for value in env.get_episode_rewards())
    file_of(*job).write_text(f"# {docked} of {wanted} demonstrations dock; returns of episodes\n{returns}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    workers = parser.parse_args().workers
    RESULTS.mkdir(parents=True, exist_ok=True)
    jobs = [(seed, shown) for shown in (DEMONSTRATIONS, 0) for seed in range(SEEDS)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for _ in pool.imap_unordered(run, jobs):
            pass
    for seed, shown in jobs:
        returns = np.loadtxt(file_of(seed, shown))
        docked = np.flatnonzero(returns == 100)
        first = f"first docked in episode {docked[0] + 1}" if len(docked) else "never docked"
        of_all = f"docked in {len(docked)} of {len(returns)} episodes"
        print(
            f"{shown} demonstrations, seed {seed}: {first}, {of_all}, mean return of the last 20 episodes "
            f"{returns[-20:].mean():.0f}"
        )


if __name__ == "__main__":
    main()
