"""Start or resume a run. However training ends (done, stopped, an error), everything that was learned is saved."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.build import (
    agent_class,
    announcements,
    build_agent,
    is_peer,
    load_agent,
    make_environment,
    policy_name,
    retraceable,
    warnings_as_notes,
    with_action_bits,
    with_preset,
    wrapped,
)
from bdpi.runs.episodes import Episodes, Summary, check_number, read_monitor, trim_monitor
from bdpi.runs.errors import RunError, lacks_space, named, one_line
from bdpi.runs.folder import RunFolder, default_path, staged, write_atomically
from bdpi.runs.plan import Plan
from bdpi.runs.progress import Observer, Progress, RunInfo
from bdpi.runs.settings import settable
from bdpi.runs.versions import origin

if TYPE_CHECKING:
    from bdpi.agents import Ensemble as Agent
    from bdpi.agents.health import Finding
    from bdpi.runs.tester import Tester

_FILES = ("journal", "autosave")  # of an agent, beside those in its run's folder
_NO_END = 10**12  # steps; learn() wants a number, but it is the Keeper that ends the run


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class Outcome:
    """How a run, or one session of it, ended.

    :param status: ``"finished"``, ``"interrupted"`` or ``"failed"``, as in ``config.json``.
    :param error: one line, for a failed run.
    :param findings: why it may not have learned.
    """

    status: str
    folder: RunFolder
    summary: Summary
    error: str | None = None
    findings: tuple[Finding, ...] = ()


def prepare(
    plan: Plan,
    path: Path | None = None,
    *,
    note: Callable[[str], None] = _silent,
    command: Sequence[str] = (),
    copies: bool = True,
) -> Session:
    """Build what a plan needs. Nothing is written yet.

    :param path: the folder; the default is ``runs/<environment>/<agent>-seed<seed>-<time>``.
    :param note: gets lines that the user should know.
    :param command: what the user typed, for the record.
    :param copies: for a peer that learns from many copies of its environment; without, one has to do.
    :raises RunError: when the run cannot begin.
    """
    if is_peer(plan.agent):
        from bdpi.runs.peers import prepare_peer

        return prepare_peer(plan, path, note, command, copies)
    with warnings_as_notes(note):
        cls = agent_class(plan.agent)
        bare = make_environment(plan.environment)
        if bare.spec is not None and ":" not in plan.environment:
            plan = replace(plan, environment=bare.spec.id)  # "CartPole" has become "CartPole-v1"
        plan = with_action_bits(with_preset(_with_whole_paths(plan), note), bare.action_space)
        environment = retraceable(wrapped(bare, plan.action_bits, plan.off_policy_noise))
        for text in announcements(plan, bare):
            note(text)
        folder = RunFolder(path or default_path(plan.environment, plan.agent, plan.seed))
        folder.refuse_if_taken()
        agent = build_agent(plan, environment)
        if plan.record_entropy and not agent.agent_learner.has_actor:
            raise RunError(f"{plan.agent} has no actor, so there is no entropy of its policy to record")
        tester = _tester(plan, agent, folder)
    config: dict[str, Any] = {
        **plan.as_dict(),
        "status": "prepared",
        "result": None,
        "policy": policy_name(environment.observation_space),
        "learner": agent.learner_name,
        "defaults": {
            name: parameter.default
            for name, parameter in settable(cls).items()
            if name not in plan.hyperparameters and parameter.default is not parameter.empty
        },
        **_circumstances(command),
    }
    return Session(folder, config, agent, environment, Progress(plan.episodes, plan.steps), tester)


@contextlib.contextmanager
def tried(plan: Plan) -> Iterator[Session]:
    """A run as :func:`prepare` makes it, for a look: whatever is wrong with the environment or the agent is found.

    :raises RunError: when the run could not begin.
    """
    session = prepare(plan, copies=False)
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # foreign code
            session.environment.close()


def prepare_resumption(
    path: Path,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    note: Callable[[str], None] = _silent,
    command: Sequence[str] = (),
) -> Session:
    """Load a run that was interrupted, failed, or is to become longer. Nothing is written yet; what a process that was
    killed has left half saved is put in order.

    A simulation is brought back to where it was, by repeating the episode that was going on, and the run goes on as if
    it had never stopped. Elsewhere, that episode is given up: an environment cannot be saved.

    :param path: the folder.
    :param episodes: so many in all; the default is what the run was started with.
    :param steps: so many in all, instead of ``episodes``.
    :raises RunError: when the run cannot go on.
    """
    from bdpi.runs.offline import refuse_to_resume

    folder = RunFolder.open(path)
    refuse_to_resume(folder)
    with folder.locked():  # a process that saves it just now would lose its files
        config = folder.read_config()
        folder.settle(config)
    plan = Plan.from_dict(config)
    if is_peer(plan.agent):
        raise RunError(f"runs of {plan.agent} cannot be resumed: start again with bdpi train {plan.environment}")
    if episodes is not None or steps is not None:
        plan = replace(plan, episodes=episodes, steps=steps)
    progress = _saved_progress(folder, config, plan)
    if progress.complete:
        raise RunError(_nothing_left(folder, progress))
    with warnings_as_notes(note):
        bare = make_environment(plan.environment)
        environment = retraceable(wrapped(bare, plan.action_bits, plan.off_policy_noise))
        agent = load_agent(plan.agent, folder.agent, environment)
        try:
            agent.replay_buffer.load_npz(folder.replay)
        except Exception as error:  # missing, damaged, foreign: it can fail anywhere
            raise RunError(f"{folder.replay} cannot be loaded: {named(error)}") from None
        _give_back_files(agent, plan, environment)
        tester = _tester(plan, agent, folder)
        progress.episode_steps = _continue_episode(folder, environment)
    resumed = [*config.get("resumed", ()), _circumstances(command)]
    config.update(plan.as_dict(), learner=agent.learner_name, resumed=resumed)
    return Session(folder, config, agent, environment, progress, tester)


def _with_whole_paths(plan: Plan) -> Plan:
    """The plan, with paths that are right from any folder: a run may be resumed from another one."""
    paths = {name: os.path.abspath(plan.hyperparameters[name]) for name in _FILES if name in plan.hyperparameters}
    return replace(plan, hyperparameters={**plan.hyperparameters, **paths})


def _give_back_files(agent: Agent, plan: Plan, environment: Any) -> None:
    """Let a loaded agent go on with its journal and its autosave, which are not in its file.

    A killed run has a journal that is ahead of its checkpoint. A simulation repeats those steps, which are then in the
    journal twice; elsewhere, the agent learns of them from there.

    :raises RunError: for a journal that cannot be gone on with
    """
    from bdpi.envs.wrappers import Retracing

    for name in _FILES:
        setattr(agent, name, plan.hyperparameters.get(name))
    if agent.journal is not None:
        try:
            agent._open_journal(agent.journal, take_in=not isinstance(environment, Retracing))
        except ValueError as error:
            raise RunError(one_line(error)) from None


def _continue_episode(folder: RunFolder, environment: Any) -> int:
    """Let the environment go on with the episode of a checkpoint; returns how many steps it had."""
    from bdpi.envs.wrappers import Retracing

    try:
        trace = json.loads(folder.episode.read_text())
        if trace is None or not isinstance(environment, Retracing):
            return 0
        environment.follow(trace)
        return int(trace["steps"])
    except FileNotFoundError:  # a run of an earlier version
        return 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder.episode} is damaged: {named(error)}; without it, an episode is given up") from None


def _tester(plan: Plan, agent: Agent, folder: RunFolder) -> Tester | None:
    """For runs with noise: their returns tell what the noise does, so clean episodes alternate with them."""
    from bdpi.runs.tester import Tester

    return None if plan.off_policy_noise is None else Tester(plan, agent, folder.test)


def _circumstances(command: Sequence[str]) -> dict[str, Any]:
    """When, how and with what a session was started."""
    return {"started": _now(), "command": list(command), "versions": origin(), "platform": platform.platform()}


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _saved_progress(folder: RunFolder, config: dict[str, Any], plan: Plan) -> Progress:
    """Where the saved agent stands, which after a crash is less than what ``monitor.csv`` tells."""
    result = config.get("result")
    if not isinstance(result, dict):
        raise RunError(
            f"{folder.path} was killed before anything was saved: start again with bdpi train {plan.environment}"
        )
    try:
        n_saved, steps, seconds = int(result["episodes"]), int(result["steps"]), float(result["seconds"])
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{folder.config} is damaged: its result has no episodes, steps and seconds") from None
    episodes = _first(n_saved, folder.monitor)
    progress = Progress(plan.episodes, plan.steps, episodes, steps, earlier_seconds=seconds)
    # The last test is missing where the run was stopped during it; then there may not even be a file.
    if plan.off_policy_noise is not None and (folder.test.exists() or n_saved > 1):
        progress.tests = _first(n_saved, folder.test, may_miss=1)
    return progress


def _first(n_saved: int, path: Path, may_miss: int = 0) -> Episodes:
    """The first episodes in a Monitor file.

    :raises RunError: when there are fewer.
    """
    recorded = read_monitor(path)
    check_number(path, len(recorded), n_saved, may_miss)
    episodes = Episodes()
    for row in zip(recorded.returns[:n_saved], recorded.lengths, recorded.seconds, strict=False):
        episodes.add(*row)
    return episodes


def _nothing_left(folder: RunFolder, progress: Progress) -> str:
    done, option = (
        (f"{len(progress.episodes)} episodes", "--episodes")
        if progress.episodes_wanted is not None
        else (f"{progress.steps} steps", "--steps")
    )
    return f"{folder.path} already has its {done}: to train it longer, give a larger number with {option}"


def _leave_findings_to_views() -> None:
    """Views show findings, so that their warnings would say them twice; until the current filters are restored."""
    from bdpi.agents.health import HealthWarning

    warnings.simplefilter("ignore", HealthWarning)


class Session:
    """One process's share of a run: train, save, draw. ``prepare`` and ``prepare_resumption`` make it.

    :param folder: of the run; it need not exist yet.
    :param config: what goes into ``config.json``.
    :param agent: new, or as it was saved.
    :param environment: the agent's, with a Monitor inside that writes no file yet.
    :param progress: of the sessions before this one.
    :param tester: plays a test episode after each training episode; ``None``: there are no tests.
    """

    #: why it failed, where that was for lack of space: neither the agent nor the environment can help it
    no_space: Exception | None = None

    def __init__(
        self,
        folder: RunFolder,
        config: dict[str, Any],
        agent: Agent,
        environment: Any,
        progress: Progress,
        tester: Tester | None = None,
    ) -> None:
        from stable_baselines3.common.env_util import unwrap_wrapper
        from stable_baselines3.common.monitor import Monitor

        from bdpi.envs.wrappers import Retracing

        self.folder, self.config, self.agent, self.environment = folder, config, agent, environment
        self.progress, self.tester = progress, tester
        self._monitor: Any = unwrap_wrapper(environment, Monitor)
        self._retracing: Any = unwrap_wrapper(environment, Retracing)
        #: draw the curve and film the policy in the end
        self.draws = True
        self._is_clean = True  # the environment is where the agent thinks it is
        self._traceback: str | None = None

    @property
    def info(self) -> RunInfo:
        config = self.config
        return RunInfo(config["environment"], config["agent"], config["seed"], config["learner"], self.folder.path)

    def run(self, observer: Observer | None = None, should_stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Train until the plan is fulfilled, and save everything.

        :param observer: is told what happens.
        :param should_stop: asked after every step; training ends when it says so, and can be resumed.
        :raises RunError: when the folder cannot be used. Errors in training do not raise: they are the outcome.
        """
        observer = observer or Observer()
        self.folder.make()
        with self.folder.locked(), warnings_as_notes(observer.note):
            _leave_findings_to_views()
            self.folder.tidy()
            self._open()
            observer.began(self.info, self.progress)
            try:
                status, error = self._train(should_stop, observer)
                self._look_back(observer)
                observer.doing("saving")
                unsaved = self._save(status)
                if unsaved:
                    status, error = "failed", "; ".join(filter(None, (error, unsaved)))
                if self.draws:
                    self._draw(observer, should_stop, with_film=status == "finished")
            finally:
                for closing in self._to_close():
                    with contextlib.suppress(Exception):  # foreign code, and everything is saved
                        if closing is not None:
                            closing.close()
                observer.ended()
        return Outcome(status, self.folder, self.progress.summary, error, tuple(self.progress.findings))

    def _open(self) -> None:
        """Write the first files, or make those of an earlier session agree with its saved agent."""
        if "resumed" not in self.config:
            self.folder.refuse_if_taken()
        else:
            trim_monitor(self.folder.monitor, len(self.progress.episodes))
            for outdated in (self.folder.error, self.folder.film):
                outdated.unlink(missing_ok=True)
        self.config.update(status="running", finished=None)
        self.folder.write_config(self.config)
        self._attach_monitor()

    def _train(self, should_stop: Callable[[], bool], observer: Observer) -> tuple[str, str | None]:
        """:returns: the status, and the error in one line where there is one."""
        status, message = "interrupted", None
        self.progress.begin()
        try:
            self._learn(should_stop, observer)
            if self.progress.complete:
                status = "finished"
        except KeyboardInterrupt:  # for those who call this without signal handlers, in a notebook
            self._is_clean = False
        except Exception as error:
            self._is_clean = False
            status, message = "failed", named(error)
            if lacks_space(error) and getattr(error, "filename", None) is None:
                message += f" (where {self.folder.path} is)"
            self._traceback = traceback.format_exc()
            self._blame(error)
        self.progress.end()
        return status, message

    def _look_back(self, observer: Observer) -> None:
        """What the agent finds about itself in the end: what it found on the way may be over."""
        known = {finding.code for finding in self.progress.findings}
        with contextlib.suppress(Exception):  # of an agent that has failed
            self.progress.findings = self.agent.health()
        for finding in self.progress.findings:
            if finding.code not in known:
                observer.found(finding)

    def _blame(self, error: Exception) -> None:
        if lacks_space(error):
            self.no_space = error

    def _to_close(self) -> tuple[Any, ...]:
        """What is given back in the end; ``None``: there is no such thing."""
        return self.environment, self.tester, getattr(self.agent, "_journal", None)

    def _learn(self, should_stop: Callable[[], bool], observer: Observer) -> None:
        from bdpi.runs.keeper import Keeper

        progress, tester = self.progress, self.tester
        keeper = Keeper(
            progress,
            self._monitor,
            should_stop,
            checkpoint=lambda: self._save("running"),
            began=lambda: self._check_continuation(observer),
            test=None if tester is None else lambda: tester.play(len(progress.tests), should_stop),
            entropy=self.folder.entropy if self.config.get("record_entropy") else None,
            found=observer.found,
        )
        self.agent.learn(_NO_END, callback=keeper, log_interval=None, reset_num_timesteps=self.agent.num_timesteps == 0)

    def _check_continuation(self, observer: Observer) -> None:
        """Whether the episode that was going on could be gone on with."""
        if self._retracing is not None and self._retracing.followed is False:
            observer.note(
                "the environment did not come back to where it was: the episode that was going on is given up"
            )
            self.progress.episode_steps = 0

    def _attach_monitor(self) -> None:
        """Let Monitor write from now on: when it was made, it was not yet known that there would be a folder."""
        from stable_baselines3.common.monitor import ResultsWriter

        new = not self.folder.monitor.exists()
        # Seconds go on where the last session ended, so that they never run backwards and pauses do not count.
        t_start = self._monitor.t_start = time.time() - self.progress.earlier_seconds
        header: dict[str, float | str] = {"t_start": t_start, "env_id": str(self.config["environment"])}
        self._monitor.results_writer = ResultsWriter(str(self.folder.monitor), header, override_existing=new)
        if self.tester is not None:
            self.tester.open(len(self.progress.tests), t_start)

    def _save(self, status: str) -> str | None:
        """Save all there is, each file whether or not another one fails.

        :returns: what could not be saved, in one line.
        """
        self.config.update(
            status=status,
            finished=None if status == "running" else _now(),
            result=self.progress.summary.as_dict(),
            findings=[finding.as_dict() for finding in self.progress.findings],
        )
        folder, problems = self.folder, []

        def attempt(path: Path, task: Callable[[], object]) -> bool:
            try:
                task()
                return True
            except Exception as error:  # a full disk, most likely
                problems.append(f"{path.name} could not be saved: {named(error)}")
                if status != "running":
                    self.config.update(status="failed")  # the configuration is written last, and should know
                    self._blame(error)
                return False

        # A checkpoint is several files. All are written beside the old ones, then the configuration that belongs to
        # them, then they take the place of the old ones: a crash at any moment leaves one that is complete.
        contents: list[tuple[Path, Callable[[Path], object]]] = [
            (folder.agent, self.agent.save),
            (folder.replay, self.agent.replay_buffer.save_npz),
            (folder.episode, lambda path: path.write_text(json.dumps(self._trace(status)))),
        ]
        number = self.config.get("checkpoint", 0) + 1
        written = [
            path
            for path, write in contents
            if attempt(path, lambda path=path, write=write: write_atomically(staged(path, number), write))  # type: ignore[misc]
        ]
        if status == "running" and len(written) < len(contents):
            return "; ".join(problems)  # the old one stays
        if self._traceback is not None:
            text = self._traceback
            attempt(folder.error, lambda: folder.error.write_text(text, encoding="utf-8"))
            # The last row may be of an episode that the agent refused.
            attempt(folder.monitor, lambda: trim_monitor(folder.monitor, len(self.progress.episodes)))
        self.config.update(checkpoint=number)
        if attempt(folder.config, lambda: folder.write_config(self.config)):
            for path in written:
                attempt(path, lambda path=path: os.replace(staged(path, number), path))  # type: ignore[misc]
        return "; ".join(problems) or None

    def _trace(self, status: str) -> dict[str, Any] | None:
        """How the episode that is going on came about; ``None`` where nobody could go on with it."""
        exact = self._retracing is not None and status in ("running", "interrupted", "finished") and self._is_clean
        return {"steps": self.progress.episode_steps, **self._retracing.trace()} if exact else None

    def _draw(self, observer: Observer, should_stop: Callable[[], bool], with_film: bool) -> None:
        """Draw what can be drawn. A picture that fails is a note, never a failed run."""
        from bdpi.runs.curve import draw_curve
        from bdpi.runs.play import film_policy

        observer.doing("drawing the curve")
        config = self.config
        title = f"{config['agent'].upper()} on {config['environment']}, seed {config['seed']}"
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
