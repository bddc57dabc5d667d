"""One process's share of a run: learn, save, draw. However learning ends, everything that was learned is saved."""

from __future__ import annotations

import contextlib
import os
import platform
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.build import warnings_as_notes
from bdpi.runs.config import Circumstances, OfflineConfig, RunConfig, RunRecord, RunStatus, State
from bdpi.runs.episodes import trim_monitor
from bdpi.runs.errors import Busy, RunError, lacks_space, named
from bdpi.runs.folder import RunFolder, staged
from bdpi.runs.logs import logged
from bdpi.runs.progress import Observer, Progress, RunInfo
from bdpi.runs.versions import origin
from bdpi.storage.atomic import write_atomically

if TYPE_CHECKING:
    from stable_baselines3.common.monitor import Monitor

    from bdpi.agents.health import Finding

#: A file of a run, and what writes its content to an open file.
Content = tuple[Path, Callable[[Any], object]]


def circumstances(command: Sequence[str]) -> Circumstances:
    """When, how and with what a session is started."""
    return Circumstances(started=now(), command=list(command), versions=origin(), platform=platform.platform())


def new_status(command: Sequence[str], policy: str, learner: str, defaults: dict[str, Any], **more: Any) -> RunStatus:
    """Of a run that has not begun."""
    made = {"policy": policy, "learner": learner, "defaults": defaults, **dict(circumstances(command))}
    return RunStatus(status="prepared", result=None, **made, **more)


