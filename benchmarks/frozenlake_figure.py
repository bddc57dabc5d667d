"""The README's figure: BDPI on FrozenLake8x8, default configuration, against the curve of the paper.

    make figures

Runs what is missing under results/frozenlake/ (one Monitor file per seed, as many at a time as there are cores), then
draws docs/frozenlake.png from these files and the paper's curve.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bdpi.report.paper import paper_curve

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "results" / "frozenlake"
ENV_ID = "FrozenLake8x8-v1"


def run(seed: int, episodes: int) -> Path:
    """One training run on one core; the file appears under its name when the run is complete."""
    os.environ["BDPI_NUM_THREADS"] = "1"
    import gymnasium as gym
    from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
    from stable_baselines3.common.monitor import Monitor

    from bdpi import BDPI

    partial, final = RUNS / f"seed{seed}-partial.monitor.csv", RUNS / f"seed{seed}.monitor.csv"
    env = Monitor(gym.make(ENV_ID), str(partial))
    agent = BDPI("MlpPolicy", env, seed=seed)
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(episodes), log_interval=None)
    env.close()
    return partial.rename(final)


def run_missing(seeds: int, episodes: int) -> None:
    """Train the seeds that have no file yet."""
    RUNS.mkdir(parents=True, exist_ok=True)
    missing = [seed for seed in range(seeds) if not (RUNS / f"seed{seed}.monitor.csv").exists()]
    if not missing:
        return
    print(f"training seeds {missing} for {episodes} episodes each (about 8 minutes per seed and core)", flush=True)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, seed, episodes) for seed in missing]):
            print(f"  {future.result().relative_to(ROOT)}", flush=True)


def smooth(returns: np.ndarray, coefficient: float = 0.85) -> np.ndarray:
    """The paper's moving average: exponential, starting at the first return."""
    result = np.empty(len(returns))
    average = returns[0]
    for index, value in enumerate(returns):
        average = coefficient * average + (1 - coefficient) * value
        result[index] = average
    return result


def draw(path: Path) -> None:
    """The figure, and its numbers on the terminal."""
    from matplotlib.figure import Figure

    files = sorted(RUNS.glob("seed*.monitor.csv"))
    files = [file for file in files if "partial" not in file.name]
    all_returns = [np.loadtxt(file, delimiter=",", skiprows=2, usecols=0) for file in files]
    length = min(len(returns) for returns in all_returns)
    returns = np.array([each[:length] for each in all_returns])
    curves = np.array([smooth(each) for each in returns])
    mean, error = curves.mean(axis=0), curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
    episodes = np.arange(length)

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    paper = paper_curve("algorithms", ENV_ID, "BDPI")
    assert paper is not None
    x, y, low, high = paper.episodes, paper.returns, paper.low, paper.high
    axes.fill_between(x, low, high, color="0.6", alpha=0.25, linewidth=0)
    axes.plot(x, y, color="0.45", linewidth=1, label="BDPI, the paper (8 runs)")
    x, y, *_ = paper_curve("FrozenLake", "PPO")
    axes.plot(x, y, color="0.45", linewidth=1, linestyle="--", label="PPO, the paper")
    axes.fill_between(episodes, mean - error, mean + error, color="C0", alpha=0.25, linewidth=0)
    axes.plot(episodes, mean, color="C0", linewidth=1.8, label=f"bdpi ({len(curves)} runs)")
    axes.set(xlabel="episode", ylabel="return (moving average)", xlim=(0, length), ylim=(0, 1))
    axes.set_title("FrozenLake 8 x 8, slippery", loc="left", fontsize=10)
    axes.legend(loc="center right", bbox_to_anchor=(1, 0.28), frameon=False, fontsize=9, title="bands: standard error")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)

    print(f"{len(curves)} runs of {length} episodes; mean return per block of 50 episodes:")
    blocks = returns[:, : length // 50 * 50].reshape(len(returns), -1, 50).mean(axis=(0, 2))
    print("  " + " ".join(f"{value:.2f}" for value in blocks))
    last = returns[:, -length // 10 :].mean(axis=1)
    half_width = 1.96 * last.std(ddof=1) / np.sqrt(len(last))
    x, y, *_ = paper_curve("FrozenLake", "BDPI")
    paper = y[x >= 0.9 * x.max()].mean()
    print(f"last tenth: {last.mean():.2f} +- {half_width:.2f} (95 %); the paper's curve: {paper:.2f}")
    print(f"picture: {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    run_missing(arguments.seeds, arguments.episodes)
    draw(ROOT / "docs" / "frozenlake.png")


if __name__ == "__main__":
    main()
