"""The learner of a run that is trained together with others, by a :class:`~bdpi.learner.stack.Stack`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.fused import FusedNetworks
from bdpi.learner.interface import (
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    Observations,
    Ring,
    Transitions,
    check_same_arrays,
)
from bdpi.learner.memory import NAMES
from bdpi.learner.perceptron import Perceptron
from bdpi.learner.scales import Scales
from bdpi.learner.stack import NEW, Kind

_CRITICS = ("critics.parameters", "active")


class JointPlace(Protocol):
    """A run's row of a stack, in this process or in another one."""

    #: the row, with a first axis of length one
    arrays: Mapping[str, NDArray[Any]]

    def train(self) -> None:
        """One epoch, with what the row says."""

    def remember(self) -> None:
        """Put the new transitions of the row into the replay memory."""

    def get(self, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.stack.Stack.get`."""
        ...

    def set(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.stack.Stack.set`."""

    def leave(self) -> None:
        """Give the row back."""


class Trainer(Protocol):
    """What trains many runs: :class:`~bdpi.learner.stack.Stacks`, or a process that has some."""

    def join(self, kind: Kind, hyperparameters: Hyperparameters) -> JointPlace:
        """A place for a run."""
        ...


class JointLearner:
    """See :class:`~bdpi.learner.interface.Learner`.

    It joins a stack at its first epoch, and another one when it becomes a run of another kind.

    :param trainer: has the stacks
    :param networks: their sizes
    :param state: of another learner of the same networks
    """

    name = "population"

    def __init__(self, trainer: Trainer, networks: FusedNetworks, state: Mapping[str, NDArray[Any]]) -> None:
        self._trainer, self._networks = trainer, networks
        #: all that learning changes, while there is no place
        self._state = {name: array.copy() for name, array in state.items()}
        self._has_actor = "actor.parameters" in state
        self._n_critics = len(state["active"])
        #: parameters to act with, of the actor or of the critics without one; they follow each epoch
        self.acting: FloatArray = state["actor.parameters"].copy() if self._has_actor else _active(state)
        #: where it is trained; None before its first epoch
        self.place: JointPlace | None = None
        self._kind: Kind | None = None
        #: what of the replay memory is on the device: everything up to here
        self._ring: Ring | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an agent that learns together with others cannot be copied: save it, and load the copy")

    # -- learning -----------------------------------------------------------------------------------------------

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        place = self.ask(transitions, batches, critics, hyperparameters)
        try:
            place.train()
        except BaseException:
            self.forget_memory()
            raise
        return self.answer()

    def ask(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> JointPlace:
        """Write all that an epoch needs to the place, which is to be trained then."""
        if not hyperparameters.repeats and len(set(critics.tolist())) < len(critics):
            raise ValueError(f"critics {critics.tolist()} repeat: kernels have to know, Hyperparameters(repeats=True)")
        kind = Kind.of(self._networks, self._n_critics, transitions, batches, hyperparameters)
        if self.place is None or kind != self._kind:
            self.leave()
            self.place, self._kind = self._trainer.join(kind, hyperparameters), kind
            self.place.set(self._state)
        place, arrays = self.place, self.place.arrays
        if transitions.ring is None:  # with demonstrations, VecNormalize, or observations that have to be converted
            self._send(place, transitions, batches.reshape(-1), np.arange(batches.size))
            batches = np.arange(batches.size).reshape(batches.shape)
        else:
            ring, known = transitions.ring, self._ring
            is_known = known is not None and known.memory is ring.memory
            added = known.added if is_known and known is not None else 0
            new = np.arange(max(added, ring.added - ring.capacity), ring.added) % ring.capacity
            self._send(place, transitions, new, new)
        self._ring = transitions.ring
        arrays["batches"][0] = batches
        arrays["order"][0] = critics
        arrays["rates"][0] = hyperparameters.numbers()
        arrays["scales"][0] = (transitions.scales or Scales.none(self._networks.critic_sizes[0])).packed()
        return place

    def answer(self) -> EpochMetrics:
        """What the epoch has left at the place."""
        assert self.place is not None
        arrays = self.place.arrays
        critic_loss, actor_loss, mean_q = arrays["metrics"][0].tolist()
        self.acting[...] = arrays["acting"][0]
        return EpochMetrics(critic_loss, actor_loss if self._has_actor else float("nan"), mean_q)

    def _send(self, place: JointPlace, transitions: Transitions, rows: IntArray, places: IntArray) -> None:
        """Have these transitions put there, the last ones together with the epoch."""
        arrays = place.arrays
        for first in range(0, max(1, len(rows)), NEW):
            if first:
                place.remember()
            part = slice(first, first + NEW)
            count = arrays["count"][0] = len(rows[part])
            arrays["places"][0, :count] = places[part]
            for name in NAMES:
                if name in arrays:
                    arrays[name][0, :count] = getattr(transitions, name)[rows[part]]

    def forget_memory(self) -> None:
        """After an epoch that failed: what of the replay memory has arrived is unknown, so all of it is sent again."""
        self._ring = None

    def leave(self) -> None:
        """Give the place back; the next epoch takes another one."""
        if self.place is not None:
            self._state |= self.place.get()
            self.place.leave()
            self.place = self._ring = None

    # -- predictions --------------------------------------------------------------------------------------------

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        y = self._computed(self.acting, self._networks.actor_sizes, observations)
        e: FloatArray = np.exp(y - y.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        critics = self.acting
        if self._has_actor:
            critics = _active(self._state if self.place is None else self.place.get(_CRITICS))
        return self._computed(critics, self._networks.critic_sizes, observations)

    def _computed(self, parameters: FloatArray, sizes: Sequence[int], observations: Observations) -> FloatArray:
        one_hot, x = self._networks.one_hot, np.asarray(observations)
        network = Perceptron(parameters, sizes, one_hot, is_tanh=not self._networks.relu)
        return network(x.reshape(-1) if one_hot else x.reshape(len(x), -1))

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.interface.Learner.state_dict`."""
        return self._state if self.place is None else {**self._state, **self.place.get()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        check_same_arrays(self._state, state)
        for name, array in self._state.items():
            array[...] = state[name]
        if self.place is not None:
            self.place.set(self._state)
        self.acting[...] = self._state["actor.parameters"] if self._has_actor else _active(self._state)

    def take_over_acting(self) -> None:
        """Learn on from the parameters with which the agent acts, after they were set."""
        if self._has_actor:
            self._state["actor.parameters"][...] = self.acting
            if self.place is not None:
                self.place.set({"actor.parameters": self.acting})


def _active(state: Mapping[str, NDArray[Any]]) -> FloatArray:
    """Q_A of each critic, (n_critics, P)."""
    parameters, active = (state[name] for name in _CRITICS)
    found: FloatArray = parameters[np.arange(len(active)), active]
    return found
