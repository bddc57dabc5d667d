"""Modules as functions of flat parameters, for one network or for a stack of them at once.

``torch.func`` maps a module's forward pass and gradient over the rows of a tensor of parameters. Modules that cannot be
mapped are looped over, with the same result. Modules are used in evaluation mode: dropout is off, batch normalisation
uses its stored statistics.
"""

from __future__ import annotations

from collections.abc import Callable
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


def flatten_parameters(module: nn.Module) -> FloatArray:
    """A module's parameters as one float32 vector, in the order of ``module.parameters()``."""
    return nn.utils.parameters_to_vector(module.parameters()).detach().cpu().float().numpy()


def bind_parameters(module: nn.Module, flat: Tensor) -> None:
    """Make a module's parameters views of ``flat``: what changes in one changes in the other."""
    offset = 0
    for parameter in module.parameters():
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        parameter.requires_grad_(False)
        offset += parameter.numel()


class FunctionalNetwork:
    """A module as a function of (flat parameters, inputs)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self.named = [(name, parameter.shape, parameter.numel()) for name, parameter in module.named_parameters()]
        if not self.named:
            raise ValueError(f"a network without parameters cannot learn: {module}")

    def __call__(self, flat: Tensor, inputs: Inputs) -> Tensor:
        """Outputs (n, n_outputs) of one network, ``flat`` of shape (P,)."""
        named, offset = {}, 0
        for name, shape, size in self.named:
            named[name] = flat[offset : offset + size].view(shape)
            offset += size
        output: Tensor = functional_call(self.module, named, (inputs,))
        return output


class NetworkStack:
    """Many networks of one kind, each with its own parameters (rows of a tensor) and its own inputs."""

    def __init__(self, module: nn.Module) -> None:
        self.network = FunctionalNetwork(module)
        self._mapped_network = FunctionalNetwork(with_matrix_products(module))
        #: whether values and gradients of a stack can be computed at once; not known before it was tried
        self.can_be_mapped: dict[str, bool] = {}

    def values(self, stacked: Tensor, inputs: Inputs) -> Tensor:
        """Outputs of a stack of networks (k, P), each for its own inputs (k, n, ...)."""
        values: Tensor = self._map("values", self._mapped_network, self.network, stacked, inputs)
        return values

    def gradients(
        self, target: Callable[..., Tensor], stacked: Tensor, inputs: Inputs, *arguments: Any
    ) -> tuple[Tensor, Tensor]:
        """Of the mean squared error of each network, (k, P), and the outputs (k, n, n_outputs).

        :param target: from the outputs of one network and its slice of ``arguments`` to what they should be
        """

        def loss(network: FunctionalNetwork, flat: Tensor, x: Inputs, *rest: Any) -> tuple[Tensor, Tensor]:
            outputs = network(flat, x)
            return nn.functional.mse_loss(outputs, target(outputs.detach(), *rest)), outputs.detach()

        def single(flat: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            gradient, _, outputs = gradient_of(partial(loss, self.network), flat, *rest)
            return gradient, outputs

        mapped = grad(partial(loss, self._mapped_network), has_aux=True)
        gradients, outputs = self._map("gradients", mapped, single, stacked, inputs, *arguments)
        return gradients, outputs

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
        if len(slices) > 1:
            self.can_be_mapped[kind] = False
        return tree_map(lambda *tensors: torch.stack(tensors), *slices)


def gradient_of(loss: Callable[..., tuple[Tensor, Any]], flat: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Any]:
    """d loss / d flat, the loss and what it returns besides, by ordinary automatic differentiation."""
    with torch.enable_grad():
        flat = flat.detach().requires_grad_()
        value, rest = loss(flat, *arguments)
        (gradient,) = torch.autograd.grad(value, flat)
    return gradient, value.detach(), rest
