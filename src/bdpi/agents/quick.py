"""A perceptron in NumPy, for whoever has to act within a millisecond: PyTorch takes longer to begin than to compute."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from torch import Tensor, nn

from bdpi.agents.policies import BDPIPolicy
from bdpi.agents.spaces import NativeInputs, shift_to_zero
from bdpi.learner.interface import FloatArray


class QuickActor:
    """The actor of a policy, computed from its parameters where they are.

    :param policy: one whose networks are perceptrons
    :param inputs: how they see observations
    :param parameters: of the actor, flat, in PyTorch's order
    """

    def __init__(self, policy: BDPIPolicy, inputs: NativeInputs, parameters: Tensor) -> None:
        self._space, self._inputs = policy.observation_space, inputs
        self._is_tanh = policy.activation_fn is nn.Tanh
        flat, offset = parameters.numpy(), 0
        sizes = [inputs.size, *policy.actor_arch, policy.n_actions]
        self._layers = []
        for n_in, n_out in itertools.pairwise(sizes):
            weights = flat[offset : offset + n_in * n_out].reshape(n_out, n_in)
            offset += n_in * n_out
            self._layers.append((weights, flat[offset : offset + n_out]))
            offset += n_out

    def __call__(self, observations: Any) -> FloatArray:
        """pi(.|s) for a batch of observations, (n, n_actions)."""
        x = self._inputs(shift_to_zero(observations, self._space))
        (weights, bias), *others = self._layers
        y = (weights.T[x.reshape(-1)] if self._inputs.one_hot else x @ weights.T) + bias
        for weights, bias in others:
            y = (np.tanh(y) if self._is_tanh else np.maximum(y, 0.0)) @ weights.T + bias
        e = np.exp(y - y.max(axis=1, keepdims=True))
        result: FloatArray = e / e.sum(axis=1, keepdims=True)
        return result
