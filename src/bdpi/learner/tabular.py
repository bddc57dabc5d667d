"""BDPI on tables: the paper's pseudocode for discrete states, exact, and the oracle of the tests.

An epoch takes a time that grows with its batches, whatever the size of the tables.

Where a network is *fitted* to a table of targets by gradient steps, a table simply takes the least-squares solution:
the target of a state, or the mean of its targets if the batch holds it several times. A network with enough capacity
and gradient steps therefore ends where this learner is after each update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bdpi.learner.interface import (
    BoolArray,
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    Observations,
    Transitions,
    check_same_arrays,
)
from bdpi.learner.rules import ActorRule, CriticRule


def critic_targets(
    rule: CriticRule, q_a: FloatArray, q_next_a: FloatArray, q_next_b: FloatArray, *rest: NDArray[Any]
) -> FloatArray:
    """Q'(s, .) for each transition.

    :param q_a: Q_A(s, .), shape (n, n_actions)
    :param q_next_a: Q_A(s', .)
    :param q_next_b: Q_B(s', .)
    :param rest: actions, rewards, discounts
    """
    actions, targets = rest[0], q_a.copy()
    arrays = (torch.from_numpy(array) for array in (q_a, q_next_a, q_next_b, *rest))
    targets[np.arange(len(actions)), actions] += rule.change(*arrays).numpy()
    return targets


def allowed(q: FloatArray, masks: BoolArray | None) -> FloatArray:
    """See :func:`bdpi.learner.rules.allowed`."""
    return q if masks is None else np.where(masks | ~masks.any(axis=-1, keepdims=True), q, -np.inf)


def actor_targets(rule: ActorRule, policy: FloatArray, q: FloatArray) -> FloatArray:
    """The policy that each transition pulls the actor to."""
    return rule.targets(torch.from_numpy(policy), torch.from_numpy(q)).numpy()


def actor_loss(rule: ActorRule, policy: FloatArray, targets: FloatArray) -> float:
    """What the rule minimises: mean squared error, or mean cross-entropy."""
    if rule.loss == "cross_entropy":
        return float(-(targets * np.log(np.maximum(policy, 1e-30))).sum(axis=1).mean())
    return float(np.mean((policy - targets) ** 2))


class Groups(NamedTuple):
    """Which rows of a batch have the same state."""

    states: IntArray  #: each once
    rows: IntArray  #: of each row, where its state is in ``states``
    counts: IntArray  #: of each state, how many rows have it


def group(states: IntArray) -> Groups:
    """The rows of a batch by their states, in a time that grows with the batch, not with the number of states."""
    return Groups(*np.unique(states, return_inverse=True, return_counts=True))


def assign(table: FloatArray, groups: Groups, targets: FloatArray) -> None:
    """Set ``table[state]`` to the mean of the targets of each state in the batch: the least-squares fit."""
    for action in range(table.shape[1]):
        table[groups.states, action] = np.bincount(groups.rows, weights=targets[:, action]) / groups.counts


def _rows(masks: BoolArray | None, batch: IntArray) -> BoolArray | None:
    return None if masks is None else masks[batch]


class TabularLearner:
    """One table for the actor, two for each critic; double precision.

    :param n_states: number of states; observations are state numbers from 0
    :param n_actions: number of actions
    :param n_critics: number of critics
    :param critics: initial Q tables, shape (n_critics, 2, n_states, n_actions); zeros if not given
    :param actor: initial policy, shape (n_states, n_actions); uniform if not given
    """

    name = "tabular"

    def __init__(
        self,
        n_states: int,
        n_actions: int,
        n_critics: int,
        critics: NDArray[Any] | None = None,
        actor: NDArray[Any] | None = None,
    ) -> None:
        self.critics = np.zeros((n_critics, 2, n_states, n_actions)) if critics is None else np.array(critics, float)
        self.actor = np.full((n_states, n_actions), 1 / n_actions) if actor is None else np.array(actor, float)
        self.active = np.zeros(n_critics, dtype=np.int64)

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        losses = []
        for critic, batch in zip(critics, batches, strict=True):
            states = np.asarray(transitions.observations)[batch]
            groups = group(states)
            targets, critic_loss, mean_q = self._train_critic(
                critic, transitions, batch, states, groups, hyperparameters
            )
            rule, loss = hyperparameters.actor_rule, float("nan")
            if rule is not None:
                policy = self.actor[states]
                y = actor_targets(rule, policy, allowed(targets, _rows(transitions.masks, batch)))
                loss = actor_loss(rule, policy, y)
                assign(self.actor, groups, y)
            losses.append((critic_loss, loss, mean_q))
        return EpochMetrics(*np.mean(losses, axis=0).tolist())

    def _train_critic(
        self,
        critic: int,
        transitions: Transitions,
        batch: IntArray,
        states: IntArray,
        groups: Groups,
        hyperparameters: Hyperparameters,
    ) -> tuple[FloatArray, float, float]:
        next_states = np.asarray(transitions.next_observations)[batch]
        next_masks = _rows(transitions.next_masks, batch)
        columns = [column[batch] for column in (transitions.actions, transitions.rewards, transitions.discounts)]
        for _ in range(hyperparameters.critic_iterations):
            table_a = self.critics[critic, self.active[critic]]
            table_b = self.critics[critic, 1 - self.active[critic]]
            q = table_a[states]
            opinions = (allowed(table[next_states], next_masks) for table in (table_a, table_b))
            targets = critic_targets(hyperparameters.critic_rule, q, *opinions, *columns)
            assign(table_a, groups, targets)
            self.active[critic] = 1 - self.active[critic]
        return targets, float(np.mean((targets - q) ** 2)), float(q.mean())

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        return self.actor[np.asarray(observations)].astype(np.float32)

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        critics = np.arange(len(self.active))[:, None]
        return self.critics[critics, self.active[:, None], np.asarray(observations)].astype(np.float32)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.interface.Learner.state_dict`."""
        return {"actor": self.actor, "critics": self.critics, "active": self.active}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        own = self.state_dict()
        check_same_arrays(own, state)
        for name, array in own.items():
            array[...] = state[name]
