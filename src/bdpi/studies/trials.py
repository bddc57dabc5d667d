"""One trial of a search: one configuration, trained with several seeds until it is finished, pruned or interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import Episodes, read_monitor
from bdpi.runs.errors import RunError, lacks_space, named
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import read_same
from bdpi.runs.session import Session
from bdpi.runs.train import prepare, prepare_resumption


class Judge(Protocol):
    """What is used of an Optuna trial."""

    def report(self, value: float, step: int) -> None:
        """Record an intermediate value."""

    def should_prune(self) -> bool:
        """Whether to stop the trial."""


@dataclass(frozen=True)
class Result:
    """How a trial went.

    :param status: ``"finished"``, ``"pruned"``, ``"failed"`` or ``"interrupted"``
    :param returns: of each seed, of all its episodes
    :param error: one line
    """

    status: str
    returns: list[list[float]] = field(default_factory=list)
    error: str = ""


class Reports:
    """Reports, once per block of episodes, the mean return of all episodes of a trial so far, over all its runs.

    :param judge: receives the reports, and decides
    :param block: episodes from one report to the next
    """

    def __init__(self, judge: Judge, block: int) -> None:
        self._judge, self._block = judge, block
        self._earlier: list[float] = []
        self._reported = 0
        self.prune = False  #: whether the trial should stop

    def add(self, returns: Sequence[float]) -> None:
        """Report what is new in the current run.

        :param returns: all of this run
        """
        while self._reported + self._block <= len(returns) and not self.prune:
            self._reported += self._block
            known = [*self._earlier, *returns[: self._reported]]
            self._judge.report(sum(known) / len(known), len(known))
            self.prune = self._judge.should_prune()

    def next_run(self, returns: Sequence[float]) -> None:
        """Another seed begins.

        :param returns: of the one that has ended
        """
        self._earlier += returns
        self._reported = 0


def train(
    configs: Sequence[RunConfig],
    path: Path,
    reports: Reports,
    should_stop: Callable[[], bool],
    tick: Callable[[int], object],
) -> Result:
    """Train one seed after the other. A configuration that fails is a result; it does not raise.

    :param configs: one for each seed
    :param path: the trial's folder, with a folder for each seed. An interrupted trial continues there.
    :param reports: decide whether to prune
    :param should_stop: called after every step
    :param tick: called after every step, with the number of episodes that have ended
    :raises RunError: when the folder cannot be used, or the disk is full; the trial can be repeated
    """
    result = Result("finished")
    for config in configs:
        folder = RunFolder(path / f"seed{config.seed}")
        if folder.config.exists():
            read_same(folder, config)
        before = sum(map(len, result.returns))
        try:
            episodes, status, error = _run(config, folder, reports, should_stop, before, tick)
            result.returns.append(list(episodes.returns))
            if status == "interrupted" and not reports.prune:
                return replace(result, status="interrupted")
            for file in folder.checkpoint:  # experience and networks are large
                file.unlink(missing_ok=True)
        except Exception as problem:
            if lacks_space(problem):
                raise RunError(
                    f"{folder.path} cannot be written: {named(problem)}; make room, and the same command goes on"
                ) from None
            status, error = "failed", str(problem) if isinstance(problem, RunError) else named(problem)
        if status == "failed":
            return replace(result, status="failed", error=error)
        reports.add(episodes.returns)
        if reports.prune and not (config is configs[-1] and status == "finished"):
            return replace(result, status="pruned")
        reports.next_run(episodes.returns)
    return result


def _run(
    config: RunConfig,
    folder: RunFolder,
    reports: Reports,
    should_stop: Callable[[], bool],
    before: int,
    tick: Callable[[int], object],
) -> tuple[Episodes, str, str]:
    """One seed: a new run, or the rest of one that was interrupted.

    :param before: episodes of the seeds before this one
    :returns: episodes, status, error
    """
    session = _open(config, folder)
    if session is None:
        return read_monitor(folder.monitor), "finished", ""
    session.draws = False
    episodes = session.progress.episodes

    def stop() -> bool:
        tick(before + len(episodes))
        reports.add(episodes.returns)
        return reports.prune or should_stop()

    outcome = session.run(should_stop=stop)
    if session.no_space is not None:
        raise session.no_space
    return episodes, outcome.status, outcome.error or ""


def _open(config: RunConfig, folder: RunFolder) -> Session | None:
    """Begin a run, or continue it; None if it is complete."""
    if not folder.config.exists():
        return prepare(config, folder.path)
    status = folder.read().status
    if status.result is not None and status.state != "failed":
        if status.episodes >= (config.episodes or 0):
            return None
        if status.resumable:
            return prepare_resumption(folder.path)
    # Killed before anything was saved, or the disk was full, or of an algorithm that cannot be resumed: the same seed
    # gives the same run.
    for file in folder.files:
        file.unlink(missing_ok=True)
    return prepare(config, folder.path)
