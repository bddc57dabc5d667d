"""Stacks of convolutional networks in bfloat16, trained by kernels of our own (:mod:`bdpi.learner.picture_kernels`).

PyTorch computes a stack of convolutional networks one after the other, or as slow grouped convolutions. Here, a few
kernels compute each layer of a whole stack, forwards and backwards. Only networks of the usual shape are trained so:
convolutions, linear layers, and rectifiers or tanh between them.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bdpi.learner.convolutions import is_plain
from bdpi.learner.functional import Inputs, Loss
from bdpi.learner.picture_layers import Layer, PlacedLayer, is_interpreted

REMEDY = "they need a GPU, Triton, which PyTorch for CUDA brings on Linux, and a C compiler, which Triton calls"


class PictureNetworks:
    """Stacks of networks of one shape, as functions of flat parameters; offers what ``NetworkStack`` does, and
    ``FunctionalNetwork``.

    :param hidden: all layers but the last
    :param last: which computes in float32, and is neither rectified nor the tanh of anything
    """

    def __init__(self, hidden: tuple[PlacedLayer, ...], last: PlacedLayer) -> None:
        self._hidden, self._last = hidden, last

    def values(self, stacked: Tensor, inputs: Inputs) -> Tensor:
        """Outputs (k, n, n_outputs) of a stack of networks (k, P), each for its own inputs, as :func:`lay_out` gives
        them."""
        return self._forwards(stacked, self._weights(stacked), inputs)[1]

    def gradients(
        self, target: Callable[..., Tensor], stacked: Tensor, inputs: Inputs, *arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``NetworkStack.gradients``."""
        weights = self._weights(stacked)
        images, outputs = self._forwards(stacked, weights, inputs)
        targets = torch.vmap(target)(outputs, *arguments)
        slopes = (outputs - targets) * (2 / outputs[0].numel())
        return self._backwards(stacked, weights, images, slopes), outputs, targets

    def gradient(self, loss: Loss, flat: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor, Any]:
        """See ``FunctionalNetwork.gradient``."""
        stacked = flat.unsqueeze(0)
        weights = self._weights(stacked)
        images, outputs = self._forwards(stacked, weights, inputs.unsqueeze(0))
        with torch.enable_grad():
            scores = outputs[0].detach().requires_grad_()
            value, rest = loss(scores)
            (slopes,) = torch.autograd.grad(value, scores)
        return self._backwards(stacked, weights, images, slopes.unsqueeze(0))[0], value.detach(), rest

    def _weights(self, stacked: Tensor) -> list[Tensor]:
        """Those of the hidden layers, rounded, as the kernels want them."""
        from bdpi.learner.picture_kernels import arrange

        return [arrange(place, stacked) for place in self._hidden]

    def _forwards(self, stacked: Tensor, weights: list[Tensor], inputs: Tensor) -> tuple[list[Tensor], Tensor]:
        """What goes into each layer, and the outputs."""
        from bdpi.learner.picture_kernels import forwards

        images = [inputs]
        for place, factors in zip(self._hidden, weights, strict=True):
            images.append(forwards(place.layer, images[-1], factors, place.biases_of(stacked)))
        features = images[-1].flatten(2).float()
        weights_of_last = self._last.weights_of(stacked).flatten(2)
        biases_of_last = self._last.biases_of(stacked).unsqueeze(1)
        return images, torch.baddbmm(biases_of_last, features, weights_of_last.transpose(1, 2))

    def _backwards(self, stacked: Tensor, weights: list[Tensor], images: list[Tensor], slopes: Tensor) -> Tensor:
        """From the gradient by the outputs to that by the parameters."""
        from bdpi.learner.picture_kernels import to_images, to_weights

        result = torch.empty_like(stacked)
        last, features = self._last, images[-1]
        by_weights = slopes.transpose(1, 2) @ features.flatten(2).float()
        last.weights_of(result).copy_(by_weights[:, :, :, None, None])
        last.biases_of(result).copy_(slopes.sum(1))
        by_features = (slopes @ last.weights_of(stacked).flatten(2)).view(features.shape)
        slope = 1 - features.float().square() if self._hidden[-1].layer.tanh else features > 0
        gradient = (by_features * slope).to(features.dtype)
        for number in reversed(range(len(self._hidden))):
            place, seen = self._hidden[number], images[number]
            to_weights(place, seen, gradient, result)
            if number > 0:
                before = self._hidden[number - 1].layer
                gradient = to_images(place.layer, seen, weights[number], gradient, before.tanh)
        return result


