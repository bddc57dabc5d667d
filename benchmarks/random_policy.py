"""How well does a policy do that draws every action at random? What a learner has to be better than.

    python benchmarks/random_policy.py Hallway-v0 --episodes 1000
    python benchmarks/random_policy.py miniworld:MiniWorld-Hallway-v0 --episodes 1000

Writes the returns to results/random/ as episodes end, and prints their mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bdpi.report.statistics import mean
from bdpi.report.tables import estimate_text
from bdpi.runs.build import make_environment

RESULTS = Path(__file__).resolve().parents[1] / "results" / "random"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    env, returns = make_environment(arguments.environment), np.zeros(arguments.episodes)
    env.reset(seed=0)
    env.action_space.seed(0)
    with (RESULTS / f"{arguments.environment.rpartition(':')[2]}.csv").open("w") as file:
        for number in range(arguments.episodes):
            env.reset()
            ended = False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                returns[number] += float(reward)
                ended = terminated or truncated
            print(returns[number], file=file, flush=True)
            if number % 100 == 99:
                print(f"{number + 1} episodes: {estimate_text(mean(returns[: number + 1]))}", flush=True)


if __name__ == "__main__":
    main()
