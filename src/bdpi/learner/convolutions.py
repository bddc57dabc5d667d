"""Convolutions as matrix products.

Mapped over a stack of networks, PyTorch's convolution becomes a grouped one, which is slow forwards and ten times
slower backwards. A convolution whose patches are laid out as rows is a matrix product, and a stack of them is a batched
matrix product, which every device does well.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Patches(torch.autograd.Function):
    """Images (n, height, width, channels) to the patches that a kernel sees, (n, rows, columns, kernel values)."""

    @staticmethod
    def forward(images: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        images = images.contiguous()
        n, height, width, channels = images.shape
        rows, columns = (height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1
        per_image, per_row, per_column, _ = images.stride()
        view = images.as_strided(
            (n, rows, columns, *kernel, channels),
            (per_image, per_row * stride[0], per_column * stride[1], per_row, per_column, 1),
        )
        return view.reshape(n, rows, columns, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, ctx.kernel, ctx.stride = inputs
        ctx.size = tuple(images.shape[-3:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _apply(Overlap, gradient, ctx.size, ctx.kernel, ctx.stride), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], images: Tensor, *sizes: Any) -> tuple[Tensor, int]:
        return _merged(Patches, images, in_dims[0], *sizes)


class Overlap(torch.autograd.Function):
    """The transpose of :class:`Patches`: patches are added up where they overlap."""

    @staticmethod
    def forward(patches: Tensor, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        n, rows, columns, values = patches.shape
        patches = patches.reshape(n, rows, columns, *kernel, -1)
        images = patches.new_zeros(n, *size, values // (kernel[0] * kernel[1]))
        for i in range(kernel[0]):
            vertical = slice(i, i + stride[0] * (rows - 1) + 1, stride[0])
            for j in range(kernel[1]):
                horizontal = slice(j, j + stride[1] * (columns - 1) + 1, stride[1])
                images[:, vertical, horizontal].add_(patches[:, :, :, i, j])  # += would copy the sum onto itself
        return images

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.kernel, ctx.stride = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _apply(Patches, gradient, ctx.kernel, ctx.stride), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], patches: Tensor, *sizes: Any) -> tuple[Tensor, int]:
        return _merged(Overlap, patches, in_dims[0], *sizes)


def _apply(function: type[torch.autograd.Function], tensor: Tensor, *sizes: Any) -> Tensor:
    result: Tensor = function.apply(tensor, *sizes)  # type: ignore[no-untyped-call]
    return result


def _merged(function: type[torch.autograd.Function], stacked: Tensor, axis: int, *sizes: Any) -> tuple[Tensor, int]:
    """Both functions treat each image alone: a stack of batches is one larger batch."""
    stacked = stacked.movedim(axis, 0)
    result = _apply(function, stacked.flatten(0, 1), *sizes)
    return result.view(*stacked.shape[:2], *result.shape[1:]), 0


@dataclass(frozen=True)
class Window:
    """What a plain convolution sees of an image at a time.

    :param kernel: height and width
    :param stride: from one patch to the next
    :param padding: zeros around the image, as ``nn.functional.pad`` takes them
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, ...]

    @classmethod
    def of(cls, convolution: nn.Conv2d) -> Window:
        """The window of a plain convolution."""
        kernel, stride = convolution.kernel_size, convolution.stride
        return cls((kernel[0], kernel[1]), (stride[0], stride[1]), tuple(convolution._reversed_padding_repeated_twice))

    def patches(self, images: Tensor) -> Tensor:
        """Images (n, channels, height, width) to (n, rows, columns, kernel values)."""
        if any(self.padding):  # by nothing would be a copy
            images = nn.functional.pad(images, self.padding)
        return _apply(Patches, images.permute(0, 2, 3, 1), self.kernel, self.stride)


class PatchConv2d(nn.Conv2d):
    """``nn.Conv2d`` that is given the patches of images, as :class:`Window` lays them out."""

    def forward(self, input: Tensor) -> Tensor:
        """Patches (n, rows, columns, kernel values) to what ``nn.Conv2d`` makes of their images."""
        weight = self.weight.permute(0, 2, 3, 1).reshape(self.out_channels, -1)
        return nn.functional.linear(input, weight, self.bias).permute(0, 3, 1, 2)


class MatrixConv2d(PatchConv2d):
    """``nn.Conv2d`` computed as a matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        """Images (n, channels, height, width), as for ``nn.Conv2d``."""
        return super().forward(Window.of(self).patches(input))


def is_plain(part: nn.Module) -> bool:
    """Whether ``part`` is a convolution that can be computed as a matrix product."""
    return type(part) is nn.Conv2d and part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"


def with_matrix_products(module: nn.Module) -> nn.Module:
    """A copy of ``module``, with the same parameters, whose plain convolutions are matrix products."""
    module = copy.deepcopy(module)
    for part in module.modules():
        if is_plain(part):
            part.__class__ = MatrixConv2d
    return module


class _Products:
    """PyTorch's setting for matrix products, which all threads share: changed by the first that wants it to be, and put
    back by the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def enter(self) -> bool:
        """Returns whether :meth:`leave` has to be called."""
        products = torch.backends.cuda.matmul
        with self._lock:
            try:
                differs = torch.backends.cudnn.allow_tf32 and not products.allow_tf32
            except RuntimeError:  # the user has chosen by PyTorch's newer names, which exclude these
                return False
            if not differs and self._users == 0:
                return False
            products.allow_tf32 = True
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                torch.backends.cuda.matmul.allow_tf32 = False


_PRODUCTS = _Products()


@contextmanager
def products_as_convolutions() -> Iterator[None]:
    """On a GPU: matrix products in TF32 where PyTorch lets convolutions use it, as it does by default. Which of the two
    computes a layer then makes no difference to its precision. Several threads may ask for it at the same time."""
    has_entered = _PRODUCTS.enter()
    try:
        yield
    finally:
        if has_entered:
            _PRODUCTS.leave()


def has_convolutions(module: nn.Module) -> bool:
    """Whether any part of ``module`` is a two-dimensional convolution."""
    return any(isinstance(part, nn.Conv2d) for part in module.modules())
