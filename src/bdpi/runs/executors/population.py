"""Many runs trained together on a GPU: each in a process of its own, all of them trained by one more."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bdpi.runs.build import is_peer
from bdpi.runs.errors import RunError
from bdpi.runs.executors.processes import Processes
from bdpi.runs.job import Job, JobResult, one_thread
from bdpi.runs.signals import left_to_parent

WORKERS = 64


class OnGPU:
    """See :class:`~bdpi.runs.executors.Executor`.

    Agents that the fused kernels cannot train learn in their processes as they would alone. The peers of BDPI come
    last, as many at a time as there are cores.

    :param workers: how many runs at a time; kernels are chosen by it, not by how many runs are left: an interrupted run
        goes on as it began
    :param device: where they are trained
    :param train: what the process that trains does; None: :func:`bdpi.runs.executors.training.work`
    """

    def __init__(
        self, workers: int | None = None, device: str = "cuda", train: Callable[..., None] | None = None
    ) -> None:
        from bdpi.learner import fused, nvrtc

        if train is None and not fused.is_available():
            raise RunError(f"--executor population needs {nvrtc.REMEDY}; --executor processes needs neither")
        self.workers, self._device, self._train = workers or WORKERS, device, train

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`."""
        one_thread()
        ours, peers = ([job for job in jobs if is_peer(job.config.agent) == whose] for whose in (False, True))
        if ours:
            with tempfile.TemporaryDirectory(prefix="bdpi-") as folder:
                yield from self._run(ours, Path(folder) / "trainer", should_stop, started)
        yield from Processes().run(peers, should_stop, started)

    def _run(
        self, jobs: list[Job], address: Path, should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bdpi.runs.executors.preload"])
        stop = context.RawValue("b", 0)

        def start() -> Any:
            from bdpi.runs.executors.training import work

            process = context.Process(target=self._train or work, args=(address, self.workers, self._device, stop))
            with left_to_parent():
                process.start()
            return process

        trainer = start()
        try:
            for ended in Processes(self.workers, address).run(jobs, should_stop, started):
                if not trainer.is_alive():  # its runs go on from their checkpoints
                    trainer = start()
                yield ended
        finally:
            stop.value = 1
            trainer.join(timeout=60)
            trainer.kill()
            trainer.join()
