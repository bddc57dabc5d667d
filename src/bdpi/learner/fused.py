"""Small perceptrons on a GPU: an epoch is two kernels, and many runs are trained by the same two.

The kernels are in fused.cu, and compiled when they are first needed: for few runs, which are to take little time, so
that several programs train a network, or for many, each of whose networks has a program. Written in Triton, one run
took four to seven times as long on an H200: its blocks pass everything through shared memory, and here next to nothing
has to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bdpi.learner import nvrtc
from bdpi.learner.interface import Hyperparameters, LearnerState
from bdpi.learner.memory import TensorTransitions
from bdpi.learner.rules import ActorRule
from bdpi.learner.torch import AdamTensors, TorchLearner

SOURCE = Path(__file__).with_name("fused.cu")
HEADERS = [SOURCE.with_name(name) for name in ("fused_split.cuh", "fused_whole.cuh")]
LARGEST_BATCH = 512
_UNITS, _MOST_PROGRAMS = 32, 8  # hidden units of a program, programs of a network; as many as make up a cluster
_MOST_INPUTS, _MOST_STATES = 32, 128  # a thread has the inputs of its rows in registers
# Of a network that one program trains. Actors are few, and have a multiprocessor for themselves.
_MOST_WHOLE_INPUTS, _MOST_WHOLE_OUTPUTS = 16, 8
_WHOLE_FROM = {"train_critics": 4, "train_actor": 40}  # runs: so many take less time, although one takes more
_WARPS, _MOST_WARPS = {"train_critics": 8, "train_actor": 16}, 16
_SHARED_FLOATS = 56_000  # of a program


class Kernels(Protocol):
    """Something that runs the kernels of fused.cu."""

    def launch(self, name: str, sizes: Mapping[str, int], programs: int, arguments: Sequence[Any]) -> None:
        """Run a kernel.

        :param name: which one
        :param sizes: the macros
        :param programs: how many
        :param arguments: ctypes values
        """


#: what runs the kernels; None: nothing can
kernels: Kernels | None = None


def is_available() -> bool:
    """Whether there is something to run the kernels on."""
    global kernels
    if kernels is None and nvrtc.is_available():
        kernels = nvrtc.CompiledKernels(SOURCE, HEADERS)
    return kernels is not None


def is_suitable(
    sizes: Sequence[int], one_hot: bool, batch_size: int, rule: ActorRule | None, prior_scale: float
) -> bool:
    """Whether networks of these sizes (inputs, hidden units, outputs) can be trained here."""
    if len(sizes) != 3 or prior_scale:
        return False
    inputs, _, outputs = sizes
    programs, rows = _n_programs(sizes), inputs if one_hot else batch_size
    shared = outputs * rows * (7 + 2 * programs) + 8 * _UNITS * (inputs + 1 + outputs)
    fits = programs <= _MOST_PROGRAMS and batch_size <= LARGEST_BATCH and shared <= _SHARED_FLOATS
    fits = fits and inputs <= (_MOST_STATES if one_hot else _MOST_INPUTS)
    return fits and (rule is None or (rule.native is not None and rule.native[0] in ("conservative", "imitation")))


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

    def epoch(
        self,
        critics: AdamTensors,
        active: Tensor,
        actor: AdamTensors | None,
        memory: TensorTransitions,
        members: Tensor,
        batches: Tensor,
        order: Tensor,
        rates: Tensor,
        hyperparameters: Hyperparameters,
    ) -> Tensor:
        """One epoch of S of R runs; everything has a first axis that counts them. Returns metrics, (S, 3).

        :param critics: parameters and moments (R, C, 2, P), steps (R, C, 2)
        :param active: (R, C)
        :param actor: (R, P); None without one
        :param memory: of shape (R, M, ...) each
        :param members: which runs take part, (S,)
        :param batches: (S, K, N)
        :param order: which critics are trained, (S, K)
        :param rates: see :func:`bdpi.learner.torch.numbers_of`, (S, 4)
        """
        if not is_available():
            raise RuntimeError(f"the fused learner needs {nvrtc.REMEDY}")
        assert kernels is not None
        runs, n_trained, batch_size = batches.shape
        n_actions = self.critic_sizes[-1]
        length = memory.actions.shape[1]
        device = batches.device
        q = torch.empty((runs, n_trained, batch_size, n_actions), device=device)
        losses, means, actor_losses = (torch.empty((runs, n_trained), device=device) for _ in range(3))
        rule = hyperparameters.actor_rule
        common = {
            "N": batch_size,
            "FIT": hyperparameters.fit_steps,
            "ONE_HOT": self.one_hot,
            "RELU": self.relu,
            "MASKED": memory.masks is not None,
        }
        sizes = {
            **self._layout("train_critics", self.critic_sizes, batch_size),
            **common,
            "ITERATIONS": hyperparameters.critic_iterations,
            "IMITATION": 0,
            "CROSS_ENTROPY": 0,
        }
        arguments = [
            *(critics.parameters, critics.first_moment, critics.second_moment, critics.steps, active),
            *(memory.observations, memory.actions, memory.rewards, memory.discounts, memory.next_observations),
            *(memory.next_masks, members, batches, order, rates, q, losses, means),
            *(length, active.shape[1], n_trained),
        ]
        kernels.launch("train_critics", _integers(sizes), runs * n_trained * sizes["GROUP"], _values(arguments))
        if rule is None or actor is None:
            actor_losses.fill_(float("nan"))
        else:
            assert rule.native is not None
            sizes = {
                **self._layout("train_actor", self.actor_sizes, batch_size),
                **common,
                "ITERATIONS": 0,
                "IMITATION": rule.native[0] == "imitation",
                "CROSS_ENTROPY": rule.loss == "cross_entropy",
            }
            arguments = [
                *(actor.parameters, actor.first_moment, actor.second_moment, actor.steps),
                *(memory.observations, memory.masks, members, batches, rates),
                *(q, actor_losses, length, n_trained),
            ]
            kernels.launch("train_actor", _integers(sizes), runs * sizes["GROUP"], _values(arguments))
        return torch.stack([losses.mean(dim=1), actor_losses.mean(dim=1), means.mean(dim=1)], dim=1)

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


def _integers(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: int(size) for name, size in sizes.items()}


def _values(arguments: Sequence[Tensor | int | None]) -> list[Any]:
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
        inputs = networks.critic_sizes[0]

        def preprocess(observations: Tensor) -> Tensor:
            if networks.one_hot:
                return (observations.reshape(-1, 1) == torch.arange(inputs, device=observations.device)).float()
            return observations.reshape(len(observations), -1)

        super().__init__(actor, critic, state, device, preprocess)
        self._networks = networks

    def _epoch(self, inputs: list[Tensor], memory: TensorTransitions, hyperparameters: Hyperparameters) -> Tensor:
        batches, critics, rates = (tensor.unsqueeze(0) for tensor in inputs)
        columns = {name: None if part is None else part.unsqueeze(0) for name, part in vars(memory).items()}
        of_one_run = TensorTransitions(**columns)  # type: ignore[arg-type]
        actor = None if self.actor is None else self.actor.select(None)
        member = torch.zeros(1, dtype=torch.int64, device=self.device)
        everything = self.critics.select(None), self.active[None], actor, of_one_run, member, batches, critics, rates
        return self._networks.epoch(*everything, hyperparameters)[0]
