"""Milliseconds per learning epoch on a GPU, for one run and for many, beside the floor that its arithmetic allows.

    make bench-gpu

One epoch belongs to one step of the environment. The floor is the larger of two times: the multiplications of the epoch
at the GPU's peak rate for their type, and the replay samples and networks read once from its memory. One-hot inputs
select weights, without any multiplication, and samples of the same state have the same outputs. Convolutional networks
(Hallway) multiply on tensor cores, in TF32 as PyTorch's convolutions do by default, or in bfloat16.

Many runs are measured as a population has them, with environments that take no time: in as many groups as are trained
at a time, each of which is started again when it is done, with one more transition in each replay memory. The figure is
the time in which all runs get one epoch, while all groups go on.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bdpi.agents.learners import network_learner
from bdpi.agents.policies import CnnPolicy
from bdpi.learner import Hyperparameters, LearnerState, fused, nvrtc
from bdpi.learner.arrangement import Precision
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks
from bdpi.learner.interface import Ring, Transitions
from bdpi.learner.joint import JointLearner
from bdpi.learner.native import NativeLearner
from bdpi.learner.rules import Conservative
from bdpi.learner.stack import N_GROUPS, Group, Stack, StackRow, Stacks
from bdpi.learner.torch import TorchLearner
from bdpi.runs.versions import origin

TASKS = {"LunarLander": (8, 256, 4, False), "TableLong": (3, 32, 3, False), "FrozenLake8x8": (64, 32, 4, True)}
CRITICS, BATCH, CAPACITY = 16, 256, 20_000
PEAK_FLOPS, PEAK_BYTES = 67e12, 4.8e12  # an H200's, by its data sheet: float32 without tensor cores; memory
PEAK_CONVOLUTIONS: dict[Precision, float] = {"float32": 495e12, "bfloat16": 989e12}  # on tensor cores; TF32, bfloat16
IMAGES, IMAGE = 2_000, (3, 60, 80)


def network(sizes: tuple[int, int, int]) -> nn.Module:
    inputs, hidden, outputs = sizes
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def transitions(inputs: int, n_actions: int, one_hot: bool, rng: np.random.Generator) -> Transitions:
    def observations() -> np.ndarray:
        if one_hot:
            return rng.integers(0, inputs, CAPACITY)
        return rng.normal(size=(CAPACITY, inputs)).astype(np.float32)

    return Transitions(
        observations(),
        rng.integers(0, n_actions, CAPACITY),
        rng.normal(size=CAPACITY).astype(np.float32),
        np.full(CAPACITY, 0.99, np.float32),
        observations(),
        ring=Ring(object(), CAPACITY, CAPACITY),
    )


def floor(sizes: tuple[int, int, int], one_hot: bool, runs: int, hyper: Hyperparameters) -> float:
    """Milliseconds."""
    inputs, hidden, outputs = sizes
    rows, multiplied = (min(inputs, BATCH), 0) if one_hot else (BATCH, inputs)
    fits = (CRITICS * hyper.critic_iterations + CRITICS) * hyper.fit_steps
    targets = CRITICS * (3 * hyper.critic_iterations + 1)
    # A fit needs the outputs, the gradients of the hidden units, and those of both layers' weights.
    products = fits * (2 * multiplied + 3 * outputs) + targets * (multiplied + outputs)
    flops = runs * 2 * rows * hidden * products
    parameters = (inputs + 1) * hidden + (hidden + 1) * outputs
    sample = 2 * (2 if one_hot else inputs) + 4
    size = runs * 4 * (CRITICS * BATCH * sample + 2 * 3 * parameters * (2 * CRITICS + 1))
    return 1000 * max(flops / PEAK_FLOPS, size / PEAK_BYTES)


def milliseconds(epoch: Callable[[], object], repeats: int) -> float:
    epoch()  # compiles
    epoch()  # is recorded as a graph
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        epoch()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / repeats


def milliseconds_of_many(
    learners: list[JointLearner], ask: Callable[[JointLearner, int], StackRow], repeats: int
) -> float:
    """Until all runs have had an epoch.

    :param ask: have a learner ask for an epoch, with so many more transitions
    """
    groups = [learners[first::N_GROUPS] for first in range(N_GROUPS)]

    def start(group: list[JointLearner], number: int) -> tuple[Stack, Group]:
        rows = [ask(learner, number) for learner in group]
        return rows[0].stack, rows[0].stack.start([row.row for row in rows])

    started = [start(group, 0) for group in groups]
    for number in range(1, repeats + 4):
        if number == 3:  # the first epochs are not counted: they send memories, and compile
            began = time.perf_counter()
        for which, group in enumerate(groups):
            stack, pending = started[which]
            stack.finish(pending)
            started[which] = start(group, number)
    elapsed = time.perf_counter() - began
    for stack, pending in started:
        stack.finish(pending)
    return 1000 * elapsed / (repeats + 1)


@dataclass(frozen=True)
class Figure:
    """One line of the benchmark."""

    task: str
    learner: str
    runs: int
    ms: float
    floor: float

    def __str__(self) -> str:
        each = self.ms / self.runs
        time_ = f"{self.ms:>8.2f} ms per step, {each:>6.3f} per run, floor {self.floor:.2f}"
        return f"{self.task:<14} {self.learner:<18} {self.runs:>4} runs {time_}"


def measure(task: str) -> Iterator[Figure]:
    inputs, hidden, outputs, one_hot = TASKS[task]
    sizes, rng, hyper = (inputs, hidden, outputs), np.random.default_rng(0), Hyperparameters()
    critics = np.array([[flatten_parameters(network(sizes)) for _ in range(2)] for _ in range(CRITICS)])
    state = LearnerState.fresh(flatten_parameters(network(sizes)), critics)
    memory = transitions(inputs, outputs, one_hot, rng)
    networks = FusedNetworks(sizes, sizes, one_hot, relu=False)
    batches, order = rng.integers(0, CAPACITY, (CRITICS, BATCH)), rng.permutation(CRITICS)
    fused_learner = FusedLearner(network(sizes), network(sizes), state, networks)
    preprocess = fused_learner.preprocess
    learners = {
        "fused": fused_learner,
        "torch, CUDA graph": TorchLearner(network(sizes), network(sizes), state, "cuda", preprocess=preprocess),
        "native, CPU": NativeLearner(list(sizes), list(sizes), state, one_hot=one_hot, batch_size=BATCH),
    }
    for name, learner in learners.items():
        epoch = partial(learner.epoch, memory, batches, order, hyper)
        yield Figure(task, name, 1, milliseconds(epoch, 20 if name == "fused" else 5), floor(sizes, one_hot, 1, hyper))
    for runs in (16, 128):
        stacks = Stacks(runs, "cuda")
        many = [JointLearner(stacks, networks, state.to_dict()) for _ in range(runs)]

        def ask(learner: JointLearner, added: int) -> StackRow:
            ring = replace(memory.ring, added=CAPACITY + added)
            place = learner.ask(replace(memory, ring=ring), batches, order, hyper)
            assert isinstance(place, StackRow)
            return place

        ms = milliseconds_of_many(many, ask, 10)
        yield Figure(task, "fused, together", runs, ms, floor(sizes, one_hot, runs, hyper))


def convolutional_floor(policy: CnnPolicy, hyper: Hyperparameters, precision: Precision) -> float:
    """Milliseconds; PyTorch counts the multiplications."""
    network = policy.make_critic()
    with FlopCounterMode(display=False) as counter:
        outputs = network(torch.rand(BATCH, *IMAGE))
        forward = counter.get_total_flops()
        outputs.sum().backward()
        fit = counter.get_total_flops()
    values = CRITICS * (hyper.critic_iterations + 1)  # of the next states: both networks once, then those fitted
    fits = CRITICS * (hyper.critic_iterations + 1) * hyper.fit_steps
    parameters = sum(parameter.numel() for parameter in network.parameters())
    size = CRITICS * BATCH * 2 * math.prod(IMAGE) + 4 * 2 * 3 * parameters * (2 * CRITICS + 1)
    return 1000 * max((values * forward + fits * fit) / PEAK_CONVOLUTIONS[precision], size / PEAK_BYTES)


def hallway_memory(rng: np.random.Generator) -> Transitions:
    """Random pictures of Hallway's size."""
    images = rng.integers(0, 255, (IMAGES, *IMAGE), dtype=np.uint8)
    numbers = rng.normal(size=IMAGES).astype(np.float32)
    ring = Ring(object(), IMAGES, IMAGES)
    return Transitions(
        images, rng.integers(0, 4, IMAGES), numbers, np.full_like(numbers, 0.99), images[::-1].copy(), ring=ring
    )


