"""Small perceptrons on a GPU: an epoch is two kernels, and many runs are trained by the same two.

The kernels (:mod:`bdpi.learner.fused_kernels`) are written in Triton, which comes with PyTorch's CUDA packages.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bdpi.learner.interface import Hyperparameters, LearnerState
from bdpi.learner.memory import TensorTransitions
from bdpi.learner.rules import ActorRule
from bdpi.learner.torch import AdamTensors, TorchLearner

ROWS = 32  # of a batch at a time
WARPS = 8
_MOST_WEIGHTS = 16_384  # of a network, with padding: what fits into the registers
PRECISION = "tf32x3"  # three products on tensor cores instead of one of float32; not measured on a GPU yet


def is_available() -> bool:
    """Whether Triton is there, and something to run it on."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return importlib.util.find_spec("triton") is not None and (torch.cuda.is_available() or interpreted)


def is_suitable(sizes: Sequence[int], rule: ActorRule | None, prior_scale: float) -> bool:
    """Whether networks of these sizes (inputs, hidden units, outputs) can be trained here."""
    if len(sizes) != 3 or prior_scale:
        return False
    inputs, hidden, outputs = (_padded(size) for size in sizes)
    fits = hidden * (inputs + outputs) <= _MOST_WEIGHTS
    return fits and (rule is None or (rule.native is not None and rule.native[0] in ("conservative", "imitation")))


def _padded(size: int) -> int:
    """The next power of two, from 16 on."""
    return 1 << max(4, (size - 1).bit_length())


@dataclass(frozen=True)
class FusedNetworks:
    """What the kernels have to know about networks.

    :param actor_sizes: inputs, hidden units, outputs
    :param critic_sizes: the same for the critics
    :param one_hot: observations are state numbers
    :param relu: hidden units are rectified linear ones, not tanh
    """

    actor_sizes: tuple[int, ...]
    critic_sizes: tuple[int, ...]
    one_hot: bool
    relu: bool

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
        from bdpi.learner import fused_kernels

        runs, n_trained, batch_size = batches.shape
        n_actions = self.critic_sizes[-1]
        length = memory.actions.shape[1]
        device = batches.device
        q = torch.empty((runs, n_trained, batch_size, n_actions), device=device)
        losses, means, actor_losses = (torch.empty((runs, n_trained), device=device) for _ in range(3))
        nothing = torch.empty(1, dtype=torch.uint8, device=device)
        masks, next_masks = (nothing if m is None else m.view(torch.uint8) for m in (memory.masks, memory.next_masks))
        common: dict[str, Any] = {
            "N": batch_size,
            "ROWS": ROWS,
            "FIT": hyperparameters.fit_steps,
            "ONE_HOT": self.one_hot,
            "RELU": self.relu,
            "MASKED": memory.masks is not None,
            "PRECISION": PRECISION,
            "num_warps": WARPS,
        }
        fused_kernels.train_critics[(runs * n_trained,)](
            *(critics.parameters, critics.first_moment, critics.second_moment, critics.steps, active),
            *(memory.observations, memory.actions, memory.rewards, memory.discounts, memory.next_observations),
            *(masks, next_masks, members, batches, order, rates, q, losses, means),
            *(length, active.shape[1], n_trained),
            ITERATIONS=hyperparameters.critic_iterations,
            **_sizes(self.critic_sizes),
            **common,
        )
        rule = hyperparameters.actor_rule
        if rule is None or actor is None:
            actor_losses.fill_(float("nan"))
        else:
            assert rule.native is not None
            fused_kernels.train_actor[(runs,)](
                *(actor.parameters, actor.first_moment, actor.second_moment, actor.steps),
                *(memory.observations, masks, members, batches, rates),
                *(q, torch.empty((runs, batch_size, n_actions), device=device), actor_losses),
                *(length, n_trained),
                IMITATION=rule.native[0] == "imitation",
                CROSS_ENTROPY=rule.loss == "cross_entropy",
                **_sizes(self.actor_sizes),
                **common,
            )
        return torch.stack([losses.mean(dim=1), actor_losses.mean(dim=1), means.mean(dim=1)], dim=1)


def _sizes(sizes: tuple[int, ...]) -> dict[str, int]:
    inputs, hidden, outputs = sizes
    padded = {"IP": _padded(inputs), "HP": _padded(hidden), "AP": _padded(outputs)}
    return {"I": inputs, "H": hidden, "A": outputs, **padded}


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
