"""Prepare a run: a new one, or the rest of one that was stopped."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.build import (
    agent_class,
    announcements,
    build_agent,
    environment_of,
    is_peer,
    load_agent,
    policy_name,
    retraceable,
    warnings_as_notes,
    with_action_bits,
    with_full_id,
    with_preset,
    wrapped,
)
from bdpi.runs.config import RunConfig, RunRecord, RunStatus
from bdpi.runs.episodes import Episodes, Summary, check_number, read_monitor
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import RunFolder
from bdpi.runs.logs import check_logs
from bdpi.runs.play import can_draw, film_episode
from bdpi.runs.progress import Observer, Progress
from bdpi.runs.session import Content, Driver, Session, circumstances, new_status, now
from bdpi.runs.settings import defaults_of
from bdpi.runs.trust import check_environment
from bdpi.storage.reading import read_json

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.vec_env import DummyVecEnv

    from bdpi.agents import Ensemble as Agent

_FILES = ("journal", "autosave")  # of an agent, beside those in its run's folder
_NO_END = 10**12  # steps; learn() wants a number, but the Recorder ends the run


def prepare(
    config: RunConfig,
    path: Path | None = None,
    *,
    note: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = (),
    copies: bool = True,
) -> Session:
    """Build what a run needs. Nothing is written yet.

    :param path: the folder; the default is ``runs/<environment>/<agent>-seed<seed>-<time>``.
    :param note: gets lines that the user should know.
    :param command: what the user typed, for the record.
    :param copies: for a peer that learns from many copies of its environment; without, one has to do.
    :raises RunError: when the run cannot begin.
    """
    if is_peer(config.agent):
        from bdpi.runs.peers import prepare_peer

        return prepare_peer(config, path, note, command, copies)
    with warnings_as_notes(note):
        cls = agent_class(config.agent)
        bare = environment_of(config)
        config = with_preset(_with_whole_paths(with_full_id(config, bare)), note)
        config = with_action_bits(config, bare.action_space)
        environment = _surroundings(config, bare)
        for text in announcements(config, bare):
            note(text)
        folder = RunFolder.new(path, config.environment, config.agent, config.seed)
        agent = build_agent(config, environment)
        if config.record_entropy and not agent.agent_learner.has_actor:
            raise RunError(f"{config.agent} has no actor, so there is no entropy of its policy to record")
        if config.record_entropy and not agent.decisions.is_plain:
            raise RunError(f"the entropy of {bare.action_space} actions is not recorded: that is for Discrete ones")
        if config.film_every is not None and not can_draw(config, "rgb_array"):
            raise RunError(f"{config.environment} cannot be drawn, so there is nothing to film: leave --film-every out")
        driver = AgentDriver(agent, environment, config, folder)
    policy, defaults = policy_name(environment.observation_space), defaults_of(cls, config.hyperparameters)
    status = new_status(command, policy, agent.learner_name, defaults)
    return Session(folder, config, status, driver, Progress(config.episodes, config.steps))


def _surroundings(config: RunConfig, bare: gym.Env[Any, Any]) -> gym.Env[Any, Any] | DummyVecEnv:
    """What the agent acts in: one environment, or several that are stepped together."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    others = (environment_of(config) for _ in range(config.n_envs - 1))
    made = [retraceable(wrapped(each, config.action_bits, config.off_policy_noise)) for each in (bare, *others)]
    return made[0] if config.n_envs == 1 else DummyVecEnv([lambda each=each: each for each in made])  # type: ignore[misc]


