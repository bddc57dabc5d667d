"""Many runs trained together on a GPU, each in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from bdpi.runs.errors import RunError
from bdpi.runs.job import Job, JobResult, execute

WORKERS = 32
_LOOK_AROUND = 0.5  # seconds


class OnGPU:
    """See :class:`~bdpi.runs.executors.Executor`.

    Agents that the fused kernels cannot train, and the peers, learn in their threads as they would alone.

    :param workers: how many at a time
    :param device: where they are trained
    """

    def __init__(self, workers: int | None = None, device: str = "cuda") -> None:
        from bdpi.learner import fused

        if not fused.is_available():
            raise RunError("--executor population needs a CUDA device and Triton; processes need neither")
        self.workers, self._device = workers or WORKERS, device

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`."""
        from bdpi.learner.cohort import Population

        population = Population(self.workers, self._device)
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        events: queue.SimpleQueue[tuple[Job, JobResult | None]] = queue.SimpleQueue()
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                events.put((job, None))
                with population.run():
                    result = execute(job, stop.is_set)
                events.put((job, result))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(self.workers, len(jobs)))]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) or not events.empty():
                if should_stop():
                    stop.set()
                try:
                    job, result = events.get(timeout=_LOOK_AROUND)
                except queue.Empty:
                    yield None
                    continue
                if result is None:
                    started(job)
                    yield None
                else:
                    yield job, result
        finally:
            stop.set()
