"""Transitions as tensors where the PyTorch learner computes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from bdpi.learner.interface import IntArray, Ring, Transitions


@dataclass(frozen=True)
class TensorTransitions:
    """:class:`~bdpi.learner.interface.Transitions` on a device."""

    observations: Any
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    next_observations: Any
    masks: Tensor | None
    next_masks: Tensor | None


NAMES = [field.name for field in fields(TensorTransitions)]


class DeviceMemory:
    """A copy of transitions on a device, at addresses that stay where they are while shapes do.

    Of a ring, only what was added since the last call travels. Of anything else, only the batches do.

    :param device: where the tensors are
    :param mirror: copy; else, which only the CPU can do, tensors share the memory of the arrays
    """

    def __init__(self, device: torch.device, mirror: bool) -> None:
        self.device = device
        self.mirror = mirror
        #: counts the allocations: who remembers addresses can tell when they are no longer valid
        self.generation = 0
        self._tensors: list[Tensor | None] = []
        self._layout: Any = None
        self._ring: Ring | None = None

    def fetch(self, transitions: Transitions, batches: IntArray) -> tuple[TensorTransitions, IntArray]:
        """Tensors that hold these batches, and where in them."""
        if not self.mirror:
            arrays, spec = _leaves(transitions)
            tensors = [None if array is None else torch.as_tensor(array) for array in arrays]
            return TensorTransitions(*tree_unflatten(tensors, spec)), batches
        ring = transitions.ring
        if ring is None:
            transitions = _rows(transitions, batches.reshape(-1))
            batches = np.arange(batches.size).reshape(batches.shape)
        arrays, spec = _leaves(transitions)
        capacity = batches.size if ring is None else ring.capacity
        layout = (spec, capacity, *[None if array is None else (array.shape[1:], array.dtype.str) for array in arrays])
        if layout != self._layout:
            self._allocate(arrays, capacity)
            self._layout, self._ring = layout, None
        for start, stop in self._outdated(ring, len(transitions.actions)):
            for array, tensor in zip(arrays, self._tensors, strict=True):
                if array is not None and tensor is not None:
                    tensor[start:stop].copy_(torch.as_tensor(array[start:stop]))
        self._ring = ring
        return TensorTransitions(*tree_unflatten(self._tensors, spec)), batches

    def _allocate(self, arrays: list[NDArray[Any] | None], capacity: int) -> None:
        self._tensors = []  # freed before as much is asked for again
        self._tensors = [
            None
            if array is None
            else torch.zeros((capacity, *array.shape[1:]), dtype=torch.as_tensor(array[:1]).dtype, device=self.device)
            for array in arrays
        ]
        self.generation += 1

    def _outdated(self, ring: Ring | None, held: int) -> list[tuple[int, int]]:
        """Stretches of rows that are not what they were at the last call."""
        known = self._ring
        if (
            ring is None
            or known is None
            or known.memory is not ring.memory
            or ring.added - known.added >= ring.capacity
        ):
            return [(0, held)]
        start, stop = known.added % ring.capacity, ring.added % ring.capacity
        if ring.added == known.added:
            return []
        return [(start, stop)] if start < stop else [(start, ring.capacity), (0, stop)]


def _leaves(transitions: Transitions) -> tuple[list[NDArray[Any] | None], Any]:
    """All arrays, those inside dictionaries too, and how to put them together again."""
    leaves, spec = tree_flatten([getattr(transitions, name) for name in NAMES])
    return leaves, spec


def _rows(transitions: Transitions, index: IntArray) -> Transitions:
    """The transitions at ``index``, copied."""
    leaves, spec = _leaves(transitions)
    chosen = [None if array is None else array[index] for array in leaves]
    return replace(transitions, **dict(zip(NAMES, tree_unflatten(chosen, spec), strict=True)))
