"""Does learning in the background learn as well? ``TableLong-v0`` with ActorMimic, which learns it reliably.

    make asynchronous

The same number of epochs as in docs/learning.md, which has the runs that learn in turn; here the environment goes on
meanwhile, up to eight steps ahead. Returns go to results/asynchronous/ as episodes end; complete runs are not repeated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import ActorMimic

RESULTS = Path(__file__).resolve().parents[1] / "results" / "asynchronous"
SEEDS, EPISODES = 8, 150


def returns_of(file: Path) -> np.ndarray:
    return np.loadtxt(file, delimiter=",", skiprows=2, usecols=0, ndmin=1) if file.exists() else np.zeros(0)


def file_of(seed: int) -> Path:
    return RESULTS / f"TableLong-v0-actor-mimic-seed{seed}.monitor.csv"


def run(learner: str, seed: int) -> str:
    file = file_of(seed)
    if len(returns_of(file)) >= EPISODES:
        return f"seed {seed}: was there"
    env = Monitor(gym.make("TableLong-v0"), str(file))
    device = "cuda" if learner == "fused" else "cpu"
    agent = ActorMimic("MlpPolicy", env, seed=seed, n_threads=1, asynchronous=True, learner=learner, device=device)
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(EPISODES), log_interval=None)
    return f"seed {seed}: {agent.num_timesteps} steps, {agent._n_updates} epochs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--learner", default="auto", help='of the agents; "fused" on a GPU')
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for done in pool.imap_unordered(partial(run, arguments.learner), range(SEEDS)):
            print(done, flush=True)
    for seed in range(SEEDS):
        print(f"seed {seed}: {returns_of(file_of(seed))[125:150].mean():.0f} in episodes 125 to 150")


if __name__ == "__main__":
    main()
