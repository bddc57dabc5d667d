"""K-FAC, an approximate natural-gradient optimiser.

No maintained library has it for current PyTorch in a form that fits reinforcement learning, where the Fisher matrix is
that of a policy and a value function together; so it is written here, from the papers.

Papers: Martens and Grosse, 2015, https://arxiv.org/abs/1503.05671 (linear layers); Grosse and Martens, 2016,
https://arxiv.org/abs/1602.01407 (convolutions); Wu et al., 2017, https://arxiv.org/abs/1708.05144 (trust region).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from bdpi.agents import checks


def is_supported(layer: nn.Module) -> bool:
    """Whether the Fisher matrix of a layer is approximated; parameters of other modules get plain gradient steps."""
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def input_rows(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What the weights of a layer are multiplied with, (samples, places, inputs): a picture has many places.

    The bias is one more weight, whose input is always 1.
    """
    if isinstance(layer, nn.Conv2d):
        geometry = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        rows = F.unfold(inputs, *geometry).transpose(1, 2)  # type: ignore[arg-type]
    else:
        rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    return rows if layer.bias is None else F.pad(rows, (0, 1), value=1.0)


def gradient_rows(layer: nn.Module, gradients: Tensor) -> Tensor:
    """The gradients of a layer's outputs, (samples, places, outputs)."""
    if isinstance(layer, nn.Conv2d):
        return gradients.flatten(start_dim=2).transpose(1, 2)
    return gradients.reshape(len(gradients), -1, gradients.shape[-1])


