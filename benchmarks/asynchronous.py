"""Does learning in the background learn as well? ``TableLong-v0`` with ActorMimic, which learns it reliably.

    make asynchronous

As many epochs as steps, as in the runs that learn in turn (row "algorithms" of ``bdpi study figure2 --env table``, in
results/figure2/); here the environment goes on meanwhile, up to eight steps ahead. Returns go to results/asynchronous/
as episodes end; complete runs are not repeated. ``--workers 0`` runs nothing and compares what there is.
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
from bdpi.report.panels import rows_of
from bdpi.report.statistics import improvement, mean
from bdpi.report.tables import estimate_text
from bdpi.runs.results import read_runs

ROOT = Path(__file__).resolve().parents[1] / "results"
RESULTS = ROOT / "asynchronous"
SEEDS, EPISODES, BLOCK = 8, 150, 25


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


def returns_in_turn() -> list[np.ndarray]:
    """Of the same agent on the same task, with the same seeds."""
    row = next(row for row in rows_of(read_runs(ROOT / "figure2")[1]) if row.name == "algorithms")
    panel = next(panel for panel in row.panels if panel.environment == "TableLong-v0")
    series = next(series for series in panel.series if series.name == "ActorMimic")
    return [run.shown_returns for run in series.used[:SEEDS]]


def compare() -> None:
    """Print both, block by block, as far as all runs have come."""
    runs = {"in the background": [returns_of(file_of(seed)) for seed in range(SEEDS)], "in turn": returns_in_turn()}
    common = min(EPISODES, *(len(returns) for each in runs.values() for returns in each))
    for last in range(common, 0, -BLOCK):
        first = max(0, last - BLOCK)
        scores = {name: np.array([returns[first:last].mean() for returns in each]) for name, each in runs.items()}
        texts = [f"{name} {estimate_text(mean(each))} ({len(each)} runs)" for name, each in scores.items()]
        chance = estimate_text(improvement([tuple(scores.values())]))
        print(f"episodes {first}-{last}: {', '.join(texts)}; one in the background is better with probability {chance}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--learner", default="auto", help='of the agents; "fused" on a GPU')
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if arguments.workers:
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            for done in pool.imap_unordered(partial(run, arguments.learner), range(SEEDS)):
                print(done, flush=True)
    compare()


if __name__ == "__main__":
    main()
