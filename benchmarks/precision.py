"""Does an agent that computes in bfloat16 learn as well? A dot in a picture has to walk to a square.

    make precision

Eight seeds in either precision, with the convolutions of ``CnnPolicy``, on a GPU. Steps per episode go to
results/precision/ as episodes end; complete runs are not repeated. ``--workers 0`` runs nothing and compares what there
is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI
from bdpi.report.statistics import improvement, mean
from bdpi.report.tables import estimate_text

RESULTS = Path(__file__).resolve().parents[1] / "results" / "precision"
PRECISIONS = ("bfloat16", "float32")
SEEDS, EPISODES, BLOCK = 8, 200, 40
CELLS, CELL, LIMIT = 5, 8, 40  # in each direction; pixels; steps
DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Walk(gym.Env[np.ndarray, int]):
    """A bright dot and a grey square, somewhere on a small board."""

    observation_space = spaces.Box(0, 255, (1, CELLS * CELL, CELLS * CELL), np.uint8)
    action_space = spaces.Discrete(len(DIRECTIONS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        dot, self._square = self.np_random.choice(CELLS**2, 2, replace=False)
        self._dot = np.array(divmod(dot, CELLS))
        self._steps = 0
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._dot = np.clip(self._dot + DIRECTIONS[action], 0, CELLS - 1)
        self._steps += 1
        arrived = tuple(self._dot) == divmod(self._square, CELLS)
        return self._picture(), float(arrived), arrived, self._steps == LIMIT, {}

    def _picture(self) -> np.ndarray:
        board = np.zeros((CELLS, CELL, CELLS, CELL), np.uint8)
        row, column = divmod(self._square, CELLS)
        board[row, :, column] = 120
        board[self._dot[0], 1:-1, self._dot[1], 1:-1] = 255
        return board.reshape(1, CELLS * CELL, CELLS * CELL)


def file_of(precision: str, seed: int) -> Path:
    return RESULTS / f"{precision}-seed{seed}.monitor.csv"


def lengths_of(file: Path) -> np.ndarray:
    return np.loadtxt(file, delimiter=",", skiprows=2, usecols=1, ndmin=1) if file.exists() else np.zeros(0)


def run(which: tuple[int, str]) -> str:
    seed, precision = which
    file = file_of(precision, seed)
    if len(lengths_of(file)) >= EPISODES:
        return f"{precision}, seed {seed}: was there"
    env = Monitor(Walk(), str(file))
    agent = BDPI("CnnPolicy", env, seed=seed, precision=precision, n_critics=8, device="cuda")
    agent.learn(10**9, callback=StopTrainingOnMaxEpisodes(EPISODES), log_interval=None)
    return f"{precision}, seed {seed}: {agent.num_timesteps} steps"


def compare() -> None:
    """Print both, block by block, as far as all runs have come."""
    runs = {precision: [lengths_of(file_of(precision, seed)) for seed in range(SEEDS)] for precision in PRECISIONS}
    common = min(EPISODES, *(len(lengths) for each in runs.values() for lengths in each))
    for first in range(0, common - BLOCK + 1, BLOCK):
        scores = {name: np.array([run[first : first + BLOCK].mean() for run in each]) for name, each in runs.items()}
        texts = [f"{name} {estimate_text(mean(each))}" for name, each in scores.items()]
        shorter = estimate_text(improvement([tuple(-each for each in scores.values())]))
        print(
            f"episodes {first}-{first + BLOCK}: steps per episode {', '.join(texts)} ({SEEDS} runs each); "
            f"{PRECISIONS[0]} is better with probability {shorter}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if arguments.workers:
        if not torch.cuda.is_available():
            raise SystemExit(
                "there is no GPU, or no PyTorch for it (see bdpi doctor): --workers 0 compares what there is"
            )
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            for done in pool.imap_unordered(run, product(range(SEEDS), PRECISIONS)):
                print(done, flush=True)
    compare()


if __name__ == "__main__":
    main()
