"""A process for each run, one thread each, so that N cores do N runs.

A process of its own, not one of a pool: whatever happens in it, only its run is lost, and that one is started again
from its last checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from bdpi.runs.job import Job, JobResult, execute, one_thread

ATTEMPTS = 3  # of a run whose process was killed, or that another process works on
_WAIT = 5.0  # seconds, in the second case
_LOOK_AROUND = 0.5  # seconds


class Processes:
    """See :class:`~bdpi.runs.executors.Executor`.

    :param workers: how many at a time; all cores if None
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`."""
        # A server that has imported PyTorch once forks all others: a process starts in no time, and without threads.
        one_thread()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bdpi.runs.executors.preload"])
        stop = context.Event()
        waiting = [(job, 1, 0.0) for job in reversed(jobs)]
        running: list[_Running] = []
        try:
            while running or (waiting and not stop.is_set()):
                if should_stop():
                    stop.set()
                now = time.monotonic()
                while waiting and waiting[-1][2] <= now and len(running) < self.workers and not stop.is_set():
                    job, attempt, _ = waiting.pop()
                    running.append(_Running(context, job, attempt, stop))
                    started(job)
                if running:
                    wait([one.process.sentinel for one in running], timeout=_LOOK_AROUND)
                else:
                    time.sleep(_LOOK_AROUND)
                yield None
                for one in [one for one in running if not one.process.is_alive()]:
                    running.remove(one)
                    result = one.result()
                    # Killed, or somebody still works on it: perhaps what was left of an earlier study, and ends soon.
                    again = result is None or result.status == "busy"
                    if again and one.attempt < ATTEMPTS and not stop.is_set():
                        later = now + _WAIT if result is not None else 0.0
                        waiting.insert(0 if later else len(waiting), (one.job, one.attempt + 1, later))
                    else:
                        yield one.job, result or JobResult("failed", one.how_it_died())
        finally:
            stop.set()
            for one in running:
                one.process.join(timeout=30)
                one.process.kill()


class _Running:
    def __init__(self, context: Any, job: Job, attempt: int, stop: Any) -> None:
        self.job, self.attempt = job, attempt
        self._receiver, sender = context.Pipe(duplex=False)
        # not a daemon: a run may have environments in processes of their own
        self.process = context.Process(target=_work, args=(job, stop, sender))
        self.process.start()
        sender.close()

    def result(self) -> JobResult | None:
        """None if the process died without a word."""
        try:
            return self._receiver.recv() if self._receiver.poll() else None
        except (EOFError, OSError):
            return None
        finally:
            self._receiver.close()
            self.process.join()

    def how_it_died(self) -> str:
        code = self.process.exitcode or 0
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit status {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        return f"its process ended {how}, {ATTEMPTS} times{hint}"


def _work(job: Job, stop: Any, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid()
    # When whoever started this is gone, nobody waits for it: save and end.
    sender.send(execute(job, lambda: stop.is_set() or os.getppid() != parent))
    sender.close()