@contextlib.contextmanager
def tried(config: RunConfig) -> Iterator[Session]:
    """A run as :func:`prepare` makes it, for a look: whatever is wrong with the environment or the agent is found.

    :raises RunError: when the run could not begin.
    """
    session = prepare(config, copies=False)
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
    note: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = (),
    trust: bool = False,
    log: Sequence[str] = (),
) -> Session:
    """Load a run that was interrupted, failed, or is to become longer. Nothing is written yet; what a process that was
    killed has left half saved is put in order.

    A simulation is brought back to where it was, by repeating the episode that was going on, and the run goes on as if
    it had never stopped. Elsewhere, that episode is given up: an environment cannot be saved.

    :param path: the folder.
    :param episodes: so many in all; the default is what the run was started with.
    :param steps: so many in all, instead of ``episodes``.
    :param trust: do what ``config.json`` says outside the folder: import the module of its environment, write its
        journal and its autosave, log to its services.
    :param log: services that the user names, which then need no trust.
    :raises RunError: when the run cannot go on.
    """
    folder = RunFolder.open(path)
    with folder.locked():  # a process that saves it just now would lose its files
        config, status = folder.read_run()
        folder.refuse_links()
        try:
            folder.settle(status.checkpoint)
            _finish_if_complete(folder, config, status)
        except OSError as error:
            raise RunError(
                f"{path} cannot be written: {error.strerror or error}; copy it, and resume the copy"
            ) from None
    check_environment(config, folder.config, trust)
    if not trust:
        check_logs(status, log, folder.config)
    if is_peer(config.agent):
        raise RunError(f"runs of {config.agent} cannot be resumed: start again with bdpi train {config.environment}")
    if episodes is not None or steps is not None:
        config = config.changed(episodes=episodes, steps=steps)
    progress = _saved_progress(folder, config, status)
    if progress.complete:
        raise RunError(_nothing_left(folder, progress))
    with warnings_as_notes(note):
        environment = _surroundings(config, environment_of(config))
        agent = load_agent(config, folder.agent, environment)
        try:
            agent.replay_buffer.load_npz(folder.replay)
        except Exception as error:  # missing, damaged, foreign: it can fail anywhere
            raise RunError(f"{folder.replay} cannot be loaded: {named(error)}") from None
        _give_back_files(agent, config, environment, folder, trust)
        driver = AgentDriver(agent, environment, config, folder)
        progress.episode_steps = _continue_episode(folder, environment)
    status.learner, status.resumed = agent.learner_name, [*status.resumed, circumstances(command)]
    return Session(folder, config, status, driver, progress)


def _finish_if_complete(folder: RunFolder, config: RunConfig, status: RunStatus) -> None:
    """A run that was killed after its last episode, before it could say so, is finished. Requires the lock."""
    if status.state == "running" and status.result is not None and _saved_progress(folder, config, status).complete:
        status.state, status.finished = "finished", now()
        folder.write(RunRecord(config, status))


def _with_whole_paths(config: RunConfig) -> RunConfig:
    """Paths that are right from any folder: a run may be resumed from another one."""
    given = config.hyperparameters
    paths = {name: os.path.abspath(given[name]) for name in _FILES if name in given}
    return config.changed(hyperparameters={**given, **paths})


def _give_back_files(agent: Agent, config: RunConfig, environment: Any, folder: RunFolder, trust: bool) -> None:
    """Let a loaded agent go on with its journal and its autosave, which are not in its file.

    A killed run has a journal that is ahead of its checkpoint. A simulation repeats those steps, which are then in the
    journal twice; elsewhere, the agent learns of them from there.

    :param trust: whether these may be outside the folder
    :raises RunError: for a journal that cannot be continued, and for files outside that are not trusted
    """
    for name in _FILES:
        path = config.hyperparameters.get(name)
        if path is not None and not trust and not Path(str(path)).resolve().is_relative_to(folder.path.resolve()):
            raise RunError(
                f"{folder.config} names the file {path} as {name}, which would be written: if the run is yours, give "
                "--trust"
            )
        setattr(agent, name, path)
    if agent.journal is not None:
        try:
            agent._open_journal(agent.journal, take_in=not _inside(environment, "Retracing"))
        except ValueError as error:
            raise RunError(one_line(error)) from None


