"""Does a mediocre advisor help? ``FrozenLake8x8-v1``, the default agent, with and without one.

    python benchmarks/advisors.py

Question: with an advisor that knows in which corner the goal is, and nothing of holes and of ice, does BDPI reach the
goal in an earlier episode? It says in every state: right and down 35 % each, left and up 15 % each. Advice fades over
3,000 steps.

- Seeds 300 to 307, each with and without the advisor. A run ends at its first success, or after 300 episodes.
  (First, all runs were to have 300 episodes. That was too long for the machine, and changed before any was looked at.)
- Metric: the first episode with a return of 1; 301 where there is none.
- Rule: the advisor helps if the 95 % interval of the mean difference, a bootstrap over the eight pairs, is below 0; it
  harms if it is above 0.

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
from stable_baselines3.common.callbacks import BaseCallback
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


class UntilSuccess(BaseCallback):
    """Ends a run at its first success, or after all its episodes."""

    def _on_step(self) -> bool:
        returns = self.training_env.envs[0].get_episode_rewards()  # type: ignore[attr-defined]
        return not returns or (returns[-1] == 0 and len(returns) < EPISODES)


def file_of(seed: int, advised: bool) -> Path:
    return RESULTS / f"FrozenLake8x8-v1-{'advised' if advised else 'alone'}-seed{seed}.csv"


def run(job: tuple[int, bool]) -> None:
    """One run: its seed, and whether it is advised."""
    if file_of(*job).exists():
        return
    env, advice = Monitor(gym.make("FrozenLake8x8-v1")), {"advisors": [advisor], "advice_steps": FADES}
    agent = BDPI("MlpPolicy", env, seed=job[0], n_threads=1, **(advice if job[1] else {}))
    agent.learn(10**9, callback=UntilSuccess(), log_interval=None)
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
    found: dict[bool, list[int]] = {True: [], False: []}
    for seed, advised in jobs:
        returns = np.loadtxt(file_of(seed, advised), delimiter=",", skiprows=1, ndmin=2)[:, 0]
        found[advised].append(len(returns) if returns[-1] == 1 else EPISODES + 1)
    for advised, name in ((True, "advised"), (False, "alone")):
        first = found[advised]
        print(f"{name}: first success in episodes {', '.join(map(str, first))}; median {np.median(first):g}")
    difference = bootstrap_mean(np.array(found[True], float) - np.array(found[False], float))
    print(f"advised minus alone: {difference.value:.1f} [{difference.low:.1f}, {difference.high:.1f}] episodes")


if __name__ == "__main__":
    main()
