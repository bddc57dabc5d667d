"""Many runs trained together on a GPU.

Environments are stepped by several processes, so that all cores are busy, and in each of them by several threads: while
the GPU trains the runs of one thread, others go on. Without NVIDIA's multi-process service, processes would have to
take turns on the GPU, so it is started for as long as the runs last; where it does not exist, one process does it all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from bdpi.runs.build import is_peer
from bdpi.runs.errors import RunError, named
from bdpi.runs.executors.processes import ATTEMPTS, Processes
from bdpi.runs.job import Job, JobResult, execute, one_thread
from bdpi.runs.signals import leave_to_parent, left_to_parent

WORKERS = 64
MOST_PROCESSES = 32  # on one GPU: NVIDIA's multi-process service takes 48, or 60, of which others may have some
_LOOK_AROUND = 0.5  # seconds


class OnGPU:
    """See :class:`~bdpi.runs.executors.Executor`.

    Agents that the fused kernels cannot train learn in their threads as they would alone. The peers of BDPI come last,
    each in a process of its own, because they draw from generators that threads would share.

    :param workers: how many runs at a time
    :param device: where they are trained
    """

    def __init__(self, workers: int | None = None, device: str = "cuda") -> None:
        from bdpi.learner import fused, nvrtc

        if not fused.is_available():
            raise RunError(f"--executor population needs {nvrtc.REMEDY}; --executor processes needs neither")
        self.workers, self._device = workers or WORKERS, device

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`."""
        one_thread()
        ours = [job for job in jobs if not is_peer(job.config.agent)]
        with _shared_gpu() as is_shared:
            cores = min(len(os.sched_getaffinity(0)), MOST_PROCESSES) if is_shared else 1
            if not is_shared and len(ours) > 1:
                warnings.warn(
                    "one process steps all environments, which is slower than one per core: NVIDIA's multi-process "
                    "service (nvidia-cuda-mps-control, a part of its driver) does not start here.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            at_a_time = max(1, min(self.workers, len(ours)))
            n_processes = min(cores, at_a_time)
            places = -(-at_a_time // n_processes)  # in each process
            yield from self._run(ours, n_processes, places, should_stop, started)
        yield from Processes().run([job for job in jobs if is_peer(job.config.agent)], should_stop, started)

    def _run(
        self,
        jobs: list[Job],
        n_processes: int,
        places: int,
        should_stop: Callable[[], bool],
        started: Callable[[Job], None],
    ) -> Iterator[tuple[Job, JobResult] | None]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bdpi.runs.executors.preload"])
        stop = context.Event()
        # Runs that one pair of kernels can train come into the same process.
        waiting = [(job, 1) for job in sorted(jobs, key=_kind, reverse=True)]
        # Kernels are chosen by `workers`, not by how many runs are left: an interrupted run goes on as it began.
        arguments = places, self._device, self.workers, stop
        children = [_Child(context, *arguments) for _ in range(n_processes)]
        try:
            while any(child.jobs for child in children) or (waiting and not stop.is_set()):
                if should_stop():
                    stop.set()
                while waiting and not stop.is_set():
                    free = [child for child in children if len(child.jobs) < places]
                    if not free:
                        break
                    child = max(free, key=lambda child: len(child.jobs))
                    job, attempt = waiting.pop()
                    child.begin(job, attempt)
                    started(job)
                ready = wait([child.connection for child in children], timeout=_LOOK_AROUND)
                yield None
                for number, child in enumerate(children):
                    if child.connection not in ready:
                        continue
                    try:
                        job, result = child.ended()
                        yield job, result
                    except (EOFError, OSError):  # it died, and its runs go on from their checkpoints
                        lost = child.close()
                        children[number] = _Child(context, *arguments)
                        for job, attempt in lost:
                            if attempt < ATTEMPTS:
                                waiting.append((job, attempt + 1))
                            else:
                                yield job, JobResult("failed", f"its process died, {ATTEMPTS} times")
        finally:
            stop.set()
            for child in children:
                child.close()


def _kind(job: Job) -> tuple[str, ...]:
    return job.config.environment, job.config.agent, str(job.config.hyperparameters)


class _Child:
    """A process that trains some runs at a time."""

    def __init__(self, context: Any, places: int, device: str, runs: int, stop: Any) -> None:
        self.connection, theirs = context.Pipe()
        self.jobs: dict[int, tuple[Job, int]] = {}
        self._begun = 0
        self._process = context.Process(target=_work, args=(theirs, places, device, runs, stop))
        with left_to_parent():
            self._process.start()
        theirs.close()

    def begin(self, job: Job, attempt: int) -> None:
        self._begun += 1
        self.jobs[self._begun] = job, attempt
        with contextlib.suppress(OSError):  # dead, as we are about to find out
            self.connection.send((self._begun, job))

    def ended(self) -> tuple[Job, JobResult]:
        number, result = self.connection.recv()
        return self.jobs.pop(number)[0], result

    def close(self) -> list[tuple[Job, int]]:
        """End it, once its runs have saved themselves. Returns those it did not finish."""
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self._process.join(timeout=60)
        self._process.kill()
        self._process.join()
        self.connection.close()
        return list(self.jobs.values())


def _work(connection: Connection, places: int, device: str, runs: int, stop: Any) -> None:
    from bdpi.learner.cohort import Cohorts

    leave_to_parent()
    sys.setswitchinterval(5e-4)  # threads that come back from the GPU are not kept waiting
    parent = os.getppid()
    cohorts = Cohorts(places, device, runs)
    answers: queue.SimpleQueue[tuple[int, JobResult] | None] = queue.SimpleQueue()
    is_unheard = threading.Event()

    def should_stop() -> bool:
        return stop.is_set() or is_unheard.is_set() or os.getppid() != parent

    def run(number: int, job: Job) -> None:  # always answers: the parent waits
        try:
            with cohorts.run():
                result = execute(job, should_stop)
        except BaseException as error:
            result = JobResult("failed", named(error), traceback.format_exc())
        answers.put((number, result))

    def answer() -> None:  # one thread, because a connection is not for several
        try:
            while (given := answers.get()) is not None:
                connection.send(given)
        except Exception:  # the parent is gone: the runs save themselves, and go on in another process
            is_unheard.set()
            _hang_up(connection)

    answering = threading.Thread(target=answer)
    answering.start()
    threads = []
    with contextlib.suppress(EOFError, OSError):
        while (task := connection.recv()) is not None:
            threads.append(threading.Thread(target=run, args=task))
            threads[-1].start()
    for thread in threads:
        thread.join()
    answers.put(None)
    answering.join()


def _hang_up(connection: Connection) -> None:
    """Have both ends of a connection know that nothing more comes; closing it would not tell a thread that waits."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def find_control() -> str | None:
    """What starts NVIDIA's multi-process service."""
    name = "nvidia-cuda-mps-control"
    return shutil.which(name) or shutil.which(name, path="/usr/local/nvidia/bin")


@contextlib.contextmanager
def _shared_gpu() -> Iterator[bool]:
    """Lets processes use the GPU at the same time, if that is possible; says whether it is."""
    control = find_control()
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield "CUDA_MPS_PIPE_DIRECTORY" in os.environ  # started elsewhere
        return
    with tempfile.TemporaryDirectory(prefix="bdpi-mps-") as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        environment = {**os.environ, **dict.fromkeys(names, folder)}
        # The service has all GPUs: numbers in this variable, which our processes read, would mean others to it.
        of_service = {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        started = subprocess.run([control, "-d"], env=of_service, capture_output=True).returncode == 0
        if started:
            os.environ.update(dict.fromkeys(names, folder))
        try:
            yield started
        finally:
            if started:
                subprocess.run([control], input=b"quit\n", env=environment, capture_output=True, timeout=60)
                for name in names:
                    del os.environ[name]
