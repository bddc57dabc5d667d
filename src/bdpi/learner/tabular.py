"""BDPI on tables: the paper's pseudocode for discrete states, exact, and the oracle of the tests.

Where a network is *fitted* to a table of targets by gradient steps, a table simply takes the least-squares solution:
the target of a state, or the mean of its targets if the batch holds it several times. A network with enough capacity
and gradient steps therefore ends where this learner is after each update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.interface import (
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    Observations,
    Transitions,
    check_same_arrays,
)


def critic_targets(
    q_a: FloatArray,
    q_next_a: FloatArray,
    q_next_b: FloatArray,
    actions: IntArray,
    rewards: FloatArray,
    discounts: FloatArray,
    critic_step_size: float,
) -> FloatArray:
    """Q'(s, .) for each transition: the clipped, swapped double Q-learning rule (Eq. abcdqn).

    :param q_a: Q_A(s, .), shape (n, n_actions)
    :param q_next_a: Q_A(s', .)
    :param q_next_b: Q_B(s', .)
    """
    rows = np.arange(len(actions))
    best = q_next_a.argmax(axis=1)
    value = np.minimum(q_next_a[rows, best], q_next_b[rows, best])
    targets = q_a.copy()
    targets[rows, actions] += critic_step_size * (rewards + discounts * value - q_a[rows, actions])
    return targets


def actor_targets(policy: FloatArray, greedy: IntArray, actor_rate: float) -> FloatArray:
    """y(s) = (1 - lambda) pi(s) + lambda onehot(greedy) for each transition (Eq. ppi_actor)."""
    targets = (1 - actor_rate) * policy
    targets[np.arange(len(greedy)), greedy] += actor_rate
    return targets


def assign(table: FloatArray, states: IntArray, targets: FloatArray) -> None:
    """Set ``table[state]`` to the mean of the targets of each state in the batch: the least-squares fit."""
    visited, inverse, counts = np.unique(states, return_inverse=True, return_counts=True)
    sums = np.zeros((len(visited), table.shape[1]))
    np.add.at(sums, inverse, targets)
    table[visited] = sums / counts[:, None]


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
            targets, critic_loss, mean_q = self._train_critic(critic, transitions, batch, hyperparameters)
            states = np.asarray(transitions.observations)[batch]
            y = actor_targets(self.actor[states], targets.argmax(axis=1), hyperparameters.actor_rate)
            losses.append((critic_loss, float(np.mean((y - self.actor[states]) ** 2)), mean_q))
            assign(self.actor, states, y)
        return EpochMetrics(*np.mean(losses, axis=0).tolist())

    def _train_critic(
        self, critic: int, transitions: Transitions, batch: IntArray, hyperparameters: Hyperparameters
    ) -> tuple[FloatArray, float, float]:
        states = np.asarray(transitions.observations)[batch]
        next_states = np.asarray(transitions.next_observations)[batch]
        for _ in range(hyperparameters.critic_iterations):
            table_a = self.critics[critic, self.active[critic]]
            table_b = self.critics[critic, 1 - self.active[critic]]
            q = table_a[states]
            targets = critic_targets(
                q,
                table_a[next_states],
                table_b[next_states],
                transitions.actions[batch],
                transitions.rewards[batch],
                transitions.discounts[batch],
                hyperparameters.critic_step_size,
            )
            assign(table_a, states, targets)
            self.active[critic] = 1 - self.active[critic]
        return targets, float(np.mean((targets - q) ** 2)), float(q.mean())

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        return self.actor[np.asarray(observations)].astype(np.float32)

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        tables = self.critics[np.arange(len(self.active)), self.active]
        return tables[:, np.asarray(observations)].astype(np.float32)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.interface.Learner.state_dict`."""
        return {"actor": self.actor, "critics": self.critics, "active": self.active}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        own = self.state_dict()
        check_same_arrays(own, state)
        for name, array in own.items():
            array[...] = state[name]
