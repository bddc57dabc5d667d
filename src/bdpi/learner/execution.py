"""How an epoch runs on a device: on the CPU, as it is.

On a GPU, the replay memory is mirrored (:mod:`bdpi.learner.memory`), and the epoch is a CUDA graph
(:mod:`bdpi.learner.graphs`). Where networks have convolutions, critics are trained side by side
(:mod:`bdpi.learner.streams`), and matrix products are in TF32 as PyTorch's convolutions are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpi.learner.convolutions import products_as_convolutions
from bdpi.learner.graphs import Replay
from bdpi.learner.interface import Hyperparameters, IntArray, Transitions
from bdpi.learner.memory import DeviceMemory, TensorTransitions
from bdpi.learner.streams import Streams, current

Result = TypeVar("Result")


class Execution:
    """Runs epochs.

    :param device: where
    :param epoch: from tensors, transitions and hyperparameters to metrics; changes its state in place
    :param has_convolutions: whether networks have such
    :param is_repeatable: epochs compute the same from the same inputs, so that a CUDA graph can
    """

    def __init__(
        self, device: torch.device, epoch: Callable[..., Tensor], has_convolutions: bool, is_repeatable: bool = True
    ) -> None:
        self._device, self._epoch = device, epoch
        self._memory = DeviceMemory(device, mirror=device.type != "cpu")
        is_gpu = device.type == "cuda"
        with current(device):
            self._streams = Streams() if is_gpu and has_convolutions else None
        #: CUDA graphs; None on other devices
        self.replay = Replay(epoch) if is_gpu and is_repeatable else None

    def fetch(self, transitions: Transitions, batches: IntArray) -> tuple[TensorTransitions, IntArray]:
        """Tensors that hold these batches, and where in them."""
        return self._memory.fetch(transitions, batches)

    def run(
        self, arrays: Sequence[NDArray[Any]], memory: TensorTransitions, hyperparameters: Hyperparameters
    ) -> list[float]:
        """One epoch; returns its metrics.

        :param arrays: what changes from epoch to epoch; the first are the batches
        """
        inputs = [torch.as_tensor(array).to(self._device) for array in arrays]
        # Learning rates are among the inputs: a graph is the same for all of them.
        hyperparameters = replace(hyperparameters, learning_rate=0.0, actor_learning_rate=0.0)
        in_tf32 = nullcontext() if self._streams is None else products_as_convolutions()
        with current(self._device), torch.no_grad(), in_tf32:
            if self.replay is None:
                return self._epoch(inputs, memory, hyperparameters).tolist()
            key = (inputs[0].shape, hyperparameters, self._memory.generation)
            return self.replay(inputs, memory, hyperparameters, key=key).tolist()

    def side_by_side(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[Result]:
        """Results of tasks, in order. Tasks may read the same tensors, and must write different ones."""
        return (task() for task in tasks) if self._streams is None else self._streams.run(tasks)
