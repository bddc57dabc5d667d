"""Where a group of runs has its epoch computed. Several groups are computed at a time, each in a lane of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bdpi.learner.fused import EpochTensors, FusedNetworks
from bdpi.learner.interface import Transitions
from bdpi.learner.memory import NAMES, TensorTransitions
from bdpi.learner.staging import Staging

FEW = 16  # transitions that a run may have more than at its last epoch, for them to travel with the others'


class Lane:
    """A queue of work for a device, and what travels there and back.

    A GPU has two streams for it. Critics are many and fill the GPU, so that what comes after them would wait for those
    of all other lanes; but who waits for an actor asks for the next critics when it is there, and an actor leaves most
    of the GPU to others. So the critics have a stream that lets everything else go first.

    :param networks: of the runs
    :param size: how many runs there may be
    :param device: where they are trained
    """

    def __init__(self, networks: FusedNetworks, size: int, device: torch.device) -> None:
        self._networks, self._size, self._device = networks, size, device
        self._desks: dict[tuple[Any, ...], Desk] = {}
        self._has_streams = device.type == "cuda"
        if self._has_streams:
            self._first = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._later = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def desk(self, transitions: Transitions, shape: tuple[int, ...]) -> Desk:
        """For batches of this shape, with or without masks; made when the first ones come."""
        key = shape, transitions.masks is not None
        if key not in self._desks:
            self._desks[key] = Desk(self._networks, transitions, shape, self._size, self._device)
        return self._desks[key]

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """What is started meanwhile is the lane's."""
        if not self._has_streams:
            yield
            return
        with torch.cuda.stream(self._first):
            yield
            self._done.record()

    @contextlib.contextmanager
    def let_others_go_first(self) -> Iterator[None]:
        """What is started meanwhile comes between what was and what will be, but does not keep other lanes waiting."""
        if not self._has_streams:
            yield
            return
        self._later.wait_stream(self._first)
        with torch.cuda.stream(self._later):
            yield
        self._first.wait_stream(self._later)

    def wait(self) -> None:
        """For the device. The thread sleeps: others need the core that it would otherwise keep busy."""
        if self._has_streams:
            self._done.synchronize()

    def clear(self) -> None:
        """Wait for what was left behind by work that failed."""
        if self._has_streams:
            self._first.synchronize()
            self._later.synchronize()


class Desk:
    """What travels between the host and the device for an epoch of runs whose batches have the same shape.

    :param networks: of the runs
    :param transitions: of one of them
    :param shape: of the batches of a run
    :param size: how many runs there may be
    :param device: where they are trained
    """

    def __init__(
        self, networks: FusedNetworks, transitions: Transitions, shape: tuple[int, ...], size: int, device: torch.device
    ) -> None:
        n_trained, batch_size = shape
        columns = {name: np.asarray(column) for name in NAMES if (column := getattr(transitions, name)) is not None}
        #: members, batches, order, rates, scales; new transitions and their places
        self.there = Staging(
            {
                "members": ((size,), np.int32),
                "batches": ((size, n_trained, batch_size), np.int32),
                "order": ((size, n_trained), np.int32),
                "rates": ((size, 4), np.float64),
                "scales": ((size, 2 * networks.critic_sizes[0] + 2), np.float32),
                "places": ((FEW * size,), np.int64),
                **{name: ((FEW * size, *column.shape[1:]), column.dtype) for name, column in columns.items()},
            },
            device,
        )
        self.back = Staging({"metrics": ((size, n_trained, 3), np.float32)}, device)
        self.new = TensorTransitions(**{name: self.there.tensors.get(name) for name in NAMES})  # type: ignore[arg-type]
        tensors = self.there.tensors
        self.tensors = EpochTensors(
            tensors["members"],
            tensors["batches"],
            tensors["order"],
            tensors["rates"],
            tensors["scales"],
            torch.empty((size, n_trained, batch_size, networks.critic_sizes[-1]), device=device),
            self.back.tensors["metrics"],
        )
