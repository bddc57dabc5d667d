"""Do the Q-values of a critic stay where they belong, on pictures? With tanh units behind its convolutions, and with
rectified ones.

    python benchmarks/hidden_units.py --epochs 3000

A critic of BDPI (two networks, batches of 64) learns from what a random policy did in Hallway, where rewards are 0 or
1: no Q-value can be above 1, or below 0. Both kinds of hidden units learn from the same batches, in float32, on the
CPU, each in a process of its own, several times from other weights and batches. Every hundredth epoch, a line says what
the critic thinks of 64 states.
"""

from __future__ import annotations

import argparse
import csv
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import bdpi.envs  # noqa: F401
from bdpi.agents.policies import CnnPolicy
from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.torch import TorchLearner

UNITS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "rectified": nn.ReLU}
BATCH, PROBES, EVERY = 64, 64, 100


def random_transitions(n: int, gamma: float = 0.99) -> Transitions:
    """What a random policy does in Hallway, channels first."""
    env, rng = gym.make("Hallway-v0"), np.random.default_rng(0)
    space = env.observation_space
    assert space.shape is not None
    images = np.empty((2, n, *space.shape), np.uint8)
    actions, (rewards, discounts) = rng.integers(0, 4, n), np.empty((2, n), np.float32)
    observation, _ = env.reset(seed=0)
    for i, action in enumerate(actions):
        images[0, i] = observation
        observation, reward, terminated, truncated, _ = env.step(action)
        images[1, i], rewards[i], discounts[i] = observation, float(reward), 0 if terminated else gamma
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    images = np.moveaxis(images, -1, 2)
    return Transitions(images[0], actions, rewards, discounts, images[1])


def train(job: tuple[int, str], n: int, epochs: int) -> list[tuple[str, int, int, float, float, float]]:
    """Lines: units, seed, epoch, mean, least and largest Q-value."""
    seed, units = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    memory, rng = random_transitions(n), np.random.default_rng(1 + seed)
    space = gym.spaces.Box(0, 255, memory.observations.shape[1:], np.uint8)
    policy = CnnPolicy(space, gym.spaces.Discrete(4), activation_fn=UNITS[units])
    start = np.array([[flatten_parameters(policy.make_critic()) for _ in range(2)]])
    learner = TorchLearner(None, policy.make_critic(), LearnerState.fresh(None, start), preprocess=policy.preprocess)
    hyper, probes = Hyperparameters(fit_steps=1, actor_rule=None), memory.observations[rng.integers(0, n, PROBES)]
    lines = []
    for epoch in range(1, epochs + 1):
        learner.epoch(memory, rng.integers(0, n, (1, BATCH)), np.array([0]), hyper)
        if epoch % EVERY == 0:
            q = learner.q_values(probes)
            lines.append((units, seed, epoch, float(q.mean()), float(q.min()), float(q.max())))
            print("{:<10} seed {} epoch {:>5}: mean {:>10.3g}, from {:.3g} to {:.3g}".format(*lines[-1]), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--transitions", type=int, default=8000, help="of a random policy")
    parser.add_argument("--out", type=Path, help="also write the lines there, as CSV")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(len(UNITS), get_context("spawn")) as pool:
        jobs = product(range(arguments.seeds), UNITS)
        found = list(pool.map(partial(train, n=arguments.transitions, epochs=arguments.epochs), jobs))
    if arguments.out is not None:
        with arguments.out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("units", "seed", "epoch", "mean", "least", "largest"))
            writer.writerows(chain(*found))


if __name__ == "__main__":
    main()