def _inside(environment: Any, wrapper: str) -> list[Any]:
    """The wrappers of a name around each environment, if any."""
    from stable_baselines3.common.env_util import unwrap_wrapper
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from bdpi.envs.wrappers import Retracing

    cls: Any = {"Monitor": Monitor, "Retracing": Retracing}[wrapper]
    each = environment.envs if isinstance(environment, DummyVecEnv) else [environment]
    return [found for one in each if (found := unwrap_wrapper(one, cls)) is not None]


def _continue_episode(folder: RunFolder, environment: Any) -> int:
    """Let environments go on with the episodes of a checkpoint; returns how many steps the longest had."""
    try:
        traces, wrappers = read_json(folder.episode), _inside(environment, "Retracing")
        if traces is None or not wrappers:
            return 0
        traces = traces if isinstance(traces, list) else [traces]
        for wrapper, trace in zip(wrappers, traces, strict=True):
            wrapper.follow(trace)
        return max(int(trace["steps"]) for trace in traces)
    except FileNotFoundError:  # removed, because it was damaged
        return 0
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunError(f"{folder.episode} is damaged: {named(error)}; without it, an episode is given up") from None


def _saved_progress(folder: RunFolder, config: RunConfig, status: RunStatus) -> Progress:
    """Where the saved agent stands, which after a crash is less than what ``monitor.csv`` tells."""
    result = status.result
    if not isinstance(result, Summary):
        raise RunError(
            f"{folder.path} was killed before anything was saved: start again with bdpi train {config.environment}"
        )
    episodes = _first(result.episodes, folder.monitor, result.episodes)
    progress = Progress(config.episodes, config.steps, episodes, result.steps, earlier_seconds=result.seconds)
    if config.off_policy_noise is not None:  # the last test is missing where the run was stopped during it
        progress.tests = _first(result.episodes, folder.test, result.test_episodes)
    progress.evaluations = _first(status.evaluations, folder.evaluations, status.evaluations)
    if config.eval_every is not None:  # all that became due at one step may be missing, if the run was stopped then
        due, at_once = result.steps // config.eval_every, config.n_envs // config.eval_every + 1
        if len(progress.evaluations) < (due - at_once) * config.eval_episodes:
            raise RunError(
                f"{folder.config} is damaged: {result.steps} steps had {due} evaluations of {config.eval_episodes} "
                f"episodes, and {len(progress.evaluations)} of these are there; take another copy of it"
            )
    return progress


def _first(n_saved: int, path: Path, n_sure: int) -> Episodes:
    """The first episodes in a Monitor file.

    :param n_sure: so many of them were there when the agent was saved; a file that came later may be damaged
    :raises RunError: when there are fewer.
    """
    try:
        recorded = read_monitor(path)
        check_number(path, len(recorded), n_sure)
    except RunError:
        if n_sure:
            raise
        return Episodes()
    for column in vars(recorded).values():
        del column[n_saved:]
    return recorded


def _nothing_left(folder: RunFolder, progress: Progress) -> str:
    done, option = (
        (f"{len(progress.episodes)} episodes", "--episodes")
        if progress.episodes_wanted is not None
        else (f"{progress.steps} steps", "--steps")
    )
    return f"{folder.path} already has its {done}: to train it longer, give a larger number with {option}"


