"""Learn from a journal alone: no environment is needed, and none is touched before the learning is over."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.build import (
    agent_class,
    build_agent,
    is_peer,
    make_environment,
    policy_name,
    warnings_as_notes,
    with_action_bits,
    with_preset,
    wrapped,
)
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import RunFolder, default_path
from bdpi.runs.plan import Plan
from bdpi.runs.settings import settable
from bdpi.runs.train import _circumstances, _now

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.vec_env import VecEnv

    from bdpi.agents import Ensemble as Agent
    from bdpi.agents.journal import Journal

TEST_EPISODES = 10
CHECKPOINT_SECONDS = 300.0

#: Told how much is done, and of how much.
Tick = Callable[[int, int], object]


def _silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class OfflinePlan:
    """One agent, one journal, one seed, for so many epochs.

    :param journal: whose transitions are learned from
    :param environment: Gymnasium id of where they come from, to try the agent in; ``None``: nowhere
    :param agent: a name in ``bdpi.agents.AGENTS``
    :param seed: seeds everything that the agent draws, and the environment
    :param epochs: of learning; ``None``: as many as there are transitions
    :param hyperparameters: arguments of the agent that differ from its defaults
    :param policy_kwargs: as :class:`~bdpi.runs.plan.Plan` has it
    :param action_bits: of an environment with continuous actions
    """

    journal: Path
    environment: str | None = None
    agent: str = "bdpi"
    seed: int = 0
    epochs: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    action_bits: int | None = None


@dataclass(frozen=True)
class OfflineResult:
    """What came of it.

    :param epochs: that were learned
    :param seconds: that took
    :param test_returns: of the episodes that were played afterwards
    """

    epochs: int
    seconds: float
    test_returns: tuple[float, ...] = ()

    @property
    def mean_return(self) -> float | None:
        """Of the test episodes; ``None``: there were none."""
        return sum(self.test_returns) / len(self.test_returns) if self.test_returns else None


@dataclass(frozen=True)
class OfflineOutcome:
    """How it ended.

    :param status: ``"finished"``, ``"interrupted"`` or ``"failed"``, as in ``config.json``
    :param folder: where the agent is
    :param result: what was learned
    :param error: one line, where it failed
    """

    status: str
    folder: RunFolder
    result: OfflineResult
    error: str | None = None


def prepare_offline(
    plan: OfflinePlan,
    path: Path | None = None,
    *,
    note: Callable[[str], None] = lambda text: None,
    tick: Tick = _silent,
    command: Sequence[str] = (),
) -> OfflineSession:
    """Make the agent and give it the journal's transitions. Nothing is written yet.

    :param path: the folder; the default is ``runs/<environment or journal>/<agent>-seed<seed>-<time>``
    :param note: gets lines that the user should know
    :param tick: told how many transitions are read
    :param command: what the user typed, for the record
    :raises RunError: when learning cannot begin
    """
    from bdpi.agents import AGENTS
    from bdpi.agents.journal import Journal, JournalError

    if is_peer(plan.agent):
        raise RunError(f"{plan.agent} cannot learn from a journal: choose from {', '.join(AGENTS)}")
    agent_class(plan.agent)
    if "journal" in plan.hyperparameters:
        raise RunError("the journal to learn from is that of --offline: leave --set journal out")
    if plan.action_bits is not None and plan.environment is None:
        raise RunError("--action-bits belongs to an environment: give one, or leave it out")
    if plan.epochs is not None and plan.epochs < 1:
        raise RunError(f"the number of epochs must be at least 1, not {plan.epochs}")
    try:
        with Journal(plan.journal, read_only=True) as journal, warnings_as_notes(note):
            return _prepare(plan, journal, path, note, tick, command)
    except JournalError as error:
        raise RunError(one_line(error)) from None


def _prepare(
    plan: OfflinePlan,
    journal: Journal,
    path: Path | None,
    note: Callable[[str], None],
    tick: Tick,
    command: Sequence[str],
) -> OfflineSession:
    from bdpi.envs import ControlLoop

    n = min(len(journal), journal.last)  # a robot may write more meanwhile
    if n == 0:
        raise RunError(f"{plan.journal} has no transitions to learn from")
    hyperparameters = _with_room(plan.hyperparameters, agent_class(plan.agent), n)
    plan = replace(plan, epochs=plan.epochs or n, hyperparameters=hyperparameters)
    build = Plan(
        plan.environment or "",
        plan.agent,
        plan.seed,
        None,
        plan.epochs,
        hyperparameters,
        plan.policy_kwargs,
        action_bits=plan.action_bits,
    )
    environment = None
    if plan.environment is not None:
        bare = make_environment(plan.environment)
        if bare.spec is not None and ":" not in plan.environment:
            build = replace(build, environment=bare.spec.id)
        build = with_action_bits(with_preset(build, note), bare.action_space)
        inside = wrapped(bare, build.action_bits)
        environment = agent_class(plan.agent)._wrap_env(inside, verbose=0)
        _check_spaces(journal, build.environment, inside, environment)
        plan = replace(
            plan,
            environment=build.environment,
            policy_kwargs=build.policy_kwargs,
            action_bits=build.action_bits,
        )
    folder = RunFolder(path or default_path(plan.environment or plan.journal.stem, plan.agent, plan.seed))
    _refuse_if_taken(folder)
    agent = build_agent(build, ControlLoop(journal.observation_space, journal.action_space))
    held = min(n, agent.replay_buffer.buffer_size)
    if held < agent.batch_size:
        raise RunError(
            f"{plan.journal} has {n} transitions, and the agent learns from {agent.batch_size} at a time: collect "
            f"more, or give --set batch_size={held}"
        )
    if held < n:
        note(f"buffer_size={held}: only the last {held} of {n} transitions are learned from")
    _fill(agent, journal, n, tick)
    config: dict[str, Any] = {
        **asdict(plan),
        "journal": str(plan.journal.resolve()),
        "transitions": n,
        "status": "prepared",
        "result": None,
        "resumable": False,
        "policy": policy_name(journal.observation_space),
        "learner": agent.learner_name,
        "defaults": {
            name: parameter.default
            for name, parameter in settable(type(agent)).items()
            if name not in plan.hyperparameters and parameter.default is not parameter.empty
        },
        **_circumstances(command),
    }
    return OfflineSession(folder, config, agent, environment)


def _with_room(hyperparameters: dict[str, Any], cls: type[Agent], n: int) -> dict[str, Any]:
    """A memory that holds the whole journal, unless the user wants another one."""
    default = settable(cls)["buffer_size"].default
    return {"buffer_size": max(default, n), **hyperparameters}


def _check_spaces(journal: Journal, name: str, environment: gym.Env[Any, Any], seen: VecEnv) -> None:
    """Agents see pictures with their channels first, and so do their journals; other journals may have them last.

    :param environment: as it is
    :param seen: as agents see it
    :raises RunError: when the journal is not of this environment
    """
    from bdpi.agents.descriptions import describe, difference

    kept = journal.observation_space in (environment.observation_space, seen.observation_space)
    for what, there, here in (
        ("observation_space", journal.observation_space, environment.observation_space),
        ("action_space", journal.action_space, environment.action_space),
    ):
        try:
            differs = difference(describe(there), describe(here))
        except ValueError as error:
            raise RunError(f"{name}: {one_line(error)}") from None
        if differs and not (kept and what == "observation_space"):
            raise RunError(
                f"{journal.path} is the journal of another environment than {name}: {what}: {differs} (there: the "
                f"journal, here: {name}). Leave the environment out, or give the right one."
            )


def _refuse_if_taken(folder: RunFolder) -> None:
    """:raises RunError: when there is a run in the folder already"""
    taken = [file.name for file in folder.files if file.exists()]
    if taken:
        raise RunError(f"{folder.path} already holds a run ({', '.join(taken)}): choose another --out")


def refuse_to_resume(folder: RunFolder) -> None:
    """:raises RunError: when what is in the folder was learned from a journal: there are no episodes to go on with"""
    try:
        config = json.loads(folder.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whoever reads it next says so
        return
    if not isinstance(config, dict) or not {"journal", "transitions", "epochs"} <= config.keys():
        return
    again = f"bdpi train --offline {shlex.quote(str(config['journal']))} --epochs N"
    raise RunError(
        f"{folder.path} was learned from a journal, without episodes that --resume could go on with: learn longer with "
        f"{again}, or go on with a robot: load {folder.agent} in Python, with env= and journal="
    )


def _fill(agent: Agent, journal: Journal, n: int, tick: Tick) -> None:
    """Give the agent the transitions, as if it had made them: with ``load(..., journal=)`` it goes on after them.

    :raises RunError: for transitions that make no sense
    """
    from stable_baselines3.common.vec_env import VecTransposeImage, unwrap_vec_wrapper

    from bdpi.agents.checks import check_in_space

    environment = agent.get_env()
    assert environment is not None
    transpose = unwrap_vec_wrapper(environment, VecTransposeImage)
    skipped = max(0, n - agent.replay_buffer.buffer_size)
    steps = itertools.islice(journal.steps(after=skipped), n - skipped)
    for done, step in enumerate(steps, 1):
        try:
            for what, seen in (("observation", step.observation), ("next observation", step.next_observation)):
                check_in_space(what, seen, journal.observation_space, skipped + done, 0)
        except ValueError as error:
            raise RunError(f"{journal.path} is damaged: {one_line(error)}") from None
        if isinstance(transpose, VecTransposeImage):
            step = replace(
                step,
                observation=transpose.transpose_observations(step.observation),
                next_observation=transpose.transpose_observations(step.next_observation),
            )
        agent.replay_buffer.add_steps([step])
        tick(done, n - skipped)
    agent.num_timesteps = agent.collector.journaled = journal.last
    agent.collector.journal_id = journal.id


class OfflineSession:
    """Learn, save, try. ``prepare_offline`` makes it.

    :param folder: of the result; it need not exist yet
    :param config: what goes into ``config.json``
    :param agent: new, with the journal's transitions in its memory
    :param environment: to try the agent in; ``None``: nowhere
    """

    def __init__(self, folder: RunFolder, config: dict[str, Any], agent: Agent, environment: VecEnv | None) -> None:
        self.folder, self.config, self.agent, self.environment = folder, config, agent, environment

    def run(
        self,
        tick: Tick = _silent,
        should_stop: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda text: None,
    ) -> OfflineOutcome:
        """Learn until the epochs are over, and save the agent.

        :param tick: told how many epochs are done
        :param should_stop: asked after every epoch; learning ends when it says so
        :param note: gets lines that the user should know
        :raises RunError: when the folder cannot be used. Errors in learning do not raise: they are the outcome.
        """
        self.folder.make()
        with self.folder.locked(), warnings_as_notes(note):
            _refuse_if_taken(self.folder)
            self._write("running", None)
            status, result, error = self._learn(tick, should_stop)
            try:
                self._save()
            except Exception as problem:  # a full disk, most likely
                status, error = "failed", f"{self.folder.agent.name} could not be saved: {named(problem)}"
            if status == "finished" and self.environment is not None:
                result = replace(result, test_returns=self._try(should_stop, note))
            self._write(status, result)
        return OfflineOutcome(status, self.folder, result, error)

    def _learn(self, tick: Tick, should_stop: Callable[[], bool]) -> tuple[str, OfflineResult, str | None]:
        epochs, done, error = int(self.config["epochs"]), 0, None
        began = saved = time.monotonic()
        try:
            while done < epochs and not should_stop():
                self.agent.learn_once()
                done += 1
                tick(done, epochs)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    with contextlib.suppress(Exception):  # it will be tried again
                        self._save()
                    saved = time.monotonic()
        except KeyboardInterrupt:  # for those who call this without signal handlers, in a notebook
            pass
        except Exception as problem:
            error = named(problem)
            self.folder.error.write_text(traceback.format_exc(), encoding="utf-8")
        status = "failed" if error else "finished" if done == epochs else "interrupted"
        return status, OfflineResult(done, time.monotonic() - began), error

    def _try(self, should_stop: Callable[[], bool], note: Callable[[str], None]) -> tuple[float, ...]:
        """Returns of a few episodes; a failure is a note, because what was learned is saved."""
        from bdpi.runs.play import steps

        environment = self.environment
        assert environment is not None
        returns: list[float] = []
        try:
            environment.seed(int(self.config["seed"]))
            for episode in steps(self.agent, environment, deterministic=True):
                if episode is not None:
                    returns.append(episode.episode_return)
                if len(returns) == TEST_EPISODES or should_stop():
                    break
        except Exception as error:  # environments are foreign code
            note(f"the agent could not be tried: {named(error)}")
        finally:
            with contextlib.suppress(Exception):
                environment.close()
        return tuple(returns)

    def _save(self) -> None:
        self.agent.save(self.folder.agent, include_buffer=True)

    def _write(self, status: str, result: OfflineResult | None) -> None:
        self.config.update(status=status, finished=None if status == "running" else _now())
        if result is not None:
            self.config["result"] = {
                "epochs": result.epochs,
                "seconds": round(result.seconds, 3),
                "test_episodes": len(result.test_returns),
                "mean_return": result.mean_return,
            }
        self.folder.write_config(self.config)
