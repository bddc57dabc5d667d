"""Arrays that travel between the host and a device together: many small copies take longer than a large one."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpi.storage.shared import Parts

_ALIGNMENT = 16  # bytes


class Staging:
    """The same arrays twice: on the host, in memory that is quick to copy, and as tensors on a device.

    :param parts: shape and type of each
    :param device: of the tensors
    """

    def __init__(self, parts: Parts, device: torch.device) -> None:
        self.arrays: dict[str, NDArray[np.generic]] = {}
        self.tensors: dict[str, Tensor] = {}
        size = sum(
            -(-prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT for shape, dtype in parts.values()
        )
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        start = 0
        for name, (shape, dtype) in parts.items():
            stop = start + prod(shape) * np.dtype(dtype).itemsize
            array = self.arrays[name] = self._host.numpy()[start:stop].view(dtype).reshape(shape)
            self.tensors[name] = self._device[start:stop].view(torch.as_tensor(array).dtype).view(shape)
            start = -(-stop // _ALIGNMENT) * _ALIGNMENT

    def send(self) -> None:
        """Copy the arrays to the tensors, on PyTorch's current stream, without waiting."""
        self._device.copy_(self._host, non_blocking=True)

    def receive(self) -> None:
        """Copy the tensors to the arrays, in the same way."""
        self._host.copy_(self._device, non_blocking=True)
