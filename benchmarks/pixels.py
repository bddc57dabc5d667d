"""Which pixels and which learning rate does Hallway want? One critic, batches of 64, so that a CPU can tell.

    python benchmarks/pixels.py MiniWorld-Hallway-v0 --learning-rate 1e-5 --raw
    python benchmarks/pixels.py MiniWorld-Hallway-v0 --spread

`--raw` gives the networks pixels from 0 to 255, without it they are divided by 255. The authors' published code does
the former, on MiniWorld's own Hallway, with a learning rate of 1e-5; none of this is in their text. Returns go to
results/pixels/ as episodes end. It can be stopped at any time; a core makes about 200 steps a minute. `--spread` says
how much the hidden units of fresh critics differ between pictures, for either kind of pixels.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.monitor import Monitor
from torch import Tensor, nn

import bdpi
from bdpi.agents.policies import CnnPolicy
from bdpi.runs.build import make_environment

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pixels"


def make(environment: str) -> gym.Env:
    """MiniWorld's own, or ours."""
    return make_environment(f"miniworld:{environment}" if environment.startswith("MiniWorld") else environment)


def random_pictures(env: gym.Env, n: int) -> Tensor:
    """What a random policy sees, channels first."""
    pictures, _ = [], env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(n):
        picture, _, terminated, truncated, _ = env.step(env.action_space.sample())
        pictures.append(picture)
        if terminated or truncated:
            env.reset()
    return torch.as_tensor(np.moveaxis(np.array(pictures), -1, 1))


def spread(pictures: Tensor, is_raw: bool, seed: int) -> float:
    """Standard deviation of a fresh critic's hidden units over pictures, averaged over the units."""
    torch.manual_seed(seed)
    space = gym.spaces.Box(0, 255, pictures.shape[1:], np.uint8)
    policy = CnnPolicy(space, gym.spaces.Discrete(3), normalize_images=not is_raw)
    critic, found = policy.make_critic(), []
    (units,) = (module for module in critic.modules() if isinstance(module, nn.Tanh))
    units.register_forward_hook(lambda module, inputs, outputs: found.append(float(outputs.std(dim=0).mean())))
    with torch.no_grad():
        critic(policy.preprocess(pictures))
    return found[0]


def measure_spread(environment: str) -> None:
    pictures = random_pictures(make(environment), 2000)
    with (RESULTS / f"{environment}-spread.csv").open("w") as file:
        print("pixels,seed,spread", file=file)
        for is_raw, seed in product((True, False), range(8)):
            line = f"{'raw' if is_raw else 'divided'},{seed},{spread(pictures, is_raw, seed):.4g}"
            print(line, file=file)
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", help="MiniWorld-Hallway-v0 or Hallway-v0")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--raw", action="store_true", help="pixels from 0 to 255")
    parser.add_argument("--spread", action="store_true", help="of hidden units, instead of learning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30_000)
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if arguments.spread:
        measure_spread(arguments.environment)
        return
    pixels = "raw" if arguments.raw else "divided"
    name = f"{arguments.environment}-{pixels}-{arguments.learning_rate:g}-seed{arguments.seed}"
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
