"""What every learner is: arrays in, arrays out.

A learner holds the parameters of one actor and of ``n_critics`` pairs of Q-functions and changes them in
:meth:`Learner.epoch`, the learning epoch of the algorithm. It knows no environment and no file, and draws no random
number: which transitions and which critics an epoch uses is said by the caller. That is what makes the tabular, the
PyTorch and the native learner comparable, parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
#: One array, or a dictionary of arrays (``MultiInputPolicy``); the first axis counts transitions.
Observations = NDArray[Any] | dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Transitions:
    """Experience, as arrays of one length. ``discounts`` is gamma, or 0 where the episode terminated.

    ``actions`` are the ones that were executed, counted from 0.
    """

    observations: Observations
    actions: IntArray
    rewards: FloatArray
    discounts: FloatArray
    next_observations: Observations


@dataclass(frozen=True)
class Hyperparameters:
    """What an epoch does with its batches; see docs/algorithm.md for the paper's symbols.

    :param critic_iterations: N_t, training iterations per critic and epoch. More extract more from a batch.
    :param fit_steps: Adam steps per fit of a network to its targets.
    :param critic_step_size: alpha, how far Q' moves towards the bootstrapped return. Lower averages over more
        transitions; 1 is plain Q-learning.
    :param trust_region: delta, how far (in KL divergence) one critic may move the actor. Lower explores longer.
    :param learning_rate: Adam's learning rate of the critics.
    :param actor_learning_rate: Adam's learning rate of the actor.
    """

    critic_iterations: int = 4
    fit_steps: int = 20
    critic_step_size: float = 0.2
    trust_region: float = 0.05
    learning_rate: float = 1e-4
    actor_learning_rate: float = 1e-4

    @property
    def actor_rate(self) -> float:
        """lambda = 1 - exp(-delta), the share of the greedy policy in the actor's target (Eq. ppi_actor)."""
        return float(-np.expm1(-self.trust_region))


@dataclass(frozen=True)
class EpochMetrics:
    """Averages over the critics trained in an epoch, of their last training iteration."""

    critic_loss: float  #: mean squared error between Q_A and Q' before the fit
    actor_loss: float  #: mean squared error between the policy and its target before the fit
    mean_q: float  #: mean of Q_A over the batch's states and all actions


@dataclass
class NetworkState:
    """Flat parameters of one or more networks with Adam's state; leading axes count networks.

    Parameters are in the order of ``module.parameters()``.
    """

    parameters: FloatArray
    first_moment: FloatArray
    second_moment: FloatArray
    steps: IntArray

    @classmethod
    def fresh(cls, parameters: FloatArray) -> NetworkState:
        """Untrained networks with these parameters."""
        parameters = np.ascontiguousarray(parameters, dtype=np.float32)
        return cls(
            parameters,
            np.zeros_like(parameters),
            np.zeros_like(parameters),
            np.zeros(parameters.shape[:-1], dtype=np.int64),
        )


@dataclass
class LearnerState:
    """All that learning changes: ``actor`` (P,), ``critics`` (n_critics, 2, P), and which of each pair is Q_A."""

    actor: NetworkState
    critics: NetworkState
    active: IntArray

    @classmethod
    def fresh(cls, actor_parameters: FloatArray, critic_parameters: FloatArray) -> LearnerState:
        """The state before any learning.

        :param actor_parameters: shape (P_actor,)
        :param critic_parameters: shape (n_critics, 2, P_critic)
        """
        actor = NetworkState.fresh(actor_parameters)
        critics = NetworkState.fresh(critic_parameters)
        return cls(actor, critics, np.zeros(len(critic_parameters), dtype=np.int64))

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """The arrays themselves (not copies) by name."""
        named: dict[str, NDArray[Any]] = {"active": self.active}
        for owner in ("actor", "critics"):
            for field, array in vars(getattr(self, owner)).items():
                named[f"{owner}.{field}"] = array
        return named

    def update(self, named: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite the arrays in place, so that whoever shares their memory sees the change."""
        own = self.to_dict()
        check_same_arrays(own, named)
        for name, array in own.items():
            array[...] = named[name]


def check_same_arrays(expected: Mapping[str, NDArray[Any]], given: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a state that belongs to other networks, before anything is changed."""
    if expected.keys() != given.keys():
        missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
        raise ValueError(f"not the state of this learner: missing {missing}, unexpected {extra}")
    for name, array in expected.items():
        if np.shape(given[name]) != array.shape:
            raise ValueError(
                f"not the state of this learner: {name} has shape {np.shape(given[name])}, expected {array.shape}"
            )


class Learner(Protocol):
    """The one interface of the three learners."""

    #: short name, for people
    name: str

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """One learning epoch.

        :param transitions: the experience that ``batches`` points into
        :param batches: (n_trained, batch_size) indices: row k is the batch of ``critics[k]``
        :param critics: (n_trained,) distinct critics; the actor follows them in this order
        """
        ...

    def policy(self, observations: Observations) -> FloatArray:
        """pi(.|s): (n, n_actions) probabilities."""
        ...

    def q_values(self, observations: Observations) -> FloatArray:
        """Q_A(s, .) of every critic: (n_critics, n, n_actions)."""
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that learning changes, as arrays by name."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a state; refuse one of other networks."""
        ...
