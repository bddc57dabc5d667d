"""Ways to execute many jobs: here, in several processes, on a Ray cluster. All of them look the same from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from bdpi.runs.job import Job, JobResult


class Executor(Protocol):
    """Runs jobs."""

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        """Execute jobs, as many at a time as the executor likes; give each as it ends.

        Between them, and at least every second, gives None: the moment to draw, and to look at signals. Once
        ``should_stop`` is true, no job is started any more and those that run are stopped, resumable.

        :param started: told about each job that begins
        """
        ...


def make_executor(name: str, workers: int | None = None, ray_address: str | None = None) -> Executor:
    """``"local"``, ``"processes"``, ``"ray"`` or ``"population"``.

    :param workers: how many runs at a time; None: as many as there are cores, 64 of a population
    :param ray_address: of a running cluster; a new one on this machine if None
    """
    if name == "local":
        from bdpi.runs.executors.local import Local

        return Local()
    if name == "processes":
        from bdpi.runs.executors.processes import Processes

        return Processes(workers)
    if name == "population":
        from bdpi.runs.executors.population import OnGPU

        return OnGPU(workers)
    from bdpi.runs.executors.on_ray import OnRay

    return OnRay(workers, ray_address)
