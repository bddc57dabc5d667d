"""Layers of networks for pictures, as the kernels for them see them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """A convolution of images (height, width, channels), rectified.

    :param kernel: height and width
    :param stride: downwards and to the right
    :param tanh: not rectified, but the tanh of it
    """

    height: int
    width: int
    channels: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    tanh: bool = False

    @cached_property
    def rows(self) -> int:
        """Of its output."""
        return (self.height - self.kernel[0]) // self.stride[0] + 1

    @cached_property
    def columns(self) -> int:
        """Of its output."""
        return (self.width - self.kernel[1]) // self.stride[1] + 1

    @cached_property
    def values(self) -> int:
        """That each output is a weighted sum of."""
        return self.kernel[0] * self.kernel[1] * self.channels


@dataclass(frozen=True)
class PlacedLayer:
    """A layer, and where its parameters are in a network's flat ones."""

    layer: Layer
    weights: int
    biases: int
    shape: tuple[int, int, int, int]  #: of the weights in PyTorch's order: outputs, channels, kernel
    padded: int  #: channels of what the layer sees, of which the last may have no weights

    def weights_of(self, stacked: Tensor) -> Tensor:
        """A view: networks, outputs, channels, kernel."""
        return _part(stacked, self.weights, *self.shape)

    def biases_of(self, stacked: Tensor) -> Tensor:
        """A view: networks, outputs."""
        return _part(stacked, self.biases, self.layer.outputs)


def _part(stacked: Tensor, start: int, *shape: int) -> Tensor:
    """Some parameters of each network of a stack, as a view."""
    return stacked[:, start : start + math.prod(shape)].view(len(stacked), *shape)


def is_interpreted() -> bool:
    """Whether Triton was told to do without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