def now() -> str:
    """As ``config.json`` tells the time."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class Outcome:
    """How a run, or one session of it, ended.

    :param status: ``"finished"``, ``"interrupted"`` or ``"failed"``, as in ``config.json``.
    :param summary: an ``OfflineSummary`` of a run that learned from a journal.
    :param error: one line, for a failed run.
    :param findings: why it may not have learned.
    """

    status: State
    folder: RunFolder
    summary: Any
    error: str | None = None
    findings: tuple[Finding, ...] = ()


class Driver:
    """What learns in a session: an agent, a peer, or an agent that reads a journal.

    :param agent: new, or as it was saved.
    :param environment: the agent's; closed in the end. ``None``: there is none.
    """

    #: whether the agent says why it may not learn
    has_findings = False
    #: of the environments, where they are in this process
    monitors: Sequence[Monitor[Any, Any]] = ()

    def __init__(self, agent: Any, environment: Any) -> None:
        self.agent, self.environment = agent, environment

    def begin(self, session: Session) -> None:
        """``config.json`` is written: prepare the other files."""

    def learn(self, session: Session, observer: Observer, should_stop: Callable[[], bool]) -> None:
        """Learn until ``session.progress`` is complete, or ``should_stop`` says so after a step or an epoch.

        Calls ``session.save("running")`` now and then.
        """
        raise NotImplementedError

    def contents(self, session: Session) -> list[Content]:
        """What a checkpoint consists of."""
        raise NotImplementedError

    def finish(self, session: Session, observer: Observer, should_stop: Callable[[], bool]) -> None:
        """All is learned and saved."""

    def close(self) -> None:
        """Give back what the driver has opened."""


class Session:
    """One process's share of a run. ``prepare``, ``prepare_resumption`` and ``prepare_offline`` make it.

    :param folder: of the run; it need not exist yet.
    :param config: what to run.
    :param status: is kept up to date.
    :param driver: what learns.
    :param progress: of the sessions before this one.
    :param draws: draw the curve and film the policy in the end.
    """

    #: why it failed, where that was for lack of space: neither the agent nor the environment can help it
    no_space: Exception | None = None

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig | OfflineConfig,
        status: RunStatus,
        driver: Driver,
        progress: Progress,
        draws: bool = True,
    ) -> None:
        self.folder, self.config, self.status, self.driver = folder, config, status, driver
        self.agent, self.environment = driver.agent, driver.environment
        self.progress, self.draws = progress, draws
        self._traceback: str | None = None

    @property
    def info(self) -> RunInfo:
        config = self.config
        return RunInfo(config.environment, config.agent, config.seed, self.status.learner, self.folder.path)

    def run(self, observer: Observer | None = None, should_stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Learn until the configuration is fulfilled, and save everything.

        :param observer: is told what happens.
        :param should_stop: asked after every step; training ends when it says so, and can be resumed.
        :raises RunError: when the folder cannot be used. Errors in training do not raise: they are the outcome.
        """
        from bdpi.agents.health import HealthWarning

        observer = observer or Observer()
        self.folder.make()
        with self.folder.locked(), warnings_as_notes(observer.note):
            self.folder.refuse_links()
            warnings.simplefilter("ignore", HealthWarning)  # views show findings
            try:
                self.folder.tidy()
                self._open()
            except OSError as refusal:
                raise RunError(
                    f"{self.folder.path} cannot be written: {refusal.strerror or refusal}; copy it to a folder "
                    "that can be, and use it there"
                ) from None
            observer.began(self.info, self.progress)
            try:
                with logged(self):
                    state, error = self._learn(observer, should_stop)
                self._look_back(observer)
                observer.doing("saving")
                unsaved = self.save(state)
                if unsaved:
                    state, error = "failed", "; ".join(filter(None, (error, unsaved)))
                if state == "finished":
                    self.driver.finish(self, observer, should_stop)
                if self.draws:
                    self._draw(observer, should_stop, with_film=state == "finished")
            finally:
                for part in (self.environment, self.driver):
                    with contextlib.suppress(Exception):  # foreign code, and everything is saved
                        if part is not None:
                            part.close()
                observer.ended()
        return Outcome(state, self.folder, self.progress.summary, error, tuple(self.progress.findings))

    def _open(self) -> None:
        """Write the first files, or make those of an earlier session agree with its saved agent."""
        if self.status.resumed:
            if self.folder.read().status.checkpoint != self.status.checkpoint:
                raise Busy(f"{self.folder.path} was trained by another process since it was loaded: resume it again")
            trim_monitor(self.folder.monitor, len(self.progress.episodes))
            for outdated in (self.folder.error, self.folder.film):
                outdated.unlink(missing_ok=True)
        else:
            self.folder.refuse_if_taken()
        self.status.state, self.status.finished = "running", None
        self.write()
        self.driver.begin(self)

    def _learn(self, observer: Observer, should_stop: Callable[[], bool]) -> tuple[State, str | None]:
        """:returns: the state, and the error in one line where there is one."""
        state: State = "interrupted"
        message = None
        self.progress.begin()
        try:
            self.driver.learn(self, observer, should_stop)
            if self.progress.complete:
                state = "finished"
        except KeyboardInterrupt:  # without signal handlers, in a notebook
            pass
        except Exception as error:
            state, message = "failed", named(error)
            if lacks_space(error) and getattr(error, "filename", None) is None:
                message += f" (where {self.folder.path} is)"
            self._traceback = traceback.format_exc()
            self._blame(error)
        self.progress.end()
        return state, message

    def _look_back(self, observer: Observer) -> None:
        """What the agent finds about itself in the end: what it found on the way may be over."""
        if not self.driver.has_findings:
            return
        known = {finding.code for finding in self.progress.findings}
        with contextlib.suppress(Exception):  # of an agent that has failed
            self.progress.findings = self.agent.health()
        for finding in self.progress.findings:
            if finding.code not in known:
                observer.found(finding)

    def _blame(self, error: Exception) -> None:
        if lacks_space(error):
            self.no_space = error

    def write(self) -> None:
        """Write ``config.json``."""
        self.folder.write(RunRecord(self.config, self.status))

    def save(self, state: State) -> str | None:
        """Save all there is, each file whether or not another one fails.

        :returns: what could not be saved, in one line.
        """
        status, folder, problems = self.status, self.folder, []
        earlier, evaluations = status.result, status.evaluations
        status.state, status.result = state, self.progress.summary
        if self.progress.evaluations:
            status.evaluations = len(self.progress.evaluations)
        status.finished = None if state == "running" else now()
        if self.driver.has_findings:
            status.findings = [finding.as_dict() for finding in self.progress.findings]

        def attempt(path: Path, task: Callable[[], object]) -> bool:
            try:
                task()
                return True
            except Exception as error:  # a full disk, most likely
                problems.append(f"{path.name} could not be saved: {named(error)}")
                if state != "running":
                    status.state = "failed"  # the configuration is written last, and should know
                    self._blame(error)
                return False

        # A checkpoint of several files is written beside the old one, then the configuration that belongs to it, then
        # it takes the place of the old one: a crash at any moment leaves one that is complete.
        contents = self.driver.contents(self)
        number = status.checkpoint + 1
        places = {path: staged(path, number) if len(contents) > 1 else path for path, _ in contents}
        written = [
            path
            for path, write in contents
            if attempt(path, lambda path=path, write=write: write_atomically(places[path], write))  # type: ignore[misc]
        ]
        if len(written) < len(contents) and (state == "running" or self._can_go_back(earlier)):
            status.result = earlier  # the old one stays, as a whole
            if self.progress.evaluations:
                status.evaluations = evaluations
            for path in written:
                places[path].unlink(missing_ok=True)
            written = []
            if state == "running":
                return "; ".join(problems)
        if self._traceback is not None:
            text = self._traceback
            attempt(folder.error, lambda: write_atomically(folder.error, text))
            if folder.monitor.exists():  # the last row may be of an episode that the agent refused
                attempt(folder.monitor, lambda: trim_monitor(folder.monitor, len(self.progress.episodes)))
        if len(contents) > 1 and written:
            status.checkpoint = number
        attempt(folder.monitor, folder.sync)
        if attempt(folder.config, self.write):
            for path in written:
                attempt(path, lambda path=path: os.replace(places[path], path))  # type: ignore[misc]
        return "; ".join(problems) or None

    def _can_go_back(self, result: object) -> bool:
        """Whether the run has an earlier checkpoint, of several files that belong together."""
        checkpoint = self.folder.checkpoint
        return result is not None and self.status.checkpoint > 0 and all(path.exists() for path in checkpoint)

    def _draw(self, observer: Observer, should_stop: Callable[[], bool], with_film: bool) -> None:
        """Draw what can be drawn. A picture that fails is a note, never a failed run."""
        from bdpi.runs.curve import draw_curve
        from bdpi.runs.play import film_policy

        observer.doing("drawing the curve")
        title = f"{self.config.agent.upper()} on {self.config.environment}, seed {self.config.seed}"
        try:
            name = "test episode" if self.progress.tests else "episode"
            draw_curve(self.progress.shown, title, self.folder.curve, name)
        except Exception as error:
            observer.note(f"no curve: {error if isinstance(error, ValueError) else named(error)}")
        if with_film:
            observer.doing("filming the policy")
            try:
                film_policy(self.folder, should_stop=should_stop)
            except Exception as error:
                observer.note(f"no film: {error if isinstance(error, RunError) else named(error)}")
