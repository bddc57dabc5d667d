"""What every learner is: arrays in, arrays out.

A learner holds the parameters of one actor and of ``n_critics`` pairs of Q-functions and changes them in
:meth:`Learner.epoch`, the learning epoch of the algorithm. It knows no environment and no file, and draws no random
number: which transitions and which critics an epoch uses is said by the caller. That is what makes the tabular, the
PyTorch and the native learner comparable, parameter by parameter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bdpi.learner.rules import ActorRule, ClippedDouble, Conservative, CriticRule, Native
from bdpi.learner.scales import Scales

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
#: One array, or a dictionary of arrays (``MultiInputPolicy``); the first axis counts transitions.
Observations = NDArray[Any] | dict[str, NDArray[Any]]


@dataclass(slots=True)  # one is made at each step, and frozen ones take four times as long
class Ring:
    """Says that transitions lie in a ring, so that a copy needs to fetch only what is new.

    :param memory: which ring; another object means other contents
    :param capacity: how many transitions it can hold; the next one overwrites row ``added % capacity``
    :param added: how many were ever added to it: it holds so many, or ``capacity`` once it is full
    """

    memory: object
    capacity: int
    added: int


@dataclass(slots=True)
class Transitions:
    """Experience, as arrays of one length. ``discounts`` is gamma, or 0 where the episode terminated.

    ``actions`` are the ones that were executed, counted from 0. ``masks`` and ``next_masks``, of shape (n, n_actions),
    say which actions are allowed in the states and the next states; None allows all. ``ring`` is given by a replay
    memory whose arrays these are. Observations and rewards are in the user's units; ``scales`` says how networks see
    them, None: as they are.
    """

    observations: Observations
    actions: IntArray
    rewards: FloatArray
    discounts: FloatArray
    next_observations: Observations
    masks: BoolArray | None = None
    next_masks: BoolArray | None = None
    ring: Ring | None = None
    scales: Scales | None = None


@dataclass(frozen=True)
class Hyperparameters:
    """What an epoch does with its batches; see docs/algorithm.md for the paper's symbols.

    :param critic_iterations: N_t, training iterations per critic and epoch. More extract more from a batch.
    :param fit_steps: Adam steps per fit of a network to its targets.
    :param critic_rule: how a critic moves towards its new estimate.
    :param learning_rate: Adam's learning rate of the critics.
    :param actor_learning_rate: Adam's learning rate of the actor.
    :param actor_rule: how the actor follows a critic; None trains the critics only.
    :param repeats: whether a critic may be there twice in an epoch; kernels are compiled for it.
    """

    critic_iterations: int = 4
    fit_steps: int = 20
    critic_rule: CriticRule = field(default_factory=ClippedDouble)
    learning_rate: float = 1e-4
    actor_learning_rate: float = 1e-4
    actor_rule: ActorRule | None = field(default_factory=Conservative)
    repeats: bool = False

    def numbers(self) -> NDArray[np.float64]:
        """What may change from epoch to epoch: learning rates of critics and actor, parameters of their rules."""
        twins = [None if rule is None else rule.native for rule in (self.critic_rule, self.actor_rule)]
        parameters = (0.0 if twin is None else twin[1] for twin in twins)
        return np.array([self.learning_rate, self.actor_learning_rate, *parameters])

    def twins(self) -> tuple[Native, Native]:
        """The C++ functions of both rules, for what only such can train; that of an actor that is not there is any."""
        rules = self.critic_rule, Conservative() if self.actor_rule is None else self.actor_rule
        critic, actor = (rule.native for rule in rules)
        if critic is None or actor is None:
            raise ValueError(f"only PyTorch can train by {rules[critic is not None]}, which has no counterpart in C++")
        return critic, actor


@dataclass(frozen=True)
class EpochMetrics:
    """Averages over the critics trained in an epoch, of their last training iteration."""

    critic_loss: float  #: mean squared error between Q_A and Q' before the fit
    actor_loss: float  #: loss between the policy and its target before the fit; NaN without an actor
    mean_q: float  #: mean of Q_A over the batch's states and all actions


#: :meth:`Learner.epoch`
Epoch = Callable[[Transitions, IntArray, IntArray, Hyperparameters], EpochMetrics]


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

    def copied(self, dtype: DTypeLike) -> NetworkState:
        """The same networks, in another precision."""
        parameters, *moments = (
            array.astype(dtype) for array in (self.parameters, self.first_moment, self.second_moment)
        )
        return NetworkState(parameters, moments[0], moments[1], self.steps.copy())


@dataclass
class LearnerState:
    """All that learning changes, and the prior functions, which it does not.

    :param actor: one network, (P,); None for critics without an actor
    :param critics: (n_critics, 2, P)
    :param active: which of each pair is Q_A
    :param priors: (n_critics, P), or (n_critics, 0) without prior functions
    """

    actor: NetworkState | None
    critics: NetworkState
    active: IntArray
    priors: FloatArray

    @classmethod
    def fresh(
        cls,
        actor_parameters: FloatArray | None,
        critic_parameters: FloatArray,
        prior_parameters: FloatArray | None = None,
    ) -> LearnerState:
        """The state before any learning.

        :param actor_parameters: shape (P_actor,)
        :param critic_parameters: shape (n_critics, 2, P_critic)
        :param prior_parameters: shape (n_critics, P_critic)
        """
        n_critics = len(critic_parameters)
        return cls(
            None if actor_parameters is None else NetworkState.fresh(actor_parameters),
            NetworkState.fresh(critic_parameters),
            np.zeros(n_critics, dtype=np.int64),
            np.zeros((n_critics, 0), np.float32) if prior_parameters is None else prior_parameters.astype(np.float32),
        )

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """The arrays themselves (not copies) by name."""
        named: dict[str, NDArray[Any]] = {"active": self.active, "priors": self.priors}
        for owner, networks in (("actor", self.actor), ("critics", self.critics)):
            if networks is not None:
                named |= {f"{owner}.{name}": array for name, array in vars(networks).items()}
        return named

    def update(self, named: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite the arrays in place, so that all that share their memory see the change."""
        own = self.to_dict()
        check_same_arrays(own, named)
        for name, array in own.items():
            array[...] = named[name]


