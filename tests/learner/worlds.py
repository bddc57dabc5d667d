"""Random networks, transitions and batches that all learner tests share."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import torch
from torch import nn

from bdpi.learner import Learner, LearnerState, Transitions, nvrtc
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks
from bdpi.learner.native import NativeLearner
from bdpi.learner.reference import ReferenceLearner
from bdpi.learner.torch import TorchLearner

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


def perceptron(sizes: list[int], activation: str = "tanh") -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(n_in, n_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def random_state(
    actor_sizes: list[int], critic_sizes: list[int], n_critics: int, seed: int = 0, priors: bool = False
) -> LearnerState:
    torch.manual_seed(seed)
    critics = [[flatten_parameters(perceptron(critic_sizes)) for _ in range(2)] for _ in range(n_critics)]
    actor = flatten_parameters(perceptron(actor_sizes))
    fixed = np.array([flatten_parameters(perceptron(critic_sizes)) for _ in range(n_critics)]) if priors else None
    return LearnerState.fresh(actor, np.array(critics), fixed)


def random_transitions(
    n_inputs: int,
    n_actions: int,
    one_hot: bool,
    n: int = 500,
    seed: int = 0,
    discount: float | None = None,
    masked: bool = False,
) -> Transitions:
    """``discount`` None mixes terminal transitions, gamma, and other discounts."""
    rng = np.random.default_rng(seed)

    def observations() -> np.ndarray:
        if one_hot:
            return rng.integers(0, n_inputs, n)
        return rng.normal(size=(n, n_inputs)).astype(np.float32)

    def random_masks() -> np.ndarray:
        masks = rng.random((n, n_actions)) < 0.6
        masks[np.arange(n), rng.integers(0, n_actions, n)] = True
        return masks

    discounts = rng.choice([0.0, 0.99, 0.5, 1.0], n) if discount is None else np.full(n, discount)
    return Transitions(
        observations(),
        rng.integers(0, n_actions, n),
        rng.normal(size=n).astype(np.float32),
        discounts.astype(np.float32),
        observations(),
        random_masks() if masked else None,
        random_masks() if masked else None,
    )


def picture_transitions(shape: tuple[int, int, int], n_actions: int, n: int = 60, dtype: Any = np.uint8) -> Transitions:
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(2, n, *shape)) if dtype is np.float32 else rng.integers(0, 255, (2, n, *shape))
    rewards, discounts = rng.normal(size=n).astype(np.float32), rng.choice([0, 0.99], n).astype(np.float32)
    pictures = drawn.astype(dtype)
    return Transitions(pictures[0], rng.integers(0, n_actions, n), rewards, discounts, pictures[1])


def random_batches(n_critics: int, n_trained: int, batch_size: int, n: int = 500, seed: int = 0):
    rng = np.random.default_rng(seed + 1)
    return rng.integers(0, n, (n_trained, batch_size)), rng.permutation(n_critics)[:n_trained]


def make_learner(
    kind: str,
    state: LearnerState,
    actor_sizes: list[int],
    critic_sizes: list[int],
    activation: str = "tanh",
    one_hot: bool = False,
    prior_scale: float = 0.0,
    **native_arguments: Any,
) -> Learner:
    """A learner of perceptrons.

    :param kind: reference, native, torch, cuda or cuda:1 (PyTorch on a GPU), fused (kernels on a GPU, or on an
        emulation of one), or whole (the kernels for many runs, which have a program for each network)
    """
    if kind == "native":
        arguments = {"activation": activation, "one_hot": one_hot, "prior_scale": prior_scale, **native_arguments}
        return NativeLearner(actor_sizes, critic_sizes, copy.deepcopy(state), **arguments)
    modules = perceptron(actor_sizes, activation), perceptron(critic_sizes, activation)
    if kind in ("fused", "whole"):
        sizes, runs = (tuple(actor_sizes), tuple(critic_sizes)), 128 if kind == "whole" else 1
        networks = FusedNetworks(*sizes, one_hot, activation == "relu", runs)
        assert networks._layout("train_critics", sizes[1], batch_size=256)["WHOLE"] == (kind == "whole")
        return FusedLearner(*modules, state, networks, "cuda" if nvrtc.is_available() else "cpu")

    def preprocess(tensor: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(tensor, critic_sizes[0]).float() if one_hot else tensor.float()

    if kind == "reference":
        return ReferenceLearner(*modules, state, preprocess, prior_scale)
    return TorchLearner(*modules, state, "cpu" if kind == "torch" else kind, preprocess, prior_scale)


def assert_same_state(first, second, tolerance: float = 1e-4) -> None:
    """All arrays agree within ``tolerance``, relative to the largest entry of the array."""
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, name
        if array.size == 0:
            continue
        difference, scale = np.abs(array - theirs[name]).max(), np.abs(array).max()
        assert difference <= tolerance * max(scale, 1e-12), f"{name}: {difference} of {scale}"