def kronecker_factors(inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """A and G, so that their Kronecker product approximates the Fisher matrix of one layer.

    Exact for a single sample with a single place. Of a picture, places are taken for uncorrelated, as by Grosse and
    Martens: A sums over them, G is their mean.

    :param inputs: (samples, places, inputs)
    :param gradients: of the log-likelihood of each sample, not of a mean over them, (samples, places, outputs)
    """
    samples, places = inputs.shape[:2]
    inputs, gradients = inputs.flatten(end_dim=1), gradients.flatten(end_dim=1)
    return inputs.T @ inputs / samples, gradients.T @ gradients / (samples * places)


class Observation:
    """What one forward pass sent through the layers; made by :meth:`KFAC.observe`."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Tensor, GradientEdge]] = []

    def record(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """A forward hook."""
        if output.requires_grad:
            # The edge, and not the output: an activation that works in place would change what the output stands for.
            self.calls.append((layer, inputs[0].detach(), get_gradient_edge(output)))


class KFAC(torch.optim.Optimizer):
    """Divides the gradient by the Fisher matrix, approximated by one Kronecker product per layer.

    The Fisher matrix is that of what the network stands for, not of its loss, and has to be shown to the optimiser:

    >>> network = nn.Linear(3, 2)
    >>> optimizer = KFAC(network)
    >>> with optimizer.observe(network) as observation:
    ...     distribution = torch.distributions.Categorical(logits=network(torch.ones(5, 3)))
    >>> optimizer.update_fisher(observation, distribution.log_prob(distribution.sample()))
    >>> network(torch.ones(5, 3))[:, 0].mean().backward()
    >>> optimizer.step()

    Hooks are only there while a forward pass is observed, so networks and optimiser can be copied and saved at any
    time. Linear layers and convolutions (with zeros around, in one group) are approximated; all other parameters take
    part as if their Fisher matrix was the identity: they make plain gradient steps, in the same trust region.

    :param module: the network to train
    :param lr: learning rate, the longest step in units of the natural gradient
    :param momentum: how much of the last direction is kept. Higher is smoother and slower to turn.
    :param decay: of the running averages of the factors. Higher averages over more updates.
    :param damping: added to the Fisher matrix. Higher makes steps shorter, and more like those of plain gradients.
    :param kl_clip: trust region: how much KL divergence a step may cause, as the Fisher matrix predicts it
    :param refresh_interval: updates between two decompositions of the factors, after as many updates that each had one.
        Higher is faster, with an older Fisher matrix.
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float = 0.25,
        *,
        momentum: float = 0.9,
        decay: float = 0.99,
        damping: float = 0.01,
        kl_clip: float = 0.001,
        refresh_interval: int = 10,
    ) -> None:
        checks.check_number("momentum", momentum, 0, 1, low_included=True)
        if momentum == 1:
            raise ValueError("momentum must be less than 1: with 1, no gradient would ever count")
        checks.check_number("decay", decay, 0, 1, low_included=True)
        checks.check_number("damping", damping, 0)
        checks.check_number("kl_clip", kl_clip, 0)
        checks.check_integer("refresh_interval", refresh_interval, 1)
        # One group per layer, its weight first: groups say which bias belongs to which weight, and are saved and
        # copied with the optimiser, which keeps no reference to the layers.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in (layer.weight, layer.bias) if p is not None], "is_layer": True}
            for layer in module.modules()
            if is_supported(layer)
        ]
        layered = {id(parameter) for group in groups for parameter in group["params"]}
        others = [parameter for parameter in module.parameters() if id(parameter) not in layered]
        if others:
            groups.append({"params": others, "is_layer": False})
        defaults = {"lr": lr, "momentum": momentum, "decay": decay, "damping": damping, "kl_clip": kl_clip}
        super().__init__(groups, {**defaults, "refresh_interval": refresh_interval})

    @contextmanager
    def observe(self, module: nn.Module) -> Iterator[Observation]:
        """Remember what goes through the layers, for :meth:`update_fisher`; one forward pass at a time."""
        observation = Observation()
        weights = {id(group["params"][0]) for group in self.param_groups if group["is_layer"]}
        layers = [layer for layer in module.modules() if is_supported(layer) and id(layer.weight) in weights]
        hooks = [layer.register_forward_hook(observation.record) for layer in layers]
        try:
            yield observation
        finally:
            for hook in hooks:
                hook.remove()

    def update_fisher(self, observation: Observation, log_likelihood: Tensor) -> None:
        """Move the running averages towards the Fisher matrix of one batch. Gradients of parameters are left alone.

        :param observation: the forward pass from which ``log_likelihood`` was computed
        :param log_likelihood: one per sample, of outcomes drawn from the network's own distribution
        """
        # Summed, not averaged, so that what reaches a layer is the gradient of each sample.
        edges = [edge for _, _, edge in observation.calls]
        gradients = torch.autograd.grad(log_likelihood.sum(), edges, allow_unused=True)
        rows: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        for (layer, inputs, _), gradient in zip(observation.calls, gradients, strict=True):
            if gradient is not None:
                rows.setdefault(layer, []).append((input_rows(layer, inputs), gradient_rows(layer, gradient)))
        groups = {id(group["params"][0]): group for group in self.param_groups}
        for layer, calls in rows.items():
            # Whatever a layer was called for, more calls are more places where its weights were used.
            inputs, outputs = (torch.cat(part, dim=1) for part in zip(*calls, strict=True))
            self._average(groups[id(layer.weight)], *kronecker_factors(inputs, outputs))

    def _average(self, group: dict[str, Any], inputs: Tensor, gradients: Tensor) -> None:
        state = self.state[group["params"][0]]
        count = state["observations"] = state.get("observations", 0) + 1
        # The plain average of the first batches, so that the first one does not count for more than the others.
        rate = max(1 - group["decay"], 1 / count)
        for name, new in (("input_factor", inputs), ("gradient_factor", gradients)):
            state[name] = new if count == 1 else torch.lerp(state[name], new, rate)
        if count <= group["refresh_interval"] or count % group["refresh_interval"] == 0:
            state["input_values"], state["input_vectors"] = _decompose(state["input_factor"])
            state["gradient_values"], state["gradient_vectors"] = _decompose(state["gradient_factor"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step along the natural gradient, as long as the trust region allows."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moves = [(group, *move) for group in self.param_groups for move in self._moves(group)]
        # A direction d = F^-1 g changes the distribution by a KL divergence of lr^2/2 d.F d = lr^2/2 d.g
        divergence = float(sum(group["lr"] ** 2 / 2 * torch.sum(d * g) for group, _, g, d in moves))
        for group, parameter, _, direction in moves:
            scale = min(1.0, math.sqrt(group["kl_clip"] / divergence)) if divergence > 0 else 1.0
            velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
            # A mean of directions: momentum does not lead out of the trust region that each of them is in.
            velocity.mul_(group["momentum"]).add_(direction, alpha=(1 - group["momentum"]) * scale)
            parameter.sub_(velocity, alpha=group["lr"])
        return loss

    def _moves(self, group: dict[str, Any]) -> list[tuple[nn.Parameter, Tensor, Tensor]]:
        """Each parameter that has a gradient, with that gradient and the direction to move against."""
        trained = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
        state = self.state[group["params"][0]]
        if "input_vectors" not in state or len(trained) < len(group["params"]):
            return [(parameter, gradient, gradient) for parameter, gradient in trained]
        # The bias is the last column, as its constant input is the last row of the input factor.
        widths = [parameter[0].numel() for parameter, _ in trained]
        gradients = torch.cat([gradient.reshape(len(gradient), -1) for _, gradient in trained], dim=1)
        natural = precondition(
            gradients,
            (state["input_values"], state["input_vectors"]),
            (state["gradient_values"], state["gradient_vectors"]),
            group["damping"],
        )
        parts = torch.split(natural, widths, dim=1)
        return [(p, g, part.reshape(p.shape)) for (p, g), part in zip(trained, parts, strict=True)]


def precondition(
    gradient: Tensor, inputs: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor], damping: float
) -> Tensor:
    """(F + damping I)^-1 times the gradient of a layer's weights, for F the Kronecker product of two matrices.

    :param gradient: (outputs, inputs)
    :param inputs: eigenvalues and eigenvectors of the factor of the inputs
    :param gradients: the same of the factor of the output gradients
    """
    (input_values, input_vectors), (gradient_values, gradient_vectors) = inputs, gradients
    rotated = gradient_vectors.T @ gradient @ input_vectors
    rotated = rotated / (torch.outer(gradient_values, input_values) + damping)
    return gradient_vectors @ rotated @ input_vectors.T


def _decompose(factor: Tensor) -> tuple[Tensor, Tensor]:
    # In single precision, matrices of low rank (few of many one-hot states were seen) sometimes do not converge, or
    # give NaN without a word.
    values, vectors = (part.to(factor.dtype) for part in torch.linalg.eigh(factor.double()))
    return values.clamp(min=0.0), vectors  # below zero only by rounding
