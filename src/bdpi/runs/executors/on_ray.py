"""Runs on a Ray cluster, one core each.

A run whose worker dies is started again by Ray, from its last checkpoint where the folder of the study is on a file
system that all machines share. Where it is not, a worker keeps the run in a folder of its own and sends the files when
it has ended.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import socket
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bdpi.runs.errors import Busy, RunError, one_line
from bdpi.runs.executors.processes import ATTEMPTS
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, JobResult, execute, forget_runs, one_thread, replace_if_better

_LOOK_AROUND = 0.5  # seconds
_QUEUE = 50  # runs that wait at Ray, and let a cluster grow that can
_AT_A_TIME = 20
_ANSWER_WITHIN = 5.0  # seconds, at the address of a cluster
_TOKEN = "one that requires a token wants RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN in the environment"
_ASK_EVERY = 1.0  # seconds between a worker's looks at the stop flag


class OnRay:
    """See :class:`~bdpi.runs.executors.Executor`.

    :param workers: how many runs at a time, on a cluster that this starts; all cores if None
    :param address: of a running cluster
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise RunError('Ray is not installed: run `pip install "bdpi[ray]"`, or use --executor processes') from None
        self._ray = ray
        self._workers, self._address = workers, address

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`."""
        ray: Any = self._ray
        own = not ray.is_initialized()
        if own:
            _check_answers(self._address)
            here = {} if self._address else {"num_cpus": self._workers or len(os.sched_getaffinity(0))}
            try:
                quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
                ray.init(address=self._address, **quiet, **here)
            except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                raise RunError(f"no Ray cluster at {self._address}: {one_line(error)}; {_TOKEN}") from None
        try:
            with _marker(jobs) as marker:
                yield from self._run(jobs, marker, should_stop, started)
        finally:
            if own:
                ray.shutdown()

    def _run(
        self, jobs: Sequence[Job], marker: Path, should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        ray: Any = self._ray
        flag = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Flag).remote()
        task = ray.remote(num_cpus=1, max_retries=3, retry_exceptions=False)(_work)
        waiting = [(job, 1) for job in reversed(jobs)]
        pending: dict[Any, tuple[Job, int]] = {}
        not_begun = {str(job.folder): job for job in jobs}
        stopping = False
        while waiting or pending:
            stopping = stopping or should_stop()
            if stopping:
                waiting.clear()
                ray.get(flag.set.remote())  # every time: it may have been started again
            # Ray looks at all that it was given, again and again, so it is given what its cores will do next.
            queue = _QUEUE + 2 * int(ray.cluster_resources().get("CPU", 0))
            while waiting and len(pending) < queue:
                job, attempt = waiting.pop()
                pending[task.remote(job, flag, marker)] = job, attempt
            for folder in ray.get(flag.begun.remote()):
                if folder in not_begun:
                    started(not_begun.pop(folder))
            # Several at a time: those that are over in no time would keep this process busier than the workers.
            ready, _ = ray.wait(list(pending), num_returns=min(len(pending), _AT_A_TIME), timeout=_LOOK_AROUND)
            yield None
            for reference in ready:
                job, attempt = pending.pop(reference)
                result = self._result(reference, job)
                not_begun.pop(str(job.folder), None)  # it may have ended before it was seen to begin
                if result.status == "busy" and attempt < ATTEMPTS and not stopping:
                    waiting.insert(0, (job, attempt + 1))  # all others come first
                else:
                    yield job, result

    def _result(self, reference: Any, job: Job) -> JobResult:
        ray: Any = self._ray
        try:
            result, files = ray.get(reference)
        except ray.exceptions.RayError as error:
            return JobResult("failed", f"Ray gave it up: {str(error).splitlines()[0]}", str(error))
        try:
            return _received(job, files, result) if files else result
        except Busy as error:
            return JobResult("busy", str(error))


def _check_answers(address: str | None) -> None:
    """Whether there is anything at an address: Ray itself would wait for a minute, and longer.

    :raises RunError: when there is not
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # a new one, "auto" or "local": Ray knows
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_WITHIN):
            pass
    except (OSError, OverflowError) as error:
        raise RunError(
            f"no Ray cluster at --ray-address {address}: {one_line(error)}; start one there: ray start --head"
        ) from None


def _received(job: Job, files: bytes, result: JobResult) -> JobResult:
    """Keep what a worker has sent, unless the run that is there is worth more."""
    folder = RunFolder(job.folder)
    folder.make()
    with folder.locked():
        folder.move_successor()
        shutil.rmtree(folder.attempt, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(folder.attempt, filter="data")
        replace_if_better(folder, job.config)
    return result


class _Flag:
    """Known to all workers: whether to stop, and which runs have begun."""

    def __init__(self) -> None:
        self._stop = False
        self._begun: list[str] = []

    def set(self) -> None:
        self._stop = True

    def is_set(self) -> bool:
        return self._stop

    def begin(self, folder: str) -> bool:
        """Returns whether it should rather not."""
        self._begun.append(folder)
        return self._stop

    def begun(self) -> list[str]:
        """Since the last time."""
        begun, self._begun = self._begun, []
        return begun


@contextlib.contextmanager
def _marker(jobs: Sequence[Job]) -> Iterator[Path]:
    """A file by which a worker sees whether it shares the file system."""
    root = Path(os.path.commonpath([job.folder.parent for job in jobs]))
    root.mkdir(parents=True, exist_ok=True)
    marker = root / f".study-{uuid.uuid4().hex}"
    marker.touch()
    try:
        yield marker.absolute()
    finally:
        marker.unlink(missing_ok=True)


def _ask(method: Any, *arguments: Any) -> bool:
    """In a thread: while a task waits for an answer, Ray would give its core to another one, in a new process."""
    import ray

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: ray.get(method.remote(*arguments))).result()


def _work(job: Job, flag: Any, marker: Path) -> tuple[JobResult, bytes]:
    """In a worker: the result, and the files of the run if the driver could not see them otherwise."""
    one_thread()
    if _ask(flag.begin, str(job.folder)):
        return JobResult("interrupted"), b""
    asked, stop = time.monotonic(), False

    def should_stop() -> bool:
        nonlocal asked, stop
        if not stop and time.monotonic() > asked + _ASK_EVERY:
            asked, stop = time.monotonic(), _ask(flag.is_set)
        return stop

    forget_runs()
    if marker.exists():
        return execute(job, should_stop), b""
    with tempfile.TemporaryDirectory() as folder:
        result = execute(replace(job, folder=Path(folder) / "run"), should_stop)
        return result, _packed(Path(folder) / "run")


def _packed(folder: Path) -> bytes:
    """The files of a run; none of one that could not begin."""
    if not folder.exists():
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()
