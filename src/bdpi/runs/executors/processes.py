"""A process for each core, one thread each, so that N cores do N runs.

A process does one run at a time: whatever happens in it, only that run is lost, and is started again from its last
checkpoint. Then it takes the next one, because runs that last a second would spend most of their time on starting
processes. After two minutes a new one takes its place, so that what runs leave behind does not add up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bdpi.runs.job import Job, JobResult, execute, forget_runs, one_thread
from bdpi.runs.signals import leave_to_parent, left_to_parent

ATTEMPTS = 3  # of a run whose process was killed, or that another process works on
_RENEW_AFTER = 120.0  # seconds
_LOOK_AROUND = 0.5  # seconds


class Processes:
    """See :class:`~bdpi.runs.executors.Executor`.

    :param workers: how many at a time; all cores if None
    :param trainer: address of a process that trains runs together; None: each trains itself
    """

    def __init__(self, workers: int | None = None, trainer: Path | None = None) -> None:
        self.workers, self._trainer = workers or len(os.sched_getaffinity(0)), trainer

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`."""
        # A server that has imported PyTorch once forks all others: a process starts in no time, and without threads.
        one_thread()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bdpi.runs.executors.preload"])
        # Without a lock: a process that is killed while it holds one would stop all others.
        stop = context.RawValue("b", 0)
        waiting = [(job, 1) for job in reversed(jobs)]
        workers: list[_Worker] = []
        try:
            while workers or waiting:
                if should_stop():
                    stop.value = 1
                    waiting.clear()
                while waiting and len(workers) < self.workers:
                    workers.append(_Worker(context, stop, self._trainer))
                    started(workers[-1].begin(*waiting.pop()))
                wait([end for worker in workers for end in worker.ends], timeout=_LOOK_AROUND)
                yield None
                for worker in [worker for worker in workers if worker.has_ended()]:
                    job, attempt, result = worker.job, worker.attempt, worker.result()
                    # The server that forks processes was killed: those that it had forked save their runs and end.
                    cut_short = result is not None and result.status == "interrupted" and not stop.value
                    if result is not None and waiting and worker.is_young and not cut_short:
                        started(worker.begin(*waiting.pop()))
                    else:
                        workers.remove(worker)
                        worker.close()
                    again = attempt < ATTEMPTS and not stop.value
                    if (result is None or cut_short) and again:
                        waiting.append((job, attempt + 1))
                    elif result is not None and result.status == "busy" and again:
                        waiting.insert(0, (job, attempt + 1))  # all others come first
                    else:
                        yield job, result or JobResult("failed", worker.how_it_died())
        finally:
            stop.value = 1
            for worker in workers:
                worker.close()


class _Worker:
    """A process, and the run that it does."""

    job: Job
    attempt: int

    def __init__(self, context: Any, stop: Any, trainer: Path | None) -> None:
        self._began = time.monotonic()
        self._connection, theirs = context.Pipe()
        # not a daemon: a run may have environments in processes of their own
        self._process = context.Process(target=_work, args=(theirs, stop, trainer))
        with left_to_parent():
            self._process.start()
        theirs.close()

    @property
    def is_young(self) -> bool:
        return time.monotonic() < self._began + _RENEW_AFTER

    @property
    def ends(self) -> tuple[Any, Any]:
        """What to wait for: a result, or the end of the process."""
        return self._connection, self._process.sentinel

    def begin(self, job: Job, attempt: int) -> Job:
        self.job, self.attempt = job, attempt
        with contextlib.suppress(OSError):  # dead, as we are about to find out
            self._connection.send(job)
        return job

    def has_ended(self) -> bool:
        return self._connection.poll() or not self._process.is_alive()

    def result(self) -> JobResult | None:
        """None if the process died without a word."""
        try:
            return self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """End it, once its run has saved itself."""
        self._connection.close()
        self._process.join(timeout=30)
        self._process.kill()
        self._process.join()

    def how_it_died(self) -> str:
        code = self._process.exitcode or 0
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit status {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        return f"its process ended {how}{hint}; that was attempt {self.attempt}"


def _work(connection: Connection, stop: Any, address: Path | None) -> None:
    leave_to_parent()
    parent, trainer = os.getppid(), None
    lost: tuple[type[BaseException], ...] = (EOFError, OSError)  # the parent wants no more
    if address is not None:
        from bdpi.runs.executors.training import Client, TrainerLost

        trainer, lost = Client(address), (*lost, TrainerLost)  # the run is started again, in another process

    def should_stop() -> bool:  # when the parent is gone, too: save and end
        return bool(stop.value) or os.getppid() != parent

    with contextlib.suppress(*lost):
        while True:
            connection.send(execute(connection.recv(), should_stop, trainer))
            forget_runs()
