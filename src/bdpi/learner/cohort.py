"""Many runs at once: what each of them would compute alone on a GPU, one pair of kernels computes for all.

Each run goes on in a thread of its own and has a learner of its own, a :class:`Member`. Their parameters are slices of
the same tensors. When half of the members of a cohort have asked for their epochs, these are computed; the others act
meanwhile, and are the next half. What a member learns does not depend on who learns with it; how it is rounded depends
on how many there are places for.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bdpi.learner.fused import EpochTensors, FusedLearner, FusedNetworks
from bdpi.learner.interface import (
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    LearnerState,
    NetworkState,
    Observations,
    Transitions,
)
from bdpi.learner.memory import NAMES, TensorTransitions
from bdpi.learner.perceptron import Perceptron
from bdpi.learner.staging import Staging
from bdpi.learner.torch import AdamTensors, numbers_of

_PATIENCE = 0.005  # seconds that members wait for others
_FEW = 16  # transitions that a member may have more than at its last epoch, for them to travel with the others'
_LAUNCHING = threading.Lock()  # several cohorts may want to at the same time


@dataclass
class _Request:
    member: Member
    transitions: Transitions
    batches: IntArray
    critics: IntArray
    hyperparameters: Hyperparameters
    metrics: EpochMetrics | None = None
    error: BaseException | None = None

    @property
    def program(self) -> tuple[Any, ...]:
        """Requests with the same one are computed together."""
        return self.batches.shape, self.member.plan(self.hyperparameters).program


@dataclass(frozen=True)
class _Plan:
    """What hyperparameters are to the kernels.

    :param program: which kernels
    :param rates: see :func:`bdpi.learner.torch.numbers_of`
    """

    hyperparameters: Hyperparameters
    program: tuple[Any, ...]
    rates: NDArray[np.float64]

    @classmethod
    def of(cls, hyper: Hyperparameters) -> _Plan:
        rule = hyper.actor_rule
        native = None if rule is None else rule.native
        kind = None if rule is None or native is None else (native[0], rule.loss)
        return cls(hyper, (hyper.critic_iterations, hyper.fit_steps, kind), numbers_of(hyper))


class Cohort:
    """Members whose networks have the same sizes.

    :param networks: their sizes
    :param n_critics: of each member
    :param size: how many members there may be at a time
    :param device: where they are trained
    :param has_actor: members follow an actor; else they follow their critics
    """

    def __init__(
        self, networks: FusedNetworks, n_critics: int, size: int, device: torch.device, has_actor: bool = True
    ) -> None:
        self.networks, self.size, self.device = networks, size, device
        self.critics = _empty((size, n_critics, 2), _parameters(networks.critic_sizes), device)
        self.active = torch.zeros((size, n_critics), dtype=torch.int64, device=device)
        self.actors = _empty((size,), _parameters(networks.actor_sizes), device)
        #: copies on the CPU, with which members act: of the actors, or of the critics where there are none
        self.acting = _on_host(self.actors.parameters if has_actor else self.critics.parameters)
        self.acting_active = _on_host(self.active)
        self._has_actor = has_actor
        self._memory: TensorTransitions | None = None
        self._free = list(range(size))[::-1]
        self._members: set[Member] = set()
        self._requests: list[_Request] = []
        self._desks: dict[tuple[int, ...], _Desk] = {}
        self._turn = threading.Condition()
        # Cohorts of one process do not wait for each other.
        is_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(blocking=True) if is_gpu else None  # type: ignore[no-untyped-call]

    def join(self, member: Member) -> int:
        """Take a slot; returns its number."""
        with self._turn:
            if not self._free:
                raise RuntimeError(f"this cohort has no place for more than {self.size} runs")
            self._members.add(member)
            return self._free.pop()

    def leave(self, member: Member) -> None:
        """Give the slot back; the others no longer wait for this member."""
        self.pause(member)
        with self._turn:
            self._free.append(member.slot)

    def pause(self, member: Member) -> None:
        """Have the others not wait for this member."""
        with self._turn:
            self._members.discard(member)
            self._compute_if_enough_are_here()

    def resume(self, member: Member) -> None:
        """Have the others wait for this member again."""
        with self._turn:
            self._members.add(member)

    def epoch(self, request: _Request) -> EpochMetrics:
        """Wait until half of the members want an epoch, but not for long, and have it computed."""
        with self._turn:
            self._requests.append(request)
            self._compute_if_enough_are_here()
            while request.metrics is None and request.error is None:
                if not self._turn.wait(_PATIENCE) and self._requests and self._requests[0] is request:
                    self._compute_all()
        if request.error is not None:
            raise RuntimeError(f"the epoch of {self.size} runs failed: {request.error}") from request.error
        assert request.metrics is not None
        return request.metrics

    def _compute_if_enough_are_here(self) -> None:
        if self._requests and 2 * len(self._requests) >= len(self._members):
            self._compute_all()

    def _compute_all(self) -> None:
        requests, self._requests = self._requests, []
        try:
            self._compute_requests(requests)
        except BaseException as error:  # the others must not wait for ever
            for request in requests:
                request.error = error
        self._turn.notify_all()

    def _compute_requests(self, requests: list[_Request]) -> None:
        by_program: dict[tuple[Any, ...], list[_Request]] = {}
        for request in requests:
            by_program.setdefault(request.program, []).append(request)
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream), torch.no_grad():
            for group in by_program.values():
                self._compute(group)

    def _compute(self, requests: list[_Request]) -> None:
        """An epoch of members that one pair of kernels trains.

        Each call of PyTorch lets other threads take over, which may keep the lock for a while. So they are few.
        """
        self._make_room(requests)
        assert self._memory is not None
        desk = self._desk(requests[0])
        there = desk.there.arrays
        members, batches, order, rates = (there[name] for name in ("members", "batches", "order", "rates"))
        for number, request in enumerate(requests):
            members[number] = request.member.slot
            batches[number] = request.batches
            order[number] = request.critics
            rates[number] = request.member.plan(request.hyperparameters).rates
        count = self._gather(requests, there)
        has_actor = requests[0].hyperparameters.actor_rule is not None
        with _LAUNCHING:
            desk.there.send()
            if count:
                self.networks.remember(self._memory, desk.new, desk.there.tensors["places"], count)
            everything = self.critics, self.active, self.actors if has_actor else None, self._memory
            self.networks.epoch(*everything, len(requests), desk.tensors, requests[0].hyperparameters)
            desk.back.receive()
            self._publish()
        if self._done is not None:
            # The thread sleeps until then: others need the core that it would otherwise keep busy.
            self._done.record()
            self._done.synchronize()
        metrics = desk.back.arrays["metrics"][: len(requests)].mean(axis=1).tolist()
        for request, (critic_loss, actor_loss, mean_q) in zip(requests, metrics, strict=True):
            request.metrics = EpochMetrics(critic_loss, actor_loss if has_actor else float("nan"), mean_q)

    def _publish(self) -> None:
        """Let members act with what they have learned."""
        if self._has_actor:
            self.acting.copy_(self.actors.parameters, non_blocking=True)
        else:
            self.acting.copy_(self.critics.parameters, non_blocking=True)
            self.acting_active.copy_(self.active, non_blocking=True)

    def _desk(self, request: _Request) -> _Desk:
        """Where requests of this shape are written; made when the first one comes."""
        shape = request.batches.shape
        if shape not in self._desks:
            self._desks[shape] = _Desk(self.networks, request, self.size, self.device)
        return self._desks[shape]

    def _make_room(self, requests: list[_Request]) -> None:
        """Have a replay memory on the device that is as large as the largest of the members'."""
        rings = [request.transitions.ring for request in requests]
        if None in rings:
            raise ValueError("members of a cohort learn from a replay memory, without VecNormalize")
        capacity = max(ring.capacity for ring in rings if ring is not None)
        if self._memory is None or self._memory.actions.shape[1] < capacity:
            empty = _memory_like(requests[0].transitions, self.size, capacity, self.device)
            self._memory = _larger(self._memory, empty)

    def _gather(self, requests: list[_Request], there: dict[str, NDArray[Any]]) -> int:
        """Write what is new in members' replay memories to the desk; returns how many transitions that are."""
        assert self._memory is not None
        count, length = 0, self._memory.actions.shape[1]
        for request in requests:
            member, ring = request.member, request.transitions.ring
            assert ring is not None
            is_known = member.ring is not None and member.ring.memory is ring.memory
            new = range(max(member.ring.added if is_known else 0, ring.added - ring.capacity), ring.added)
            member.ring = ring
            if len(new) > _FEW:
                self._copy(request, np.array(new) % ring.capacity)
                continue
            for row in new:
                there["places"][count] = member.slot * length + row % ring.capacity
                for name in NAMES:
                    if name in there:
                        there[name][count] = getattr(request.transitions, name)[row % ring.capacity]
                count += 1
        return count

    def _copy(self, request: _Request, rows: IntArray) -> None:
        """Copy much of a member's replay memory to the device, without the desk."""
        index = torch.as_tensor(rows, device=self.device)
        for name, mine in vars(self._memory).items():
            if mine is not None:
                values = torch.as_tensor(getattr(request.transitions, name)[rows]).to(self.device)
                mine[request.member.slot, index] = values.view(-1, *mine.shape[2:])


