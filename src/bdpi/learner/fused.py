"""Small perceptrons on a GPU: an epoch is two kernels, and many runs are trained by the same two.

The kernels are in fused.cu, and compiled when they are first needed: for few runs, which are to take little time, so
that several programs train a network, or for many, each of whose networks has a program. Written in Triton, one run
took four to seven times as long on an H200: its blocks pass everything through shared memory, and here next to nothing
has to.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bdpi.learner import nvrtc
from bdpi.learner.adam import AdamTensors
from bdpi.learner.interface import Hyperparameters, LearnerState
from bdpi.learner.memory import NAMES, TensorTransitions
from bdpi.learner.rules.compiled import HEADER, source_of
from bdpi.learner.torch import TorchLearner

SOURCE = Path(__file__).with_name("fused.cu")
HEADERS = [HEADER, *(SOURCE.with_name(name) for name in ("fused_split.cuh", "fused_whole.cuh"))]
#: The macros of fused.cu.
Sizes = Mapping[str, int | str]
Arguments = Sequence[Tensor | int | None]
LARGEST_BATCH = 512
_UNITS, _MOST_PROGRAMS = 32, 8  # hidden units of a program, programs of a network; as many as make up a cluster
_MOST_INPUTS, _MOST_STATES = 32, 128  # a thread has the inputs of its rows in registers
# Of a network that one program trains. Actors are few, and have a multiprocessor for themselves.
_MOST_WHOLE_INPUTS, _MOST_WHOLE_OUTPUTS = 16, 8
_WHOLE_FROM = {"train_critics": 4, "train_actor": 40}  # runs: so many take less time, although one takes more
_WARPS, _MOST_WARPS = {"train_critics": 8, "train_actor": 16}, 16
_SHARED_FLOATS = 56_000  # of a program
_LAUNCHING = threading.Lock()  # the first launch of a kernel compiles it


class Kernels(Protocol):
    """Something that runs the kernels of fused.cu."""

    #: of the devices whose memory they work in
    device_type: str

    def launch(
        self, name: str, sizes: Sizes, programs: int, arguments: Sequence[Any], crowd: int, outside: str
    ) -> None:
        """Run a kernel.

        :param name: which one
        :param sizes: the macros
        :param programs: how many
        :param arguments: ctypes values
        :param crowd: how many programs there are with those of other launches, which may share the GPU
        :param outside: the source of rules that are not in rules.hpp
        """


#: what runs the kernels; None: nothing can
kernels: Kernels | None = None


def is_available() -> bool:
    """Whether there is something to run the kernels on."""
    global kernels
    if kernels is None and nvrtc.is_available():
        kernels = nvrtc.CompiledKernels(SOURCE, HEADERS)
    return kernels is not None


def runs_on(device: torch.device) -> bool:
    """Whether there is something that runs the kernels on tensors of this device."""
    return is_available() and kernels is not None and kernels.device_type == device.type


def is_suitable(sizes: Sequence[int], one_hot: bool, batch_size: int, prior_scale: float) -> bool:
    """Whether networks of these sizes (inputs, hidden units, outputs) can be trained here."""
    if len(sizes) != 3 or prior_scale:
        return False
    inputs, _, outputs = sizes
    programs, rows = _n_programs(sizes), inputs if one_hot else batch_size
    shared = outputs * rows * (7 + 2 * programs) + 8 * _UNITS * (inputs + 1 + outputs)
    fits = programs <= _MOST_PROGRAMS and batch_size <= LARGEST_BATCH and shared <= _SHARED_FLOATS
    return fits and inputs <= (_MOST_STATES if one_hot else _MOST_INPUTS)


@dataclass(frozen=True)
class EpochTensors:
    """What an epoch of S runs is computed from, and what it leaves; there may be room for more runs.

    :param members: which runs take part, (S,), int32 as the next two
    :param batches: (S, K, N)
    :param order: which critics are trained, (S, K)
    :param rates: see :meth:`bdpi.learner.interface.Hyperparameters.numbers`, (S, 4)
    :param scales: see :meth:`bdpi.learner.scales.Scales.packed`, (S, 2 I + 2)
    :param q: what the actor follows, (S, K, N, A)
    :param metrics: loss of a critic, of the actor that follows it, mean Q-value: (S, K, 3)
    """

    members: Tensor
    batches: Tensor
    order: Tensor
    rates: Tensor
    scales: Tensor
    q: Tensor
    metrics: Tensor


@dataclass(frozen=True)
class FusedNetworks:
    """What the kernels have to know about networks.

    :param actor_sizes: inputs, hidden units, outputs
    :param critic_sizes: the same for the critics
    :param one_hot: observations are state numbers
    :param relu: hidden units are rectified linear ones, not tanh
    :param runs: how many share the GPU: of many, it matters how many are trained in a second, not how soon one is
    """

    actor_sizes: tuple[int, ...]
    critic_sizes: tuple[int, ...]
    one_hot: bool
    relu: bool
    runs: int = 1

    def inputs(self, observations: Tensor) -> Tensor:
        """Observations as networks see them: one-hot, or rows of numbers."""
        if self.one_hot:
            states = torch.arange(self.critic_sizes[0], device=observations.device)
            return (observations.reshape(-1, 1) == states).float()
        return observations.reshape(len(observations), -1)

    def epoch(
        self,
        critics: AdamTensors,
        active: Tensor,
        actor: AdamTensors | None,
        memory: TensorTransitions,
        runs: int,
        inputs: EpochTensors,
        hyperparameters: Hyperparameters,
    ) -> None:
        """One epoch of S of R runs; everything has a first axis that counts them.

        :param critics: parameters and moments (R, C, 2, P), steps (R, C, 2)
        :param active: (R, C)
        :param actor: (R, P); None without one
        :param memory: of shape (R, M, ...) each
        :param runs: S
        :param inputs: of the S runs; also receives what there is to say about them
        """
        self.train_critics(critics, active, memory, runs, inputs, hyperparameters)
        if actor is not None:
            self.train_actor(actor, memory, runs, inputs, hyperparameters)

    def train_critics(
        self,
        critics: AdamTensors,
        active: Tensor,
        memory: TensorTransitions,
        runs: int,
        inputs: EpochTensors,
        hyperparameters: Hyperparameters,
        acting: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:
        """The first part of an epoch.

        :param acting: receives the parameters of the S runs and which ones are active; may be on the host
        """
        _, n_trained, batch_size = inputs.batches.shape
        sizes = self._sizes("train_critics", memory, batch_size, hyperparameters)
        arguments = [
            *(critics.parameters, critics.first_moment, critics.second_moment, critics.steps, active),
            *(memory.observations, memory.actions, memory.rewards, memory.discounts, memory.next_observations),
            *(memory.next_masks, inputs.members, inputs.batches, inputs.order, inputs.rates, inputs.scales),
            *(inputs.q, inputs.metrics, *acting, memory.actions.shape[1], active.shape[1], n_trained),
        ]
        self._launch("train_critics", sizes, runs, n_trained, arguments, hyperparameters)

    def train_actor(
        self,
        actor: AdamTensors,
        memory: TensorTransitions,
        runs: int,
        inputs: EpochTensors,
        hyperparameters: Hyperparameters,
        acting: Tensor | None = None,
    ) -> None:
        """The second part: actors follow their critics, if there is a rule by which to.

        :param acting: receives the parameters of the S runs; may be on the host
        """
        if hyperparameters.actor_rule is None:
            return
        _, n_trained, batch_size = inputs.batches.shape
        sizes = self._sizes("train_actor", memory, batch_size, hyperparameters)
        arguments = [
            *(actor.parameters, actor.first_moment, actor.second_moment, actor.steps),
            *(memory.observations, memory.masks, inputs.members, inputs.batches, inputs.rates, inputs.scales),
            *(inputs.q, inputs.metrics, acting, memory.actions.shape[1], n_trained),
        ]
        self._launch("train_actor", sizes, runs, 1, arguments, hyperparameters)

    def _launch(
        self, kernel: str, sizes: Sizes, runs: int, networks: int, arguments: Arguments, hyper: Hyperparameters
    ) -> None:
        """Train so many networks of each of these runs; meanwhile, others that share the GPU may do the same."""
        programs = networks * int(sizes["GROUP"])
        outside = "\n".join(dict.fromkeys(map(source_of, hyper.twins())))  # both rules may be of one source
        _launch(kernel, sizes, runs * programs, arguments, max(runs, self.runs) * programs, outside)

    def remember(self, memory: TensorTransitions, new: TensorTransitions, places: Tensor, count: int) -> None:
        """Put transitions into the replay memories of runs.

        :param memory: of shape (R, M, ...) each
        :param new: of shape (n, ...) each, with n at least ``count``
        :param places: where they go, of R * M
        """
        plain = {"WHOLE": 0, "GROUP": 1, "UNITS": _UNITS, "WARPS": 8}
        sizes = {**self._sizes("train_critics", memory, 1, Hyperparameters(1, 1)), **plain}
        columns = [getattr(part, name) for part in (memory, new) for name in NAMES]
        _launch("remember", sizes, -(-count // (32 * plain["WARPS"])), [*columns, places, count], 1)

    def _sizes(
        self, kernel: str, memory: TensorTransitions, batch_size: int, hyperparameters: Hyperparameters
    ) -> dict[str, int | str]:
        """The macros of fused.cu."""
        is_actor, rule = kernel == "train_actor", hyperparameters.actor_rule
        critic_twin, actor_twin = hyperparameters.twins()
        return {
            **self._layout(kernel, self.actor_sizes if is_actor else self.critic_sizes, batch_size),
            "N": batch_size,
            "FIT": hyperparameters.fit_steps,
            "ONE_HOT": self.one_hot,
            "RELU": self.relu,
            "MASKED": memory.masks is not None,
            "REPEATS": hyperparameters.repeats and not is_actor,
            "ITERATIONS": 0 if is_actor else hyperparameters.critic_iterations,
            "CRITIC_RULE": critic_twin[0],
            "ACTOR_RULE": actor_twin[0],
            "CROSS_ENTROPY": is_actor and rule is not None and rule.loss == "cross_entropy",
        }

    def _layout(self, kernel: str, sizes: tuple[int, ...], batch_size: int) -> dict[str, int]:
        """How a network is laid out over programs."""
        inputs, hidden, outputs = sizes
        programs = _n_programs(sizes)
        whole = self.runs >= _WHOLE_FROM[kernel] and programs > 1 and not self.one_hot
        whole = whole and _fits_whole(sizes, batch_size)
        return {
            "I": inputs,
            "H": hidden,
            "A": outputs,
            "WHOLE": whole,
            "GROUP": 1 if whole else programs,
            "UNITS": programs * _UNITS if whole else _UNITS,
            "WARPS": _WARPS[kernel] if whole else 8,
        }


def _n_programs(sizes: Sequence[int]) -> int:
    programs = 1
    while programs * _UNITS < sizes[1]:
        programs *= 2
    return programs


def _fits_whole(sizes: Sequence[int], batch_size: int) -> bool:
    """Whether one program can train the whole network."""
    inputs, _, outputs = sizes
    units = _n_programs(sizes) * _UNITS
    row_warps = _MOST_WARPS * _UNITS // units
    tiles = -(-batch_size // (8 * row_warps))  # of 8 rows; a warp computes up to 4 at a time
    rows = 8 * row_warps * (tiles if tiles < 3 else -(-tiles // 4) * 4)
    # Parameters, moments, gradients, of which several warps may have parts; inputs, twice; outputs.
    shared = (3 * units + _MOST_WARPS * _UNITS) * (inputs + 1 + outputs) + rows * (32 * -(-inputs // 8) + 8) + 10_500
    return inputs <= _MOST_WHOLE_INPUTS and outputs <= _MOST_WHOLE_OUTPUTS and shared <= _SHARED_FLOATS


def _launch(kernel: str, sizes: Sizes, programs: int, arguments: Arguments, crowd: int, outside: str = "") -> None:
    if not is_available():
        raise RuntimeError(f"the fused learner needs {nvrtc.REMEDY}")
    assert kernels is not None
    sizes = {name: size if isinstance(size, str) else int(size) for name, size in sizes.items()}
    with _LAUNCHING:
        kernels.launch(kernel, sizes, programs, _values(arguments), crowd, outside)


def _values(arguments: Arguments) -> list[Any]:
    """As a kernel gets them: tensors by their addresses."""
    return [
        ctypes.c_int(argument)
        if isinstance(argument, int)
        else ctypes.c_void_p(0 if argument is None else _contiguous(argument).data_ptr())
        for argument in arguments
    ]


def _contiguous(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous(), "kernels get whole tensors"
    return tensor


class FusedLearner(TorchLearner):
    """The PyTorch learner, its epoch computed by the fused kernels.

    :param actor: a perceptron with one hidden layer; None: critics only
    :param critic: a perceptron with one hidden layer
    :param state: initial parameters; copied
    :param networks: their sizes
    :param device: a GPU
    """

    name = "fused"

    def __init__(
        self,
        actor: nn.Module | None,
        critic: nn.Module,
        state: LearnerState,
        networks: FusedNetworks,
        device: torch.device | str = "cuda",
    ) -> None:
        super().__init__(actor, critic, state, device, networks.inputs)
        self._networks = networks
        self._n_scaled = networks.critic_sizes[0]

    def _epoch(self, inputs: list[Tensor], memory: TensorTransitions, hyperparameters: Hyperparameters) -> Tensor:
        batches, order, rates, scales = (tensor.unsqueeze(0) for tensor in inputs)
        columns = {name: None if part is None else part.unsqueeze(0) for name, part in vars(memory).items()}
        of_one_run = TensorTransitions(**columns)  # type: ignore[arg-type]
        actor = None if self.actor is None else self.actor.select(None)
        tensors = EpochTensors(
            torch.zeros(1, dtype=torch.int32, device=self.device),
            batches.int(),
            order.int(),
            rates,
            scales,
            torch.empty((*batches.shape, self._networks.critic_sizes[-1]), device=self.device),
            torch.full((*order.shape, 3), torch.nan, device=self.device),
        )
        everything = self.critics.select(None), self.active[None], actor, of_one_run, 1, tensors
        self._networks.epoch(*everything, hyperparameters)
        return tensors.metrics[0].mean(dim=0)
