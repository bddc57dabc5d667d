"""Networks and replay memories of many runs, side by side on a device: one launch of the kernels trains all of them.

A run has a row of a :class:`Stack`. What an epoch needs, it writes to its row of ``arrays``; what the epoch leaves is
there afterwards. What a run learns does not depend on which runs learn with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpi.learner.adam import AdamTensors
from bdpi.learner.fused import EpochTensors, FusedNetworks
from bdpi.learner.interface import Hyperparameters, IntArray, NetworkState, Transitions
from bdpi.learner.memory import NAMES, TensorTransitions
from bdpi.learner.rules.compiled import source_of
from bdpi.learner.staging import Staging
from bdpi.learner.streams import LAUNCHING, EpochStreams
from bdpi.storage.shared import Parts

N_GROUPS = 4  # groups of runs that a GPU trains at a time: while actors of one follow, critics of another are trained
NEW = 256  # transitions that a row of the arrays holds on their way to the device
_STATE = ("parameters", "first_moment", "second_moment", "steps")


@dataclass(frozen=True)
class Kind:
    """What runs have in common that one launch trains; they may differ in learning rates and parameters of rules.

    :param networks: sizes
    :param n_critics: of a run
    :param has_actor: runs follow an actor; else, they follow their critics
    :param capacity: of the replay memory
    :param batches: how many critics are trained, and the size of their batches
    :param observation: shape and type
    :param masked: actions are masked
    :param program: everything else that the kernels are compiled for
    """

    networks: FusedNetworks
    n_critics: int
    has_actor: bool
    capacity: int
    batches: tuple[int, ...]
    observation: tuple[tuple[int, ...], str]
    masked: bool
    program: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        networks: FusedNetworks,
        n_critics: int,
        transitions: Transitions,
        batches: IntArray,
        hyperparameters: Hyperparameters,
    ) -> Kind:
        """The kind of run that has such an epoch."""
        hyper, rule, seen = hyperparameters, hyperparameters.actor_rule, np.asarray(transitions.observations)
        twins = [(twin[0], source_of(twin)) for twin in hyper.twins()]
        return cls(
            networks,
            n_critics,
            rule is not None,
            batches.size if transitions.ring is None else transitions.ring.capacity,
            batches.shape,
            (seen.shape[1:], seen.dtype.str),
            transitions.masks is not None,
            (hyper.critic_iterations, hyper.fit_steps, hyper.repeats, *twins, None if rule is None else rule.loss),
        )

    def columns(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of each part of a transition."""
        mask = dict.fromkeys(("masks", "next_masks"), ((self.networks.critic_sizes[-1],), np.bool_))
        return {
            "observations": self.observation,
            "actions": ((), np.int64),
            "rewards": ((), np.float32),
            "discounts": ((), np.float32),
            "next_observations": self.observation,
            **(mask if self.masked else {}),
        }

    def inputs(self, size: int) -> Parts:
        """What an epoch of so many runs is computed from, beside their memories."""
        return {
            "batches": ((size, *self.batches), np.int32),
            "order": ((size, self.batches[0]), np.int32),
            "rates": ((size, 4), np.float64),
            "scales": ((size, 2 * self.networks.critic_sizes[0] + 2), np.float32),
        }

    def parts(self, size: int) -> Parts:
        """The arrays of a stack with so many rows."""
        actor, critic = (_n_parameters(sizes) for sizes in (self.networks.actor_sizes, self.networks.critic_sizes))
        acting = (size, actor) if self.has_actor else (size, self.n_critics, critic)
        return {
            **self.inputs(size),
            # new transitions: how many, where they go, and themselves
            "count": ((size,), np.int64),
            "places": ((size, NEW), np.int64),
            **{name: ((size, NEW, *shape), dtype) for name, (shape, dtype) in self.columns().items()},
            # what an epoch leaves: metrics, and what to act with, the actor or the critics without one
            "metrics": ((size, 3), np.float32),
            "acting": (acting, np.float32),
        }