class _Desk:
    """What travels between the host and the device for an epoch of members whose batches have the same shape.

    :param networks: of the members
    :param request: one of them
    :param size: how many members there may be
    :param device: where they are trained
    """

    def __init__(self, networks: FusedNetworks, request: _Request, size: int, device: torch.device) -> None:
        n_trained, batch_size = request.batches.shape
        columns = {
            name: np.asarray(column) for name in NAMES if (column := getattr(request.transitions, name)) is not None
        }
        #: members, batches, order, rates; new transitions and their places
        self.there = Staging(
            {
                "members": ((size,), np.int32),
                "batches": ((size, n_trained, batch_size), np.int32),
                "order": ((size, n_trained), np.int32),
                "rates": ((size, 4), np.float64),
                "places": ((_FEW * size,), np.int64),
                **{name: ((_FEW * size, *column.shape[1:]), column.dtype) for name, column in columns.items()},
            },
            device,
        )
        self.back = Staging({"metrics": ((size, n_trained, 3), np.float32)}, device)
        self.new = TensorTransitions(**{name: self.there.tensors.get(name) for name in NAMES})  # type: ignore[arg-type]
        tensors = self.there.tensors
        self.tensors = EpochTensors(
            tensors["members"],
            tensors["batches"],
            tensors["order"],
            tensors["rates"],
            torch.empty((size, n_trained, batch_size, networks.critic_sizes[-1]), device=device),
            self.back.tensors["metrics"],
        )


