"""One run after the other, in this process: the simplest, and the one to debug with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bdpi.runs.job import Job, JobResult, execute


class Local:
    """See :class:`~bdpi.runs.executors.Executor`."""

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """See :meth:`~bdpi.runs.executors.Executor.run`. Nothing is given while a run goes on."""
        for job in jobs:
            if should_stop():
                return
            started(job)
            yield None
            yield job, execute(job, should_stop)