def check_same_arrays(expected: Mapping[str, NDArray[Any]], given: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a state that belongs to other networks, or is no state at all, before anything is changed.

    :raises RuntimeError: as PyTorch's ``load_state_dict`` does
    """
    if expected.keys() != given.keys():
        missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
        raise RuntimeError(f"not the state of this learner: missing {missing}, unexpected {extra}")
    for name, array in expected.items():
        if np.shape(given[name]) != array.shape:
            raise RuntimeError(
                f"not the state of this learner: {name} has shape {np.shape(given[name])}, expected {array.shape}"
            )
        if not np.isfinite(given[name]).all():
            raise RuntimeError(f"the state is damaged: {name} holds numbers that are not finite")
    if not np.isin(given["active"], (0, 1)).all():
        raise RuntimeError("the state is damaged: 'active' holds other numbers than 0 and 1")


def in_stretches(
    epoch: Epoch,
    transitions: Transitions,
    batches: IntArray,
    critics: IntArray,
    hyperparameters: Hyperparameters,
    most: int | None = None,
) -> EpochMetrics:
    """An epoch of critics some of which are there twice: one stretch of distinct critics after the other, which is the
    same, because critics learn apart, and the actor in their order.

    :param epoch: trains distinct critics side by side
    :param most: critics of a stretch; their numbers are then powers of two, so that few sizes have to be compiled
    """
    if len(set(critics.tolist())) == len(critics):
        return epoch(transitions, batches, critics, hyperparameters)
    parts = _stretches(critics.tolist(), most)
    found = [astuple(epoch(transitions, batches[part], critics[part], hyperparameters)) for part in parts]
    return EpochMetrics(*np.average(found, axis=0, weights=[len(critics[part]) for part in parts]).tolist())


def _stretches(critics: list[int], most: int | None) -> list[slice]:
    """The longest stretches of distinct critics, from the first on."""
    starts = [0]
    for number, critic in enumerate(critics):
        if critic in critics[starts[-1] : number]:
            starts.append(number)
    found = [slice(*ends) for ends in itertools.pairwise([*starts, len(critics)])]
    return found if most is None else [part for each in found for part in _halved(each, most)]


def _halved(stretch: slice, most: int) -> list[slice]:
    """Parts whose sizes are powers of two, the largest first."""
    start, parts = stretch.start, []
    while start < stretch.stop:
        size = min(most, 2 ** ((stretch.stop - start).bit_length() - 1))
        parts.append(slice(start, start + size))
        start += size
    return parts


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
        :param critics: (n_trained,) critics; the actor follows them in this order. One that is there twice is trained
            twice, on one batch after the other
        """
        ...

    def policy(self, observations: Observations) -> FloatArray:
        """pi(.|s): (n, n_actions) probabilities. Only where there is an actor."""
        ...

    def q_values(self, observations: Observations) -> FloatArray:
        """Q_A(s, .) of every critic, with its prior function: (n_critics, n, n_actions)."""
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that learning changes, as arrays by name."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a state; refuse one of other networks."""
        ...