class AgentDriver(Driver):
    """An agent of this package learns in an environment.

    :param environment: or several, each with a Monitor inside that writes no file yet.
    :param config: where it has noise, returns tell what the noise does, so a test follows each training episode.
    """

    has_findings = True

    def __init__(self, agent: Agent, environment: Any, config: RunConfig, folder: RunFolder) -> None:
        from bdpi.runs.tester import Evaluator, Tester

        super().__init__(agent, environment)
        self._config, self._folder, self._filmed = config, folder, 0
        self.tester = None if config.off_policy_noise is None else Tester(config, agent, folder.test)
        self.evaluator = None if config.eval_every is None else Evaluator(config, agent, folder.evaluations)
        self._entropy = folder.entropy if config.record_entropy else None
        self.monitors, self._retracing = _inside(environment, "Monitor"), _inside(environment, "Retracing")
        self._is_clean = True  # the environment is where the agent thinks it is

    def begin(self, session: Session) -> None:
        """Let Monitor write from now on: when it was made, it was not yet known that there would be a folder."""
        from stable_baselines3.common.monitor import ResultsWriter

        path, progress = session.folder.monitor, session.progress
        new = not path.exists()
        # Seconds go on where the last session ended, so that they never run backwards and pauses do not count.
        t_start = time.time() - progress.earlier_seconds
        header: dict[str, float | str] = {"t_start": t_start, "env_id": session.config.environment}
        writer = ResultsWriter(str(path), header, override_existing=new)
        for monitor in self.monitors:
            monitor.t_start, monitor.results_writer = t_start, writer
        if self.tester is not None:
            self.tester.open(len(progress.tests), t_start)
        if self.evaluator is not None:
            self.evaluator.tester.open(len(progress.evaluations), t_start)
        done = len(progress.episodes)
        filmed = done // (self._config.film_every or 1) * (self._config.film_every or 1)
        self._filmed = 0 if filmed == done and not self._folder.film_after(done).exists() else filmed

    def learn(self, session: Session, observer: Observer, should_stop: Callable[[], bool]) -> None:
        from bdpi.runs.recorder import Recorder, StoppedAtTest

        agent, progress, tester = self.agent, session.progress, self.tester
        recorder = Recorder(
            progress,
            self.monitors,
            should_stop,
            checkpoint=lambda: session.save("running"),
            began=lambda: self._check_continuation(progress, observer),
            test=None if tester is None else lambda: tester.play(len(progress.tests), should_stop),
            after_step=lambda should_stop: self._evaluate_and_film(progress, observer, should_stop),
            entropy=self._entropy,
            logs=bool(session.status.log),
            found=observer.found,
        )
        try:
            agent.learn(_NO_END, callback=recorder, log_interval=None, reset_num_timesteps=agent.num_timesteps == 0)
        except StoppedAtTest:
            return
        except BaseException:
            self._is_clean = False
            raise

    def _evaluate_and_film(self, progress: Progress, observer: Observer, should_stop: Callable[[], bool]) -> bool:
        """Returns whether all evaluations were made."""
        if self.evaluator is not None and not self.evaluator.catch_up(progress, should_stop):
            return False
        every, done = self._config.film_every, len(progress.episodes)
        if every is None or (due := done // every * every) <= self._filmed:
            return True
        self._filmed = due
        try:
            film_episode(self._config, self.agent, self._folder.film_after(due), should_stop)
        except Exception as error:  # environments are foreign code
            observer.note(f"no film after {due} episodes: {error if isinstance(error, RunError) else named(error)}")
        return True

    def _check_continuation(self, progress: Progress, observer: Observer) -> None:
        """Whether the episode that was going on could be continued."""
        if any(each.followed is False for each in self._retracing):
            observer.note(
                "the environment did not come back to where it was: the episode that was going on is given up"
            )
            progress.episode_steps = 0

    def contents(self, session: Session) -> list[Content]:
        folder = session.folder
        traces: list[Any] = [None]  # how the episodes that are going on came about, where they can be continued
        if self._retracing and self._is_clean:
            pairs = zip(self.monitors, self._retracing, strict=True)
            traces = [{"steps": len(monitor.rewards), **each.trace()} for monitor, each in pairs]
        contents: list[Content] = [
            (folder.agent, self.agent.save),
            (folder.replay, self.agent.replay_buffer.save_npz),
            (folder.episode, lambda file: file.write(json.dumps(traces[0] if len(traces) == 1 else traces).encode())),
        ]
        best = None if self.evaluator is None else self.evaluator.best
        if best is not None:
            contents.append((folder.best, lambda file: file.write(best)))
        return contents

    def close(self) -> None:
        for part in (self.tester, self.evaluator, self.agent.collector.journal):
            with contextlib.suppress(Exception):  # foreign code
                if part is not None:
                    part.close()
