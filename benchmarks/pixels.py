"""Which pixels and which learning rate does Hallway want? One critic, batches of 64, so that a CPU can tell.

    python benchmarks/pixels.py MiniWorld-Hallway-v0 --learning-rate 1e-5 --raw

`--raw` gives the networks pixels from 0 to 255, without it they are divided by 255. The authors' published code does
the former, on MiniWorld's own Hallway, with a learning rate of 1e-5; none of this is in their text. Returns go to
results/pixels/ as episodes end. It can be stopped at any time; a core makes about 200 steps a minute.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import gymnasium as gym
import torch
from stable_baselines3.common.monitor import Monitor

import bdpi.envs

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pixels"


def make(environment: str) -> gym.Env:
    """MiniWorld's own, or ours; without a display."""
    os.environ.setdefault("PYGLET_HEADLESS", "1")
    os.environ.setdefault("LP_NUM_THREADS", "0")
    bdpi.envs.register()
    return gym.make(f"miniworld:{environment}" if environment.startswith("MiniWorld") else environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", help="MiniWorld-Hallway-v0 or Hallway-v0")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--raw", action="store_true", help="pixels from 0 to 255")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30_000)
    arguments = parser.parse_args()
    pixels = "raw" if arguments.raw else "divided"
    name = f"{arguments.environment}-{pixels}-{arguments.learning_rate:g}-seed{arguments.seed}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    agent = bdpi.BDPI(
        "CnnPolicy",
        Monitor(make(arguments.environment), str(RESULTS / name)),
        n_critics=1,
        batch_size=64,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
        device="cpu",
        policy_kwargs={"normalize_images": not arguments.raw},
    )
    agent.learn(arguments.steps, progress_bar=True)


if __name__ == "__main__":
    main()
