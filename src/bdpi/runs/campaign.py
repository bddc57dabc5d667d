"""Execute the jobs of a study, show how far they are, and keep count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bdpi.runs.config import Place
from bdpi.runs.errors import RunError
from bdpi.runs.executors import Executor
from bdpi.runs.formatting import duration
from bdpi.runs.job import Job, JobResult, check_learning, length_so_far, status_of

_PLAIN_SECONDS = 15.0
_PER_SECOND = 4
_MOST_SHOWN = 12  # running jobs in the live view


@dataclass
class Tally:
    """Where a study stands."""

    jobs: Sequence[Job]
    done: list[Job] = field(default_factory=list)
    running: dict[Job, float] = field(default_factory=dict)  #: since when
    failed: dict[Job, JobResult] = field(default_factory=dict)
    interrupted: list[Job] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _pace: deque[tuple[float, int]] = field(default_factory=deque)  # times, and what was done then

    @property
    def fraction(self) -> float:
        """Episodes, or steps, that are done, of all."""
        return self._amount_done() / max(1, _wanted(self.jobs))

    def _amount_done(self) -> int:
        return _wanted(self.done) + _present((*self.running, *self.interrupted, *self.failed))

    def seconds_left(self) -> float | None:
        """By what was done in the later half of the time so far, since episodes become longer, or shorter, as agents
        learn; None before there is any. What failed runs lack is not waited for."""
        now, done = self.keep_pace()
        while len(self._pace) > 2 and self._pace[1][0] <= (self.began + now) / 2:
            self._pace.popleft()
        then, before = self._pace[0]
        left = _wanted(self.jobs) - done - (_wanted(self.failed) - _present(self.failed))
        return (now - then) * left / (done - before) if done > before else None

    def keep_pace(self) -> tuple[float, int]:
        """Remember how much is done by now."""
        self._pace.append((time.monotonic(), self._amount_done()))
        return self._pace[-1]

    def line(self) -> str:
        """In a few words."""
        return (
            f"{len(self.done)} of {len(self.jobs)} runs done, {len(self.running)} running, {len(self.failed)} failed, "
            f"{self.fraction:.0%} of the work, time left {duration(self.seconds_left())}"
        )


def _wanted(jobs: Iterable[Job]) -> int:
    """Episodes that runs should have, or steps."""
    return sum(job.config.length for job in jobs)


def _present(jobs: Iterable[Job]) -> int:
    """What they have, of that."""
    return sum(length_so_far(job) for job in jobs)


def _series(job: Job) -> Place:
    """Where all runs belong that differ in the seed only."""
    return replace(job.place, seed=0)


def run_campaign(
    jobs: Sequence[Job],
    executor: Executor,
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Tally], None] = lambda tally: None,
    say: Callable[[str], None] = lambda text: None,
) -> Tally:
    """Execute all jobs that are not done yet.

    :param show: called at least every second
    :param say: gets a line for everything that is worth one
    """
    tally = Tally(jobs)
    to_do = []
    for job in jobs:
        try:
            if status_of(job) == "finished":
                tally.done.append(job)
            else:
                to_do.append(job)
        except RunError as error:
            tally.failed[job] = JobResult("failed", str(error))
            say(f"{name_of(job)}: {error}")
    if tally.done:
        say(f"{len(tally.done)} of {len(jobs)} runs are done already")
    for series in {_series(job): None for job in to_do}:
        try:
            check_learning(job for job in jobs if _series(job) == series and job not in tally.failed)
        except RunError as error:
            refused = [job for job in to_do if _series(job) == series]
            tally.failed |= dict.fromkeys(refused, JobResult("failed", str(error)))
            to_do = [job for job in to_do if job not in tally.failed]
            say(f"{name_of(refused[0])}: {error}")

    tally.keep_pace()
    is_ending = False

    def started(job: Job) -> None:
        tally.running[job] = time.monotonic()

    for event in executor.run(to_do, should_stop, started) if to_do else ():
        if event is not None:
            job, result = event
            tally.running.pop(job, None)
            if result.status == "finished":
                tally.done.append(job)
            elif result.status == "interrupted":
                tally.interrupted.append(job)
            else:
                tally.failed[job] = result
                say(f"{name_of(job)} failed: {result.error}")
                if result.details:
                    say(result.details.rstrip())
        if not is_ending and tally.running and should_stop():
            is_ending = True
            say("Stopping: runs end after their current step, and are saved")
        show(tally)
    if not to_do:
        show(tally)
    return tally


def name_of(job: Job) -> str:
    """For people."""
    place = job.place
    return f"{place.series} on {place.environment}, seed {place.seed} ({place.row})"


class PlainTally:
    """A line now and then, for output that is no terminal."""

    def __init__(self, stream: TextIO, seconds: float = _PLAIN_SECONDS) -> None:
        self._stream, self._seconds, self._next = stream, seconds, 0.0
        self._tally: Tally | None = None
        self._last = ""

    def __enter__(self) -> PlainTally:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tally is not None:
            self._print(self._tally.line())

    def show(self, tally: Tally) -> None:
        """Print where the study stands, unless that was done a moment ago."""
        self._tally = tally
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            self._print(tally.line())

    def _print(self, line: str) -> None:
        if line != self._last:
            self._last = line
            self.say(line)

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)


class LiveTally:
    """A table that moves, for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=_PER_SECOND)
        self._tally: Tally | None = None
        self._next = 0.0

    def __enter__(self) -> LiveTally:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._tally is not None:
            self._live.update(_table(self._tally))
        self._live.__exit__(*error)  # type: ignore[arg-type]

    def show(self, tally: Tally) -> None:
        """Draw where the study stands, unless that was done a moment ago: thousands of runs end in no time."""
        self._tally = tally
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1 / _PER_SECOND
            self._live.update(_table(tally))

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(text, markup=False, highlight=False)


def _table(tally: Tally) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for job in list(tally.running)[:_MOST_SHOWN]:
        wanted, done = job.config.length, length_so_far(job)
        table.add_row(
            job.place.series,
            job.place.environment,
            f"seed {job.place.seed}",
            ProgressBar(total=wanted, completed=done, width=24),
            f"{done}/{wanted}",
        )
    if len(tally.running) > _MOST_SHOWN:
        table.add_row(f"and {len(tally.running) - _MOST_SHOWN} more")
    return Group(Text(tally.line()), table)
