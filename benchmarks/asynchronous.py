"""Does learning in the background learn as well? ``TableLong-v0`` with ActorMimic, which learns it reliably.

    make asynchronous

The same number of epochs as in docs/learning.md, which has the runs that learn in turn; here the environment goes on
meanwhile, up to eight steps ahead. Returns go to results/asynchronous/; runs that are there are not repeated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import ActorMimic

RESULTS = Path(__file__).resolve().parents[1] / "results" / "asynchronous"
SEEDS, EPISODES = 4, 150


def run(seed: int) -> None:
    file = RESULTS / f"TableLong-v0-actor-mimic-seed{seed}.csv"
    if file.exists():
        return
    env = Monitor(gym.make("TableLong-v0"))
    agent = ActorMimic("MlpPolicy", env, seed=seed, n_threads=1, asynchronous=True)
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(EPISODES), log_interval=None)
    returns = "\n".join(f"{value:g}" for value in env.get_episode_rewards())
    file.write_text(f"# {agent.num_timesteps} steps, {agent._n_updates} epochs; returns of episodes\n{returns}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    workers = parser.parse_args().workers
    RESULTS.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for _ in pool.imap_unordered(run, range(SEEDS)):
            pass
    for file in sorted(RESULTS.glob("*.csv")):
        returns = np.loadtxt(file)
        print(
            f"{file.stem}: {returns[125:150].mean():.0f} in episodes 125 to 150; {file.read_text().splitlines()[0][2:]}"
        )


if __name__ == "__main__":
    main()
