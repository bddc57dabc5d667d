"""Which learner trains a policy's networks, and how it is fed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from bdpi.agents.buffers import gather
from bdpi.agents.policies import BDPIPolicy
from bdpi.agents.spaces import NativeInputs
from bdpi.learner import EpochMetrics, Hyperparameters, Learner, LearnerState, Transitions, native
from bdpi.learner.interface import FloatArray, IntArray
from bdpi.learner.native import NativeLearner
from bdpi.learner.torch import TorchLearner, bind_parameters, flatten_parameters

LearnerChoice = Literal["auto", "native", "torch"]


def choose_learner(policy: BDPIPolicy, choice: LearnerChoice, device: torch.device) -> Literal["native", "torch"]:
    """The native learner wherever it can do the work; it is the fastest for small networks."""
    if choice not in ("auto", "native", "torch"):
        raise ValueError(f'learner must be "auto", "native" or "torch", got {choice!r}')
    if choice == "torch":
        return "torch"
    suitable = policy.native_inputs() is not None and device.type == "cpu"
    if choice == "native":
        if not suitable:
            raise ValueError(
                "the native learner trains multi-layer perceptrons with tanh or ReLU units on the CPU; for other "
                'networks and devices use learner="auto"'
            )
        if not native.is_available():
            raise ValueError(f"the native learner is not available: {native.info()['reason']}")
        return "native"
    if suitable and not native.is_available():
        warnings.warn(
            "bdpi was installed without its compiled learner and falls back to PyTorch, with the same results but "
            f"about 100 times slower. {native.REMEDY}",
            RuntimeWarning,
            stacklevel=2,
        )
    return "native" if suitable and native.is_available() else "torch"


def initial_state(policy: BDPIPolicy, n_critics: int) -> LearnerState:
    """Freshly initialised networks: the policy's actor, and two Q-networks for each critic."""
    critics = [[flatten_parameters(policy.make_critic()) for _ in range(2)] for _ in range(n_critics)]
    return LearnerState.fresh(flatten_parameters(policy.actor), np.array(critics))


class AgentLearner:
    """A learner that reads an agent's replay memory and keeps its policy's actor up to date.

    :param policy: whose actor is trained; from now on it shares its memory with the learner
    :param n_critics: number of critics
    :param batch_size: largest batch of an epoch
    :param choice: "auto", or the name of a learner
    :param n_threads: threads of the native learner
    """

    def __init__(
        self,
        policy: BDPIPolicy,
        n_critics: int,
        batch_size: int,
        choice: LearnerChoice = "auto",
        n_threads: int | None = None,
    ) -> None:
        state = initial_state(policy, n_critics)
        self.learner: Learner
        self._inputs: NativeInputs | None = None
        if choose_learner(policy, choice, policy.device) == "native":
            self._inputs = policy.native_inputs()
            assert self._inputs is not None
            self.learner = NativeLearner(
                actor_sizes=[self._inputs.size, *policy.actor_arch, policy.n_actions],
                critic_sizes=[self._inputs.size, *policy.critic_arch, policy.n_actions],
                state=state,
                activation="tanh" if policy.activation_fn is nn.Tanh else "relu",
                one_hot=self._inputs.one_hot,
                batch_size=batch_size,
                n_threads=n_threads,
            )
            bind_parameters(policy.actor, torch.from_numpy(state.actor.parameters))
        else:
            # a copy of the actor, because a functional call swaps a module's parameters for a moment
            self.learner = TorchLearner(
                copy.deepcopy(policy.actor), policy.make_critic(), state, policy.device, policy.preprocess
            )
            bind_parameters(policy.actor, self.learner.actor.parameters)

    @property
    def name(self) -> str:
        """Which learner it is: "native" or "torch"."""
        return self.learner.name

    def prepare(
        self, transitions: Transitions, batches: IntArray, normalizer: VecNormalize | None
    ) -> tuple[Transitions, IntArray]:
        """The learner's arrays for these batches: the replay memory itself where possible, else a converted copy."""
        inputs = self._inputs
        if normalizer is not None or (inputs is not None and not inputs.direct):
            transitions = gather(transitions, batches, normalizer)
            batches = np.arange(batches.size).reshape(batches.shape)
        if inputs is not None:
            transitions = Transitions(
                inputs(transitions.observations),
                transitions.actions,
                transitions.rewards,
                transitions.discounts,
                inputs(transitions.next_observations),
            )
        return transitions, batches

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """One learning epoch on what :meth:`prepare` returned."""
        return self.learner.epoch(transitions, batches, critics, hyperparameters)

    def policy_and_greedy_actions(self, transitions: Transitions, batch: IntArray) -> tuple[FloatArray, IntArray]:
        """pi(.|s) and every critic's greedy action (n_critics, n) for the states of a batch; for diagnostics."""
        stored = transitions.observations
        states = {key: part[batch] for key, part in stored.items()} if isinstance(stored, dict) else stored[batch]
        return self.learner.policy(states), self.learner.q_values(states).argmax(axis=2)

    # What SB3's save and load ask of anything that they store.

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that learning changes."""
        return {name: torch.from_numpy(array.copy()) for name, array in self.learner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Take over a state; a state of other networks is refused."""
        self.learner.load_state_dict({name: np.asarray(tensor.cpu()) for name, tensor in state.items()})