def hallway_learner(
    device: str, precision: Precision = "float32", kernels: bool = False, critics: int = CRITICS
) -> tuple[CnnPolicy, TorchLearner]:
    """Networks of Hallway's size, always the same ones, and who trains them."""
    torch.manual_seed(0)
    policy = CnnPolicy(spaces.Box(0, 255, IMAGE, np.uint8), spaces.Discrete(4))
    learner = network_learner(
        policy,
        Conservative(),
        critics,
        BATCH,
        torch.device(device),
        "torch",
        precision=precision,
        picture_kernels=kernels,
    ).learner
    assert isinstance(learner, TorchLearner)
    return policy, learner


def measure_hallway(device: str = "cuda") -> Iterator[Figure]:
    rng, hyper = np.random.default_rng(0), Hyperparameters(fit_steps=1)
    memory = hallway_memory(rng)
    batches, order = rng.integers(0, IMAGES, (CRITICS, BATCH)), rng.permutation(CRITICS)
    ways: tuple[tuple[Precision, bool], ...] = (("float32", False), ("bfloat16", False), ("bfloat16", True))
    for precision, kernels in ways:
        policy, learner = hallway_learner(device, precision, kernels)
        epoch = partial(learner.epoch, memory, batches, order, hyper)
        name = f"torch, {precision}" + ", kernels of our own" * kernels
        yield Figure("Hallway", name, 1, milliseconds(epoch, 10), convolutional_floor(policy, hyper, precision))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    arguments = parser.parse_args()
    if not fused.is_available():
        raise SystemExit(f"bench-gpu needs {nvrtc.REMEDY}")
    figures = []
    print(torch.cuda.get_device_name())
    for figure in chain(measure_hallway(), *(measure(task) for task in TASKS)):
        figures.append(asdict(figure))
        print(figure, flush=True)
    if arguments.out is not None:
        found = {"gpu": torch.cuda.get_device_name(), "made_by": origin(), "figures": figures}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
