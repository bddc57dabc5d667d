"""CUDA graphs: a whole epoch, thousands of small kernels, started by one call.

On a GPU the kernels of small networks take less time than it takes to launch them. A graph records the launches once
and replays them. It reads and writes the same addresses each time, so what changes from epoch to epoch is copied there
first, and a new graph is recorded when shapes, rules or addresses are others than before.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bdpi.learner.streams import LAUNCHING

MOST_GRAPHS = 4  # kept at a time; each holds the memory of an epoch
_LEFT: list[Any] = []  # graphs that are not needed any more, but could not be freed yet


class Replay:
    """Runs a function of tensors that changes state in place: the first time as it is, from then on as a graph.

    :param function: takes tensors, then anything hashable that it depends on; returns a tensor. It must not look at
        values on the device, nor replace the tensors that are its state.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self._graphs: dict[Hashable, _Graph | None] = {}
        #: why graphs are not used; empty while they are
        self.reason = ""

    def __call__(self, tensors: Any, *constants: Any, key: Hashable) -> Tensor:
        """Call the function.

        :param tensors: copied to fixed addresses
        :param constants: recorded as they are; a change of them must change the ``key``
        """
        if self.reason:
            return _step_by_step(self._function, tensors, *constants)
        try:
            if key in self._graphs:
                graph = self._graphs[key]
                if graph is None:
                    graph = self._graphs[key] = _Graph(self._function, tensors, *constants)
                return graph.replay(tensors)
        except (RuntimeError, NotImplementedError) as error:
            # A failed recording has executed nothing. Go on without graphs.
            self._graphs.clear()
            self.reason = str(error).splitlines()[0]
            warnings.warn(
                f"an epoch cannot be recorded as a CUDA graph and runs step by step, which is slower: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            with LAUNCHING:  # waiting for the device would spoil the recordings of other threads
                torch.cuda.synchronize()
            return _step_by_step(self._function, tensors, *constants)
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs[key] = None
        return _aside(self._function, tensors, *constants)


class _Graph:
    def __init__(self, function: Callable[..., Tensor], tensors: Any, *constants: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._inputs = tree_map(torch.clone, tensors)
        with LAUNCHING:
            _free_left()
            torch.cuda.synchronize()
            # PyTorch's own stream for recordings is of the GPU that had the first one. What other threads do meanwhile,
            # on other streams, is no part of the graph, and does not spoil it.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._output = function(self._inputs, *constants)

    def replay(self, tensors: Any) -> Tensor:
        tree_map(lambda mine, given: mine.copy_(given), self._inputs, tensors)
        self._graph.replay()
        return self._output

    def __del__(self, lock: threading.Lock = LAUNCHING, left: list[Any] = _LEFT) -> None:
        """To free a graph is to wait for the device, which would spoil what another thread records. This thread cannot
        wait for that one: whatever it does at the moment, the garbage collector may have called this."""
        left.append(self._graph)
        if lock.acquire(blocking=False):
            try:
                _free_left()
            finally:
                lock.release()


def _free_left() -> None:
    """While nothing is recorded."""
    while _LEFT:
        _LEFT.pop().reset()


def _step_by_step(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """As it is, while nothing is recorded."""
    with LAUNCHING:
        return function(*arguments)


def _aside(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """On a stream of its own, as PyTorch asks of what is about to be recorded: libraries set themselves up there."""
    with LAUNCHING:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = function(*arguments)
        torch.cuda.current_stream().wait_stream(stream)
    return result