class Stack:
    """Runs of one kind.

    :param kind: theirs
    :param hyperparameters: of one of them
    :param arrays: see :meth:`Kind.parts`; as many rows as there may be runs at a time
    :param device: where they are trained
    """

    def __init__(
        self, kind: Kind, hyperparameters: Hyperparameters, arrays: Mapping[str, NDArray[Any]], device: torch.device
    ) -> None:
        self.kind, self.arrays, self._device = kind, arrays, device
        self._networks, self._hyperparameters = kind.networks, hyperparameters
        self._size = size = len(arrays["count"])
        self._free = list(range(size))[::-1]
        self._critics = _networks((size, kind.n_critics, 2), self._networks.critic_sizes, device)
        self._actors = _networks((size,), self._networks.actor_sizes, device) if kind.has_actor else None
        self._active = torch.zeros((size, kind.n_critics), dtype=torch.int64, device=device)
        # Copies on the host of what runs act with; the kernels write there.
        self._acting = _on_host((self._actors or self._critics).parameters)
        self._acting_active = _on_host(self._active)
        columns = {
            name: torch.as_tensor(np.zeros(0, dtype)).new_zeros((size, kind.capacity, *shape), device=device)
            for name, (shape, dtype) in kind.columns().items()
        }
        self._memory = TensorTransitions(**{name: columns.get(name) for name in NAMES})  # type: ignore[arg-type]
        self._groups = [Group(kind, size, device) for _ in range(N_GROUPS)]
        self._remembering = Group(kind, size, device)
        self._wait()

    # -- rows ---------------------------------------------------------------------------------------------------

    @property
    def n_runs(self) -> int:
        """How many rows are taken."""
        return self._size - len(self._free)

    def take(self) -> int:
        """A free row, for a run."""
        if not self._free:
            raise RuntimeError(f"there is no place for more than {self._size} runs that are trained together")
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """The run has ended."""
        self._free.append(row)

    def get(self, row: int, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """What learning has changed, as :meth:`bdpi.learner.interface.Learner.state_dict` has it.

        :param names: of the arrays that are wanted; None: all
        """
        return {name: tensor.cpu().numpy() for name, tensor in self._of(row).items() if names is None or name in names}

    def set(self, row: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Change what a run has learned."""
        for name, tensor in self._of(row).items():
            if name in state:
                tensor.copy_(torch.as_tensor(np.asarray(state[name])))
        self._acting[row].copy_((self._actors or self._critics).parameters[row])  # kernels write what they change
        self._acting_active[row].copy_(self._active[row])
        self._wait()

    def _of(self, row: int) -> dict[str, Tensor]:
        named = {"active": self._active[row]}
        for owner, networks in (("actor", self._actors), ("critics", self._critics)):
            if networks is not None:
                named |= {f"{owner}.{name}": getattr(networks, name)[row] for name in _STATE}
        return named

    def _wait(self) -> None:
        """Groups have streams of their own, which must see what this one has done."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    # -- epochs -------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another group can be started."""
        return bool(self._groups)

    def start(self, rows: Sequence[int]) -> Group:
        """Begin an epoch of these runs, with what their rows of the arrays say."""
        group = self._groups.pop()
        group.rows = np.array(rows)
        try:
            with LAUNCHING, group.streams.work(), torch.no_grad():
                self._launch(group)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # that there is no GPU any more, for example
                group.streams.clear()
            self._groups.append(group)
            raise
        return group

    def finish(self, group: Group) -> None:
        """Wait for an epoch, and write what it leaves to the arrays."""
        try:
            group.streams.wait()
        finally:
            self._groups.append(group)
        rows, arrays = group.rows, self.arrays
        arrays["metrics"][rows] = group.back.arrays["metrics"][: len(rows)].mean(axis=1)
        if self._actors is not None:
            arrays["acting"][rows] = self._acting.numpy()[rows]
        else:
            active, critics = self._acting_active.numpy()[rows], np.arange(self.kind.n_critics)
            arrays["acting"][rows] = self._acting.numpy()[rows[:, None], critics, active]

    def remember(self, row: int) -> None:
        """Put new transitions into the replay memory of a run, without an epoch."""
        group = self._remembering
        group.rows = np.array([row])
        with LAUNCHING, group.streams.work(), torch.no_grad():
            self._remember(group)
        group.streams.wait()

    def _launch(self, group: Group) -> None:
        rows, there = group.rows, group.there
        self._remember(group)
        there.arrays["members"][: len(rows)] = rows
        for name in ("batches", "order", "rates", "scales"):
            there.arrays[name][: len(rows)] = self.arrays[name][rows]
        there.send()
        everything = self._memory, len(rows), group.tensors, self._hyperparameters
        acting = (None, None) if self._actors is not None else (self._acting, self._acting_active)
        with group.streams.let_others_go_first():
            self._networks.train_critics(self._critics, self._active, *everything, acting)
        if self._actors is not None:
            self._networks.train_actor(self._actors, *everything, self._acting)
        group.back.receive()

    def _remember(self, group: Group) -> None:
        """Send new transitions of these runs to the device."""
        rows, new = group.rows, group.new
        which, number = np.nonzero(np.arange(NEW) < self.arrays["count"][rows][:, None])
        at = rows[which], number
        for first in range(0, len(number), group.n_new):
            if first:
                group.streams.clear()  # the last ones are still to be sent
            part = tuple(index[first : first + group.n_new] for index in at)
            count = len(part[0])
            new.arrays["places"][:count] = part[0] * self.kind.capacity + self.arrays["places"][part]
            for name in self.kind.columns():
                new.arrays[name][:count] = self.arrays[name][part]
            new.send()
            self._networks.remember(self._memory, group.new_transitions, new.tensors["places"], count)


class Group:
    """Some runs of a stack whose epochs are computed at a time, and what travels between host and device for them.

    :param kind: of the runs
    :param size: how many there may be
    :param device: where they are trained
    """

    def __init__(self, kind: Kind, size: int, device: torch.device) -> None:
        self.streams = EpochStreams(device)
        self.rows: IntArray = np.array([], np.int64)
        self.there = Staging({"members": ((size,), np.int32), **kind.inputs(size)}, device)
        self.back = Staging({"metrics": ((size, kind.batches[0], 3), np.float32)}, device)
        self.n_new = max(size, NEW)
        columns = {name: ((self.n_new, *shape), dtype) for name, (shape, dtype) in kind.columns().items()}
        self.new = Staging({"places": ((self.n_new,), np.int64), **columns}, device)
        self.new_transitions = TensorTransitions(**{name: self.new.tensors.get(name) for name in NAMES})  # type: ignore[arg-type]
        q = torch.empty((size, *kind.batches, kind.networks.critic_sizes[-1]), device=device)
        self.tensors = EpochTensors(**self.there.tensors, q=q, metrics=self.back.tensors["metrics"])


class Stacks:
    """Runs of any kind, in this process: each has a row of the stack that fits it.

    :param size: how many runs there may be at a time
    :param device: where they are trained
    :param runs: how many share the device, which decides on the kernels; None: ``size``
    """

    def __init__(self, size: int, device: torch.device | str = "cuda", runs: int | None = None) -> None:
        self.size, self.device, self.runs = size, torch.device(device), size if runs is None else runs
        self.stacks: dict[Kind, Stack] = {}

    def make_arrays(self, kind: Kind) -> Mapping[str, NDArray[Any]]:
        """The arrays of a new stack."""
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in kind.parts(self.size).items()}

    def join(self, kind: Kind, hyperparameters: Hyperparameters) -> StackRow:
        """A row for a run of this kind."""
        kind = replace(kind, networks=replace(kind.networks, runs=self.runs))
        if kind not in self.stacks:
            self.stacks[kind] = Stack(kind, hyperparameters, self.make_arrays(kind), self.device)
        return StackRow(self, self.stacks[kind])

    def leave(self, stack: Stack, row: int) -> None:
        """Give a row back; a stack without runs is given up."""
        stack.give_back(row)
        if not stack.n_runs:
            del self.stacks[stack.kind]


class StackRow:
    """A run's place in a stack of this process; see :class:`bdpi.learner.joint.JointPlace`."""

    def __init__(self, stacks: Stacks, stack: Stack) -> None:
        self._stacks, self.stack, self.row = stacks, stack, stack.take()
        rows = slice(self.row, self.row + 1)
        self.arrays: Mapping[str, NDArray[Any]] = {name: array[rows] for name, array in stack.arrays.items()}

    def train(self) -> None:
        self.stack.finish(self.stack.start([self.row]))

    def remember(self) -> None:
        self.stack.remember(self.row)

    def get(self, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        return self.stack.get(self.row, names)

    def set(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.stack.set(self.row, state)

    def leave(self) -> None:
        self._stacks.leave(self.stack, self.row)


def _n_parameters(sizes: tuple[int, ...]) -> int:
    inputs, hidden, outputs = sizes
    return (inputs + 1) * hidden + (hidden + 1) * outputs


def _networks(shape: tuple[int, ...], sizes: tuple[int, ...], device: torch.device) -> AdamTensors:
    """Networks of runs that are still to come."""
    return AdamTensors(NetworkState.fresh(np.zeros((*shape, _n_parameters(sizes)), np.float32)), device)


def _on_host(tensor: Tensor) -> Tensor:
    """As large, and quick to copy to."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
