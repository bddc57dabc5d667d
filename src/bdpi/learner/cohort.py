"""Many runs at once: what each of them would compute alone on a GPU, one pair of kernels computes for all.

Each run goes on in a thread of its own and has a learner of its own, a :class:`Member`. Their parameters are slices of
the same tensors. When some of the members of a cohort have asked for their epochs, these are computed; the others act
meanwhile, and are the next groups. A GPU computes several groups at a time: while the actors of one follow its critics,
one after the other, the critics of another one are trained. What a member learns does not depend on who learns with it;
how it is rounded depends on how many there are places for.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bdpi.learner.adam import AdamTensors
from bdpi.learner.fused import FusedLearner, FusedNetworks
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
from bdpi.learner.lanes import FEW, Lane
from bdpi.learner.memory import NAMES, TensorTransitions
from bdpi.learner.perceptron import Perceptron
from bdpi.learner.rules.compiled import source_of
from bdpi.learner.scales import Scales
from bdpi.learner.streams import LAUNCHING

N_LANES = 4  # groups that are computed at a time, each of at least this part of the members
_PATIENCE = 0.005  # seconds that members wait for others


@dataclass(eq=False)
class _Request:
    member: Member
    transitions: Transitions
    batches: IntArray
    critics: IntArray
    hyperparameters: Hyperparameters
    metrics: EpochMetrics | None = None
    error: BaseException | None = None
    since: float = field(default_factory=time.monotonic)
    #: that it was answered, or that its thread should look whether there is something to compute
    news: threading.Event = field(default_factory=threading.Event)

    @property
    def is_answered(self) -> bool:
        return self.metrics is not None or self.error is not None

    @property
    def has_masks(self) -> bool:
        """Whether some of its transitions say which actions were allowed."""
        return self.transitions.masks is not None

    @property
    def program(self) -> tuple[Any, ...]:
        """Requests with the same one are computed together."""
        return self.batches.shape, self.has_masks, self.member.plan(self.hyperparameters).program


@dataclass(frozen=True)
class _Plan:
    """What hyperparameters are to the kernels.

    :param program: which kernels
    :param rates: see :meth:`bdpi.learner.interface.Hyperparameters.numbers`
    """

    hyperparameters: Hyperparameters
    program: tuple[Any, ...]
    rates: NDArray[np.float64]

    @classmethod
    def of(cls, hyper: Hyperparameters) -> _Plan:
        rule = hyper.actor_rule
        kinds = [(twin[0], source_of(twin)) for twin in hyper.twins()]
        program = hyper.critic_iterations, hyper.fit_steps, *kinds, None if rule is None else rule.loss
        return cls(hyper, program, hyper.numbers())


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
        #: all of them, and those in which nothing is computed
        self.lanes = [Lane(networks, size, device) for _ in range(N_LANES)]
        self._free_lanes = list(self.lanes)
        self._lock = threading.Lock()

    def join(self, member: Member) -> int:
        """Take a slot; returns its number."""
        with self._lock:
            if not self._free:
                raise RuntimeError(f"this cohort has no place for more than {self.size} runs")
            self._members.add(member)
            return self._free.pop()

    def leave(self, member: Member) -> None:
        """Give the slot back; the others no longer wait for this member."""
        self.pause(member)
        with self._lock:
            self._free.append(member.slot)

    def pause(self, member: Member) -> None:
        """Stop waiting for this member."""
        with self._lock:
            self._members.discard(member)
            self._tell_the_first()

    def resume(self, member: Member) -> None:
        """Wait for this member again."""
        with self._lock:
            self._members.add(member)

    def epoch(self, request: _Request) -> EpochMetrics:
        """Wait until enough members want an epoch, but not for long, and have it computed.

        The thread that finds enough requests computes all of them; the one that has waited longest looks now and then.
        """
        with self._lock:
            self._requests.append(request)
        try:
            while not request.is_answered:
                request.news.clear()
                with self._lock:
                    group, lane = self._take() if request in self._requests else ([], None)
                    is_first = request in self._requests[:1]
                if lane is not None:
                    self._compute_group(group, lane)
                elif not request.is_answered:
                    request.news.wait(_PATIENCE if is_first else None)
        except BaseException:  # an interruption; the others must not wait for ever
            with self._lock:
                self._requests = [other for other in self._requests if other is not request]
                self._tell_the_first()
            raise
        if request.error is not None:
            raise RuntimeError(f"the epoch of {self.size} runs failed: {request.error}") from request.error
        assert request.metrics is not None
        return request.metrics

    def _take(self) -> tuple[list[_Request], Lane | None]:
        """What is to be computed now, and where; nowhere if members should wait, for others or for a lane."""
        if not self._requests or not self._free_lanes:
            return [], None
        is_late = time.monotonic() - self._requests[0].since >= _PATIENCE
        if N_LANES * len(self._requests) < len(self._members) and not is_late:
            return [], None
        group, self._requests = self._requests, []
        return group, self._free_lanes.pop()

    def _tell_the_first(self) -> None:
        """Have the thread that has waited longest look again."""
        if self._requests:
            self._requests[0].news.set()

    def _compute_group(self, group: list[_Request], lane: Lane) -> None:
        """Answer these requests, whatever happens, and give the lane back."""
        try:
            self.compute(group, lane)
        except BaseException as error:
            for request in group:
                request.error = error
        finally:
            with self._lock:
                self._free_lanes.append(lane)
                self._tell_the_first()
            for request in group:
                request.news.set()

    def compute(self, group: list[_Request], lane: Lane) -> None:
        """The epochs of members, who may need several programs. An error is for those that need the same one."""
        by_program: dict[tuple[Any, ...], list[_Request]] = {}
        for request in group:
            by_program.setdefault(request.program, []).append(request)
        for requests in by_program.values():
            try:
                self._compute(requests, lane)
            except BaseException as error:
                for request in requests:
                    request.error = error
                    request.member.ring = None  # what of it has arrived is unknown
                with contextlib.suppress(RuntimeError):  # that there is no GPU any more, for example
                    lane.clear()

    def _compute(self, requests: list[_Request], lane: Lane) -> None:
        """An epoch of members that one pair of kernels trains."""
        has_actor = requests[0].hyperparameters.actor_rule is not None
        with LAUNCHING, lane.work(), torch.no_grad():
            back = self._launch(requests, lane)
        lane.wait()
        metrics = back[: len(requests)].mean(axis=1).tolist()
        for request, (critic_loss, actor_loss, mean_q) in zip(requests, metrics, strict=True):
            request.metrics = EpochMetrics(critic_loss, actor_loss if has_actor else float("nan"), mean_q)

    def _launch(self, requests: list[_Request], lane: Lane) -> NDArray[Any]:
        """Start the epoch; returns where its metrics will be. Members act with what the kernels write to the host.

        Each call of PyTorch lets other threads take over, which may keep the lock for a while. So they are few.
        """
        self._make_room(requests)
        assert self._memory is not None
        memory = self._memory if requests[0].has_masks else replace(self._memory, masks=None, next_masks=None)
        desk = lane.desk(requests[0].transitions, requests[0].batches.shape)
        there = desk.there.arrays
        names = "members", "batches", "order", "rates", "scales"
        members, batches, order, rates, scales = (there[name] for name in names)
        unscaled = Scales.none(self.networks.critic_sizes[0])
        for number, request in enumerate(requests):
            members[number] = request.member.slot
            batches[number] = request.batches
            order[number] = request.critics
            rates[number] = request.member.plan(request.hyperparameters).rates
            scales[number] = (request.transitions.scales or unscaled).packed()
        count = self._gather(requests, there)
        desk.there.send()
        if count:
            self.networks.remember(memory, desk.new, desk.there.tensors["places"], count)
        everything = memory, len(requests), desk.tensors, requests[0].hyperparameters
        acting = (None, None) if self._has_actor else (self.acting, self.acting_active)
        with lane.let_others_go_first():
            self.networks.train_critics(self.critics, self.active, *everything, acting)
        if self._has_actor:
            self.networks.train_actor(self.actors, *everything, self.acting)
        desk.back.receive()
        return desk.back.arrays["metrics"]

    def _make_room(self, requests: list[_Request]) -> None:
        """Have a replay memory on the device that is as large as the largest of the members', with masks if one has."""
        capacity = max(
            request.transitions.ring.capacity for request in requests if request.transitions.ring is not None
        )
        has_masks = requests[0].has_masks
        held = self._memory
        if held is not None:
            capacity = max(capacity, held.actions.shape[1])
            has_masks = has_masks or held.masks is not None
        if held is None or held.actions.shape[1] < capacity or (held.masks is None and has_masks):
            n_actions = self.networks.critic_sizes[-1] if has_masks else None
            empty = _memory_like(requests[0].transitions, self.size, capacity, n_actions, self.device)
            self._wait_for_all_lanes()
            self._memory = _larger(held, empty)
            self._wait_for_all_lanes()

    def _wait_for_all_lanes(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _gather(self, requests: list[_Request], there: dict[str, NDArray[Any]]) -> int:
        """Write what is new in members' replay memories to the desk; returns how many transitions that are."""
        assert self._memory is not None
        count, length = 0, self._memory.actions.shape[1]
        for request in requests:
            member, ring = request.member, request.transitions.ring
            assert ring is not None
            is_known = member.ring is not None and member.ring.memory is ring.memory
            is_known = is_known and member.has_masks == request.has_masks
            new = range(max(member.ring.added if is_known else 0, ring.added - ring.capacity), ring.added)
            member.ring, member.has_masks = ring, request.has_masks
            if len(new) > FEW:
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
            column = getattr(request.transitions, name)
            if mine is not None and column is not None:
                values = torch.as_tensor(column[rows]).to(self.device)
                mine[request.member.slot, index] = values.view(-1, *mine.shape[2:])


def _parameters(sizes: tuple[int, ...]) -> int:
    inputs, hidden, outputs = sizes
    return (inputs + 1) * hidden + (hidden + 1) * outputs


def _empty(shape: tuple[int, ...], size: int, device: torch.device) -> AdamTensors:
    """Networks of slots that are still free."""
    return AdamTensors(NetworkState.fresh(np.zeros((*shape, size), np.float32)), device)


def _on_host(tensor: Tensor) -> Tensor:
    """As large, and quick to copy to."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _memory_like(
    transitions: Transitions, size: int, capacity: int, n_actions: int | None, device: torch.device
) -> TensorTransitions:
    """Room for transitions like these.

    :param n_actions: all of which are allowed; None: there are no masks
    """
    columns = {}
    for name in NAMES:
        if name in ("masks", "next_masks"):
            shape = (size, capacity, n_actions or 0)
            columns[name] = None if n_actions is None else torch.ones(shape, dtype=torch.bool, device=device)
        else:
            sample = torch.as_tensor(np.asarray(getattr(transitions, name))[:1])
            columns[name] = torch.zeros((size, capacity, *sample.shape[1:]), dtype=sample.dtype, device=device)
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
        #: what of its replay memory is on the device: everything up to here, with or without masks
        self.ring: Any = None
        self.has_masks = False
        self._plan: _Plan | None = None
        self.cohort = cohort
        self.slot = cohort.join(self)
        for mine, all_of_them in ((self.critics, cohort.critics), (self.actor, cohort.actors)):
            if mine is not None:
                for name in (each.name for each in fields(NetworkState)):
                    slice_ = getattr(all_of_them, name)[self.slot]
                    slice_.copy_(getattr(mine, name))
                    setattr(mine, name, slice_)
        cohort.active[self.slot] = self.active
        self.active = cohort.active[self.slot]
        self._refresh()

    def plan(self, hyperparameters: Hyperparameters) -> _Plan:
        """What they are to the kernels. An epoch asks twice: which kernels it needs, and with which rates."""
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
        self._wait()

    def _wait(self) -> None:
        """For what this thread has started: the cohort has streams of its own. Waiting for the whole device would spoil
        the graphs that other threads record."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

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
        """See :meth:`bdpi.learner.interface.Learner.epoch`.

        Together with others, where transitions come from a ring, of which a copy is kept on the device; else alone, as
        with demonstrations, VecNormalize, or observations that have to be converted.
        """
        if transitions.ring is not None:
            return self.cohort.epoch(_Request(self, transitions, batches, critics, hyperparameters))
        self.cohort.pause(self)
        self.ring = None
        metrics = super().epoch(transitions, batches, critics, hyperparameters)
        self._refresh()
        return metrics

    def take_over_acting(self) -> None:
        """Learn on from the parameters with which the agent acts, after they were set."""
        if self.actor is not None:
            self.actor.parameters.copy_(self.acting_parameters)
            self._wait()

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
        self._size, self.device = size, torch.device(device)
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
                self._cohorts[key] = Cohort(networks, n_critics, self._size, self.device, actor is not None)
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
    """What trains the agents that are made in this thread; None: they train themselves."""
    return _CURRENT.get()
