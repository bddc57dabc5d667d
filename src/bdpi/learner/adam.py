"""Networks in training as tensors on a device, and Adam."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from bdpi.learner.interface import NetworkState

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # as PyTorch sets them


def _rows(tensor: Tensor) -> list[Tensor]:
    """The networks in a tensor of them, as PyTorch's optimisers take them."""
    return list(tensor.view(-1, tensor.shape[-1]))


@dataclass(frozen=True)
class AdamSettings:
    """What can be changed in Adam's step; only PyTorch's learner knows of it.

    :param betas: of the moments
    :param eps: added to the root of the second moment
    :param weight_decay: how much of a parameter is added to its gradient
    :param max_norm: longer gradients of a network are shortened to it
    """

    betas: tuple[float, float] = (BETA_1, BETA_2)
    eps: float = EPSILON
    weight_decay: float = 0.0
    max_norm: float | None = None

    def step(self, n_fixed: int, network: AdamTensors, gradient: Tensor, learning_rate: Tensor) -> None:
        """One step of some networks.

        :param n_fixed: numbers in front of the parameters that gradients do not change
        """
        if self.max_norm is not None:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient = gradient * (self.max_norm / (length + 1e-6)).clamp(max=1.0)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * network.parameters
            gradient[..., :n_fixed] = 0
        network.step(gradient, learning_rate, self)


USUAL_ADAM = AdamSettings()


class AdamTensors:
    """A :class:`NetworkState` on a device, with the optimiser step of ``torch.optim.Adam``, in one kernel."""

    def __init__(self, state: NetworkState, device: torch.device) -> None:
        self.parameters, self.first_moment, self.second_moment, self.steps = (
            torch.as_tensor(getattr(state, field.name)).to(device) for field in fields(NetworkState)
        )

    def select(self, index: Any) -> AdamTensors:
        """The networks at ``index``: views where PyTorch gives such, as for slices; else copies (see :meth:`put`)."""
        part = object.__new__(AdamTensors)
        for name, tensor in vars(self).items():
            setattr(part, name, tensor[index])
        return part

    def put(self, index: Any, part: AdamTensors) -> None:
        """Write back what :meth:`select` took out."""
        for name, tensor in vars(self).items():
            tensor[index] = getattr(part, name)

    def step(self, gradient: Tensor, learning_rate: Tensor, settings: AdamSettings | None = None) -> None:
        """One Adam step, in place."""
        betas, eps = ((BETA_1, BETA_2), EPSILON) if settings is None else (settings.betas, settings.eps)
        adam(
            _rows(self.parameters),
            _rows(gradient),
            _rows(self.first_moment),
            _rows(self.second_moment),
            max_exp_avg_sqs=[],
            state_steps=list(self.steps.float().view(-1)),
            fused=True,
            amsgrad=False,
            beta1=betas[0],
            beta2=betas[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=eps,
            maximize=False,
        )
        self.steps += 1

    def step_by_kernel(self, gradient: Tensor, learning_rate: Tensor) -> None:
        """The same by a kernel of our own, which is faster for few long rows."""
        from bdpi.learner.picture_kernels import adam as step

        rows = self.parameters.view(-1, self.parameters.shape[-1])
        moments = self.first_moment.view_as(rows), self.second_moment.view_as(rows)
        step(rows, gradient.view_as(rows), *moments, self.steps, learning_rate, (BETA_1, BETA_2), EPSILON)
        self.steps += 1
