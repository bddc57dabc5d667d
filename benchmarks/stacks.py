"""Convolutional critics on a CPU: trained as one stack, or one after the other?

    python benchmarks/stacks.py --critics 4 --batch 256

Epochs of Hallway's size by the PyTorch learner, which trains such critics one after the other; both ways in turn, in
the same process.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch
from gymnasium import spaces

from bdpi.agents.policies import CnnPolicy
from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.torch import TorchLearner

IMAGES, IMAGE, ACTIONS = 500, (3, 60, 80), 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--critics", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rng, critics = np.random.default_rng(0), arguments.critics
    policy = CnnPolicy(spaces.Box(0, 255, IMAGE, np.uint8), spaces.Discrete(ACTIONS))
    images = rng.integers(0, 255, (IMAGES, *IMAGE), dtype=np.uint8)
    rewards, discounts = rng.normal(size=IMAGES).astype(np.float32), np.full(IMAGES, 0.99, np.float32)
    memory = Transitions(images, rng.integers(0, ACTIONS, IMAGES), rewards, discounts, images[::-1].copy())
    start = np.array([[flatten_parameters(policy.make_critic()) for _ in range(2)] for _ in range(critics)])
    assert policy.actor is not None
    state, hyper = LearnerState.fresh(flatten_parameters(policy.actor), start), Hyperparameters(fit_steps=1)

    ways: dict[str, TorchLearner] = {}
    for name, at_once in (("as one stack", None), ("one after the other", 1)):
        actor, critic = copy.deepcopy(policy.actor), policy.make_critic()
        ways[name] = TorchLearner(actor, critic, state, preprocess=policy.preprocess)
        ways[name]._at_once = at_once
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.epochs + 1):
        batches = rng.integers(0, IMAGES, (critics, arguments.batch))
        for name, learner in ways.items():
            began = time.perf_counter()
            learner.epoch(memory, batches, np.arange(critics), hyper)
            seconds[name].append(time.perf_counter() - began)
    for name, each in seconds.items():
        print(
            f"{name:<20} {1000 * np.median(each[1:]):7.0f} ms per epoch, the first one {1000 * each[0]:.0f}", flush=True
        )
    stack, alone = (float(np.median(each[1:])) for each in seconds.values())
    print(f"one after the other is {stack / alone:.1f} times as fast")


if __name__ == "__main__":
    main()
