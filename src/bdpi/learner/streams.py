"""CUDA streams: independent tasks, none of which fills a GPU, side by side."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

Result = TypeVar("Result")

N_STREAMS = 8
#: Held by a thread that starts work on streams. Threads share PyTorch's few streams: what one of them would start on a
#: stream that another one records as a graph would be recorded.
LAUNCHING = threading.Lock()


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """While this lasts, streams, graphs and kernels are of this device, which need not be the first GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Streams:
    """Runs tasks side by side, on the device that is current when it is made. Tasks may read the same tensors, and must
    write different ones."""

    def __init__(self) -> None:
        self._streams = [torch.cuda.Stream() for _ in range(N_STREAMS)]  # type: ignore[no-untyped-call]

    def run(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[Result]:
        """Start all tasks; give their results in order. Hold them until all were taken: a task that runs later on the
        same stream would get the memory of a result that is not held, while its reader may not have read it yet."""
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        started = []
        for number, task in enumerate(tasks):
            stream = self._streams[number % N_STREAMS]
            with torch.cuda.stream(stream):
                started.append((task(), stream.record_event()))
        for stream in self._streams[len(tasks) :]:
            main.wait_stream(stream)  # those without a task: a recording wants every fork joined
        for result, finished in started:
            main.wait_event(finished)
            yield result