def lay_out(images: Tensor) -> Tensor:
    """Images (n, channels, height, width) as the kernels want them: channels last, and as many that several are
    fetched at once."""
    n, channels, height, width = images.shape
    result = images.new_zeros(n, height, width, _padded(channels), dtype=torch.bfloat16)
    result[..., :channels] = images.permute(0, 2, 3, 1)
    return result


def _padded(channels: int) -> int:
    return 4 * math.ceil(channels / 4)


def why_not(device: torch.device) -> str:
    """Why the kernels cannot run: they need Triton, and a GPU with a C compiler beside it, or Triton's interpreter.

    :return: empty if they can
    """
    can_compile = is_interpreted() or (device.type == "cuda" and _has_compiler())
    if not can_compile or importlib.util.find_spec("triton") is None:
        return REMEDY
    if _would_crash():
        return "Triton would crash, since Mesa has drawn for OpenGL before; import triton before any environment draws"
    import triton  # noqa: F401  # now: an environment may draw before the first epoch

    return ""


def _has_compiler() -> bool:
    """Where Triton looks for it."""
    return "CC" in os.environ or any(shutil.which(name) for name in ("gcc", "clang", "cc"))


def _would_crash() -> bool:
    """Whether another LLVM is here before Triton's, which does not bear that: Mesa's, if an environment has drawn."""
    loaded = Path("/proc/self/maps")  # of this process, on Linux
    return "triton" not in sys.modules and loaded.exists() and "libLLVM" in loaded.read_text()


def find_picture_networks(module: nn.Module, inputs: Any) -> PictureNetworks | None:
    """``module`` as a function that kernels compute; None where it has another shape, or does more than it seems.

    Found out by trying, on the CPU: which layers it has, in which order, and whether they alone give what it gives.

    :param module: any network
    :param inputs: a few of its inputs
    """
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        return None
    inputs = inputs.detach().cpu()
    watched = copy.deepcopy(module).cpu().eval()
    called: list[nn.Module] = []
    for part in watched.modules():
        if not list(part.children()):
            part.register_forward_pre_hook(lambda part, _: called.append(part))
    try:
        with torch.no_grad():
            expected: Tensor = watched(inputs)
            parts = [part for part in called if type(part) is not nn.Identity]
            found = nn.Sequential(*parts)(inputs)
            same = found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    except Exception:  # a foreign network may raise anything: it is trained as it is
        return None
    return _picture_networks(watched, parts, inputs) if same else None


def _picture_networks(module: nn.Module, parts: list[nn.Module], inputs: Tensor) -> PictureNetworks | None:
    starts, size = {}, 0
    for parameter in module.parameters():
        starts[id(parameter)] = size
        size += parameter.numel()
    places: list[PlacedLayer] = []
    _, channels, height, width = inputs.shape
    padded = _padded(channels)
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        if type(part) in (nn.ReLU, nn.Tanh, nn.Flatten):
            continue
        tanh = type(after) is nn.Tanh
        if type(part) is nn.Linear:
            layer = Layer(1, 1, height * width * padded, part.out_features, tanh=tanh)
            shape = (part.out_features, channels, height, width)
        elif isinstance(part, nn.Conv2d) and is_plain(part) and part.padding == (0, 0):
            kernel, stride = (part.kernel_size[0], part.kernel_size[1]), (part.stride[0], part.stride[1])
            layer = Layer(height, width, padded, part.out_channels, kernel, stride, tanh)
            shape = (part.out_channels, channels, *kernel)
        else:
            return None
        if part.bias is None or type(after) not in (nn.ReLU, nn.Tanh, type(None)):
            return None
        places.append(PlacedLayer(layer, starts[id(part.weight)], starts[id(part.bias)], shape, padded))
        channels = padded = layer.outputs
        height, width = layer.rows, layer.columns
    # The features before the last layer are a vector, in whose order PyTorch and the kernels agree.
    if type(parts[-1]) is not nn.Linear or len(places) < 2 or places[-1].shape[2:] != (1, 1):
        return None
    # A parameter that is used twice, or never, would need more than that.
    if size != sum(math.prod(place.shape) + place.layer.outputs for place in places) or len(set(places)) < len(places):
        return None
    return PictureNetworks(tuple(places[:-1]), places[-1])