def _parameters(sizes: tuple[int, ...]) -> int:
    inputs, hidden, outputs = sizes
    return (inputs + 1) * hidden + (hidden + 1) * outputs


def _empty(shape: tuple[int, ...], size: int, device: torch.device) -> AdamTensors:
    """Networks that nobody has yet."""
    return AdamTensors(NetworkState.fresh(np.zeros((*shape, size), np.float32)), device)


def _on_host(tensor: Tensor) -> Tensor:
    """As large, and quick to copy to."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _memory_like(transitions: Transitions, size: int, capacity: int, device: torch.device) -> TensorTransitions:
    columns = {}
    for name in NAMES:
        array: NDArray[Any] | None = getattr(transitions, name)
        sample = None if array is None else torch.as_tensor(np.asarray(array)[:1])
        columns[name] = (
            None
            if sample is None
            else torch.zeros((size, capacity, *sample.shape[1:]), dtype=sample.dtype, device=device)
        )
    return TensorTransitions(**columns)  # type: ignore[arg-type]


def _larger(held: TensorTransitions | None, empty: TensorTransitions) -> TensorTransitions:
    """An empty memory with what a smaller one holds."""
    if held is not None:
        for name in NAMES:
            if (old := getattr(held, name)) is not None:
                getattr(empty, name)[:, : old.shape[1]] = old
    return empty


class Member(FusedLearner):
    """The learner of one run in a cohort.

    :param cohort: to join
    :param actor: see :class:`~bdpi.learner.fused.FusedLearner`, as for the others
    """

    name = "cohort"

    def __init__(self, cohort: Cohort, actor: nn.Module | None, critic: nn.Module, state: LearnerState) -> None:
        super().__init__(actor, critic, state, cohort.networks, cohort.device)
        self.ring: Any = None
        self._plan: _Plan | None = None
        self.cohort = cohort
        self.slot = cohort.join(self)
        for mine, all_of_them in ((self.critics, cohort.critics), (self.actor, cohort.actors)):
            if mine is not None:
                for field in fields(NetworkState):
                    slice_ = getattr(all_of_them, field.name)[self.slot]
                    slice_.copy_(getattr(mine, field.name))
                    setattr(mine, field.name, slice_)
        cohort.active[self.slot] = self.active
        self.active = cohort.active[self.slot]
        self._refresh()

    def plan(self, hyperparameters: Hyperparameters) -> _Plan:
        """What they are to the kernels; most epochs have the same as the last one."""
        if self._plan is None or self._plan.hyperparameters is not hyperparameters:
            self._plan = _Plan.of(hyperparameters)
        return self._plan

    @property
    def acting_parameters(self) -> Tensor:
        """Of the actor, or of the critics without one, on the CPU; they follow each epoch."""
        return self.cohort.acting[self.slot]

    def _refresh(self) -> None:
        self.acting_parameters.copy_((self.critics if self.actor is None else self.actor).parameters)
        self.cohort.acting_active[self.slot].copy_(self.active)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the cohort has a stream of its own

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`; who acts by them does not wait for the device."""
        if self.actor is not None:
            return super().q_values(observations)
        networks, active = self.cohort.networks, self.cohort.acting_active[self.slot].numpy()
        parameters = self.acting_parameters.numpy()[np.arange(len(active)), active]
        network = Perceptron(parameters, networks.critic_sizes, networks.one_hot, is_tanh=not networks.relu)
        x = np.asarray(observations)
        return network(x.reshape(-1) if networks.one_hot else x.reshape(len(x), -1))

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        return self.cohort.epoch(_Request(self, transitions, batches, critics, hyperparameters))

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        super().load_state_dict(state)
        self._refresh()


