"""Does a mediocre advisor help? ``FrozenLake8x8-v1``, the default agent, with and without one.

    python benchmarks/advisors.py

Question: with an advisor that knows in which corner the goal is, and nothing of holes and of ice, does BDPI reach the
goal in an earlier episode? It says in every state: right and down 35 % each, left and up 15 % each. Advice fades over
3,000 steps.

- Seeds 300 to 307, each with and without the advisor, 300 episodes each. No other runs were made before.
- Metric: the first episode with a return of 1; 301 where there is none.
- Rule: the advisor helps if the 95 % interval of the mean difference, a bootstrap over the eight pairs, is below 0; it
  harms if it is above 0.
- Beside it, not decided on: the share of successes in the last 100 episodes, when advice has faded.

Returns of all episodes go to results/advisors/ as each run ends; runs that are there already are not repeated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI
from bdpi.report.statistics import bootstrap_mean

RESULTS = Path(__file__).resolve().parents[1] / "results" / "advisors"
SEEDS, EPISODES, FADES = range(300, 308), 300, 3000
LEFT, DOWN, RIGHT, UP = range(4)


def advisor(_: Any) -> list[float]:
    """Where the goal is."""
    said = {LEFT: 0.15, DOWN: 0.35, RIGHT: 0.35, UP: 0.15}
    return [said[action] for action in range(4)]


def file_of(seed: int, advised: bool) -> Path:
    return RESULTS / f"FrozenLake8x8-v1-{'advised' if advised else 'alone'}-seed{seed}.csv"


def run(job: tuple[int, bool]) -> None:
    """One run: its seed, and whether it is advised."""
    if file_of(*job).exists():
        return
    env, advice = Monitor(gym.make("FrozenLake8x8-v1")), {"advisors": [advisor], "advice_steps": FADES}
    agent = BDPI("MlpPolicy", env, seed=job[0], n_threads=1, **(advice if job[1] else {}))
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(EPISODES), log_interval=None)
    episodes = zip(env.get_episode_rewards(), env.get_episode_lengths(), strict=True)
    lines = [f"{value:g},{length}\n" for value, length in episodes]
    file_of(*job).write_text("return,steps\n" + "".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    workers = parser.parse_args().workers
    RESULTS.mkdir(parents=True, exist_ok=True)
    jobs = [(seed, advised) for seed in SEEDS for advised in (True, False)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for _ in pool.imap_unordered(run, jobs, chunksize=1):
            pass
    found: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
    for seed, advised in jobs:
        returns = np.loadtxt(file_of(seed, advised), delimiter=",", skiprows=1)[:, 0]
        reached = np.flatnonzero(returns == 1)
        found[advised].append((int(reached[0]) + 1 if len(reached) else EPISODES + 1, float(returns[-100:].mean())))
    for advised, name in ((True, "advised"), (False, "alone")):
        first, last = zip(*found[advised], strict=True)
        print(f"{name}: first success in episodes {', '.join(map(str, first))}; median {np.median(first):g}")
        print(f"{name}: successes in the last 100 episodes {', '.join(f'{each:.2f}' for each in last)}")
    for column, what in ((0, "episodes to the first success"), (1, "share of successes in the last 100")):
        with_advice, without = (np.array([each[column] for each in found[advised]], float) for advised in (True, False))
        difference = bootstrap_mean(with_advice - without)
        print(f"{what}, advised minus alone: {difference.value:.3g} [{difference.low:.3g}, {difference.high:.3g}]")


if __name__ == "__main__":
    main()
