"""Convolutional critics on a CPU: trained as one stack, or one after the other?

    python benchmarks/stacks.py --critics 4 --batch 256

Epochs of Hallway's size by the PyTorch learner, which trains such critics one after the other; both ways in turn, in
the same process.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from bdpi.learner import Hyperparameters
from bdpi.learner.torch import TorchLearner
from gpu import IMAGES, hallway_learner, hallway_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--critics", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rng, critics = np.random.default_rng(0), arguments.critics
    memory = hallway_memory(rng)
    ways: dict[str, TorchLearner] = {}
    for name, at_once in (("as one stack", None), ("one after the other", 1)):
        _, ways[name] = hallway_learner("cpu", critics=critics)
        ways[name]._at_once = at_once
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.epochs + 1):
        batches = rng.integers(0, IMAGES, (critics, arguments.batch))
        for name, learner in ways.items():
            began = time.perf_counter()
            learner.epoch(memory, batches, np.arange(critics), Hyperparameters(fit_steps=1))
            seconds[name].append(time.perf_counter() - began)
    for name, (first, *others) in seconds.items():
        print(f"{name:<20} {1000 * np.median(others):7.0f} ms per epoch, the first one {1000 * first:.0f}")
    stack, alone = (float(np.median(each[1:])) for each in seconds.values())
    print(f"one after the other is {stack / alone:.1f} times as fast")


if __name__ == "__main__":
    main()