class Cohorts:
    """Any number of runs: each of them joins the cohort that fits it.

    :param size: how many runs there may be at a time
    :param device: where they are trained
    :param runs: how many share the device, with those of other processes; None: ``size``
    """

    def __init__(self, size: int, device: torch.device | str = "cuda", runs: int | None = None) -> None:
        self._size, self._device = size, torch.device(device)
        self._runs = size if runs is None else runs
        self._cohorts: dict[tuple[FusedNetworks, int, bool], Cohort] = {}
        self._lock = threading.Lock()
        self._mine: dict[int, list[Member]] = {}

    def member(
        self, actor: nn.Module | None, critic: nn.Module, state: LearnerState, networks: FusedNetworks
    ) -> Member:
        """A learner for the run of this thread."""
        n_critics, networks = len(state.active), replace(networks, runs=self._runs)
        with self._lock:
            key = (networks, n_critics, actor is not None)
            if key not in self._cohorts:
                self._cohorts[key] = Cohort(networks, n_critics, self._size, self._device, actor is not None)
            member = Member(self._cohorts[key], actor, critic, state)
            self._mine[threading.get_ident()].append(member)
        return member

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """While this lasts, agents that are made in this thread are members; they leave when it ends."""
        with self.making() as members:
            try:
                yield
            finally:
                for member in members:
                    member.cohort.leave(member)

    @contextlib.contextmanager
    def making(self) -> Iterator[list[Member]]:
        """While this lasts, agents that are made in this thread are members, and stay so."""
        token = _CURRENT.set(self)
        members: list[Member] = []
        self._mine[threading.get_ident()] = members
        try:
            yield members
        finally:
            _CURRENT.reset(token)
            with self._lock:
                self._mine.pop(threading.get_ident(), None)


_CURRENT: contextvars.ContextVar[Cohorts | None] = contextvars.ContextVar("cohorts", default=None)


def current_cohorts() -> Cohorts | None:
    """Who trains the agents that are made in this thread; None: they train themselves."""
    return _CURRENT.get()
