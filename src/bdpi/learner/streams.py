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


class EpochStreams:
    """Two streams for the epochs of a group of runs, beside those of other groups; on the CPU, nothing.

    Critics are many and fill a GPU: what comes after them would wait for those of all other groups. But a run waits for
    its actor, which leaves most of the GPU to others. So critics have a stream that lets everything else go first.
    """

    def __init__(self, device: torch.device) -> None:
        self._exist = device.type == "cuda"
        if self._exist:
            self._first = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._later = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """What is started meanwhile is computed in order, beside what other groups compute."""
        if not self._exist:
            yield
            return
        with torch.cuda.stream(self._first):
            yield
            self._done.record()

    @contextlib.contextmanager
    def let_others_go_first(self) -> Iterator[None]:
        """What is started meanwhile comes between what was and what will be, but does not keep other groups waiting."""
        if not self._exist:
            yield
            return
        self._later.wait_stream(self._first)
        with torch.cuda.stream(self._later):
            yield
        self._first.wait_stream(self._later)

    def is_done(self) -> bool:
        """Whether all work is done."""
        return not self._exist or bool(self._done.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """For the work. The thread sleeps: environments need the core that it would otherwise keep busy."""
        if self._exist:
            self._done.synchronize()

    def clear(self) -> None:
        """Wait for what is left of work that failed."""
        if self._exist:
            self._first.synchronize()
            self._later.synchronize()
