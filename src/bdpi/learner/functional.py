"""Modules as functions of flat parameters, for one network or for a stack of them at once.

``torch.func`` maps a module's forward pass and gradient over the rows of a tensor of parameters. Modules that cannot be
mapped are looped over, with the same result. Gradients are computed in training mode, and everything else in evaluation
mode, where dropout is off and batch normalisation uses its statistics. These lie in front of the parameters, in the
same vector: a gradient's pass updates them there, and their own gradient is zero.

A network may compute in a shorter type than its parameters have, by PyTorch's autocast: they are rounded to it once an
evaluation, all at once. Its last layer, outputs and gradients are float32: one step of discounting changes a Q-value by
one hundredth, which is little more than what 8 significant bits can tell.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from bdpi.learner.convolutions import with_matrix_products
from bdpi.learner.interface import FloatArray

#: A tensor, or a dictionary of tensors: what a module's ``forward`` takes.
Inputs = Any
#: From a network's outputs to a number, and anything else that is worth keeping.
Loss = Callable[[Tensor], tuple[Tensor, Any]]


def statistics_of(module: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """A module's buffers of numbers, such as the running means of batch normalisation: owner, name there, values."""
    named = [name.rpartition(".") for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    owners = [(module.get_submodule(owner), name) for owner, _, name in named]
    return [(owner, name, owner.get_buffer(name)) for owner, name in owners]


def has_modes(module: nn.Module) -> bool:
    """Whether PyTorch's own layers in ``module`` compute something else in training than in evaluation mode."""
    kinds = nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase
    return any(isinstance(part, kinds) for part in module.modules())


def flatten_parameters(module: nn.Module) -> FloatArray:
    """A module's statistics and parameters as one float32 vector, in the order of ``module.parameters()``."""
    values = [*(buffer for _, _, buffer in statistics_of(module)), *module.parameters()]
    return nn.utils.parameters_to_vector(values).detach().cpu().float().numpy()


def bind_parameters(module: nn.Module, flat: Tensor) -> None:
    """Make a module's statistics and parameters views of ``flat``: what changes in one changes in the other."""
    offset = 0
    for owner, name, buffer in statistics_of(module):
        owner._buffers[name] = flat[offset : offset + buffer.numel()].view(buffer.shape)
        offset += buffer.numel()
    for parameter in module.parameters():
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        parameter.requires_grad_(False)
        offset += parameter.numel()


class _FullLinear(nn.Linear):
    """``nn.Linear`` that computes in float32, whatever autocast wants."""

    def forward(self, input: Tensor) -> Tensor:
        """As ``nn.Linear``'s."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def _with_full_output(module: nn.Module) -> nn.Module:
    """A copy of ``module``, with the same parameters, whose last linear layer computes in float32."""
    module = copy.deepcopy(module)
    for last in [part for part in module.modules() if type(part) is nn.Linear][-1:]:
        last.__class__ = _FullLinear
    return module


class FunctionalNetwork:
    """A module as a function of (flat parameters, inputs).

    :param module: any module with parameters
    :param dtype: in which its convolutions and matrix products are computed, except those of the last linear layer
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._is_shorter = dtype != torch.float32
        self.module = module = (_with_full_output(module) if self._is_shorter else module).eval()
        self._training = copy.deepcopy(module).train()
        self.has_modes = has_modes(module)
        full = [part for part in module.modules() if isinstance(part, _FullLinear)]
        kept = {id(parameter) for part in full for parameter in part.parameters()}
        if not any(True for _ in module.parameters()):
            raise ValueError(f"a network without parameters cannot learn: {module}")
        statistics = [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]
        self._n_statistics = len(statistics)
        named = [*statistics, *module.named_parameters()]
        self._is_kept = [number < len(statistics) or id(each) in kept for number, (_, each) in enumerate(named)]
        self._names = [name for name, _ in named]
        self._shapes = [parameter.shape for _, parameter in named]
        self._sizes = [parameter.numel() for _, parameter in named]

    def __call__(self, flat: Tensor, inputs: Inputs) -> Tensor:
        """Outputs (n, n_outputs) of one network, ``flat`` of shape (P,)."""
        return self._call(self._parts(flat), inputs)

    def _parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        parts = torch.split(flat, self._sizes)
        if self._is_shorter:
            both = zip(parts, torch.split(flat.to(self.dtype), self._sizes), self._is_kept, strict=True)
            parts = tuple(part if is_kept else shorter for part, shorter, is_kept in both)
        return tuple(part.view(shape) for part, shape in zip(parts, self._shapes, strict=True))

    def _call(self, parts: tuple[Tensor, ...], inputs: Inputs, trains: bool = False) -> Tensor:
        module = self._training if trains else self.module
        with torch.autocast(parts[0].device.type, self.dtype) if self._is_shorter else nullcontext():
            output: Tensor = functional_call(module, dict(zip(self._names, parts, strict=True)), (inputs,))
        return output.float()

    def gradient(self, loss: Loss, flat: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Any]:
        """d loss / d flat, the loss, and what it returns besides; by ordinary automatic differentiation."""
        with torch.enable_grad():
            # The parts are what is differentiated by: the gradient of a slice is as long as the whole.
            parts = self._parts(flat)
            statistics, n = parts[: self._n_statistics], self._n_statistics
            parts = tuple(part.detach().requires_grad_() for part in parts[n:])
            value, rest = loss(self._call((*statistics, *parts), inputs, trains=True))
            gradients = torch.autograd.grad(value, parts)
        return self._joined((*map(torch.zeros_like, statistics), *gradients)), value.detach(), rest

    def mapped_gradient(self, loss: Loss, flat: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Any]:
        """The same in a way that ``vmap`` understands."""

        def of_parts(parts: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, Any]]:
            value, rest = loss(self._call(parts, inputs, trains=True))
            return value, (value, rest)

        gradients, (value, rest) = grad(of_parts, has_aux=True)(self._parts(flat))
        return self._joined(gradients), value, rest

    def _joined(self, gradients: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([gradient.reshape(-1) for gradient in gradients]).float()


class NetworkStack:
    """Many networks of one kind, each with its own parameters (rows of a tensor) and its own inputs.

    :param module: any module with parameters
    :param dtype: see :class:`FunctionalNetwork`
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        self.module = module
        self._network = FunctionalNetwork(module, dtype)
        self._mapped = FunctionalNetwork(with_matrix_products(module), dtype)
        #: whether values and gradients of a stack can be computed at once; not known before it was tried
        self.can_be_mapped = {"gradients": False} if self._network.has_modes else {}

    def values(self, stacked: Tensor, inputs: Inputs) -> Tensor:
        """Outputs of a stack of networks (k, P), each for its own inputs (k, n, ...)."""
        values: Tensor = self._map("values", self._mapped, self._network, stacked, inputs)
        return values

    def gradients(
        self, target: Callable[..., Tensor], stacked: Tensor, inputs: Inputs, *arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of the mean squared error of each network, (k, P), the outputs, and the targets, (k, n, n_outputs) both.

        :param target: from the outputs of one network and its slice of ``arguments`` to what they should be
        """

        def loss(
            arguments: tuple[Any, ...], outputs: Tensor, calm: Tensor | None = None
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            calm = outputs.detach() if calm is None else calm
            targets = target(calm, *arguments)
            return nn.functional.mse_loss(outputs, targets), (calm, targets)

        def mapped(flat: Tensor, x: Inputs, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
            gradient, _, both = self._mapped.mapped_gradient(partial(loss, arguments), flat, x)
            return gradient, *both

        def single(flat: Tensor, x: Inputs, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
            calm = self._network(flat, x) if self._network.has_modes else None  # without the noise of training
            gradient, _, both = self._network.gradient(partial(loss, arguments, calm=calm), flat, x)
            return gradient, *both

        gradients, outputs, targets = self._map("gradients", mapped, single, stacked, inputs, *arguments)
        return gradients, outputs, targets

    def _map(self, kind: str, mapped: Callable[..., Any], single: Callable[..., Any], *stacked: Any) -> Any:
        """All slices along the first axis at once where the module allows it, else one after the other."""
        if len(stacked[0]) > 1 and self.can_be_mapped.get(kind, True):
            try:
                result = vmap(mapped)(*stacked)
                self.can_be_mapped[kind] = True
                return result
            except (RuntimeError, ValueError, NotImplementedError):
                if kind in self.can_be_mapped:
                    raise  # it has worked before: this is another problem
        slices = [single(*tree_map(lambda tensor: tensor[i], stacked)) for i in range(len(stacked[0]))]  # noqa: B023
        if len(slices) == 1:
            return tree_map(lambda tensor: tensor.unsqueeze(0), slices[0])
        self.can_be_mapped[kind] = False
        return tree_map(lambda *tensors: torch.stack(tensors), *slices)
