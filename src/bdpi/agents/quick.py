"""The actor in NumPy, for whoever has to act within a millisecond."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from bdpi.agents.policies import BDPIPolicy
from bdpi.agents.spaces import NativeInputs, scaled, shift_to_zero
from bdpi.learner.interface import FloatArray
from bdpi.learner.perceptron import Perceptron


class QuickActor:
    """The actor of a policy.

    :param policy: one whose networks are perceptrons
    :param inputs: how they see observations
    :param parameters: of the actor, flat; what changes in them changes here
    """

    def __init__(self, policy: BDPIPolicy, inputs: NativeInputs, parameters: Tensor) -> None:
        self._policy, self._space, self._inputs = policy, policy.observation_space, inputs
        sizes = [inputs.size, *policy.actor_arch, policy.n_actions]
        self._network = Perceptron(parameters.numpy(), sizes, inputs.one_hot, policy.activation_fn is nn.Tanh)

    def __call__(self, observations: Any) -> FloatArray:
        """pi(.|s) for a batch of observations, (n, n_actions)."""
        y = self._network(scaled(self._inputs, shift_to_zero(observations, self._space), self._policy.scales))
        e = np.exp(y - y.max(axis=1, keepdims=True))
        result: FloatArray = e / e.sum(axis=1, keepdims=True)
        return result
