"""Learn from a journal alone: no environment is needed, and none is touched before the learning is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.build import (
    agent_class,
    build_agent,
    environment_of,
    is_peer,
    policy_name,
    warnings_as_notes,
    with_action_bits,
    with_full_id,
    with_preset,
    wrapped,
)
from bdpi.runs.config import OfflineConfig
from bdpi.runs.episodes import OfflineSummary
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import RunFolder
from bdpi.runs.progress import Observer, Progress
from bdpi.runs.session import Content, Driver, Session, new_status
from bdpi.runs.settings import defaults_of, settable

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.vec_env import VecEnv

    from bdpi.agents import Ensemble as Agent
    from bdpi.agents.journal import Journal

TEST_EPISODES = 10
CHECKPOINT_SECONDS = 300.0

#: Told how much is done, and of how much.
Tick = Callable[[int, int], object]


@dataclass
class OfflineProgress(Progress):
    """Epochs instead of episodes and steps.

    :param epochs_wanted: the run ends after so many
    :param epochs: that were learned
    :param test_returns: of the episodes that were played afterwards
    """

    epochs_wanted: int = 0
    epochs: int = 0
    test_returns: list[float] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.epochs >= self.epochs_wanted

    @property
    def summary(self) -> OfflineSummary:
        returns = self.test_returns
        mean = sum(returns) / len(returns) if returns else None
        return OfflineSummary(self.epochs, round(self.seconds, 3), len(returns), mean)


def prepare_offline(
    config: OfflineConfig,
    path: Path | None = None,
    *,
    note: Callable[[str], None] = lambda text: None,
    tick: Tick = lambda done, total: None,
    command: Sequence[str] = (),
) -> Session:
    """Make the agent and give it the journal's transitions. Nothing is written yet.

    :param path: the folder; the default is ``runs/<environment or journal>/<agent>-seed<seed>-<time>``
    :param note: gets lines that the user should know
    :param tick: told how many transitions are read
    :param command: what the user typed, for the record
    :raises RunError: when learning cannot begin
    """
    from bdpi.agents import AGENTS
    from bdpi.agents.journal import Journal, JournalError

    if is_peer(config.agent):
        raise RunError(f"{config.agent} cannot learn from a journal: choose from {', '.join(AGENTS)}")
    agent_class(config.agent)
    if "journal" in config.hyperparameters:
        raise RunError("the journal to learn from is that of --offline: leave --set journal out")
    if config.action_bits is not None and not config.environment:
        raise RunError("--action-bits belongs to an environment: give one, or leave it out")
    if (config.env_kwargs or config.wrappers) and not config.environment:
        raise RunError("--env-kwargs and --wrapper belong to an environment: give one, or leave them out")
    if config.epochs is not None and config.epochs < 1:
        raise RunError(f"the number of epochs must be at least 1, not {config.epochs}")
    try:
        with Journal(Path(config.journal), read_only=True) as journal, warnings_as_notes(note):
            return _prepare(config, journal, path, note, tick, command)
    except JournalError as error:
        raise RunError(one_line(error)) from None


def _prepare(
    config: OfflineConfig,
    journal: Journal,
    path: Path | None,
    note: Callable[[str], None],
    tick: Tick,
    command: Sequence[str],
) -> Session:
    from bdpi.envs import ControlLoop

    n = min(len(journal), journal.last)  # a robot may write more meanwhile
    if n == 0:
        raise RunError(f"{journal.path} has no transitions to learn from")
    # A memory that holds the whole journal, unless the user wants another one.
    room = max(settable(agent_class(config.agent))["buffer_size"].default, n)
    config = config.changed(
        journal=str(journal.path.resolve()),
        transitions=n,
        epochs=config.epochs or n,
        hyperparameters={"buffer_size": room, **config.hyperparameters},
    )
    environment = None
    if config.environment:
        bare = environment_of(config)
        config = with_action_bits(with_preset(with_full_id(config, bare), note), bare.action_space)
        inside = wrapped(bare, config.action_bits)
        environment = agent_class(config.agent)._wrap_env(inside, verbose=0)
        _check_spaces(journal, config.environment, inside, environment)
    folder = RunFolder.new(path, config.environment or journal.path.stem, config.agent, config.seed)
    agent = build_agent(config, ControlLoop(journal.observation_space, journal.action_space))
    held = min(n, agent.replay_buffer.buffer_size)
    if held < agent.batch_size:
        raise RunError(
            f"{journal.path} has {n} transitions, and the agent learns from {agent.batch_size} at a time: collect "
            f"more, or give --set batch_size={held}"
        )
    if held < n:
        note(f"buffer_size={held}: only the last {held} of {n} transitions are learned from")
    _fill(agent, journal, n, tick)
    policy, defaults = policy_name(journal.observation_space), defaults_of(type(agent), config.hyperparameters)
    status = new_status(command, policy, agent.learner_name, defaults, resumable=False)
    progress = OfflineProgress(None, None, epochs_wanted=config.epochs or n)
    return Session(folder, config, status, OfflineDriver(agent, environment, progress), progress, draws=False)


def _check_spaces(journal: Journal, name: str, environment: gym.Env[Any, Any], seen: VecEnv) -> None:
    """Agents see pictures with their channels first, and so do their journals; other journals may have them last.

    :param environment: as it is
    :param seen: as agents see it
    :raises RunError: when the journal is not of this environment
    """
    from bdpi.envs.descriptions import describe, difference

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


def _fill(agent: Agent, journal: Journal, n: int, tick: Tick) -> None:
    """Give the agent the transitions, as if it had made them: with ``load(..., journal=)`` it goes on after them."""
    from stable_baselines3.common.vec_env import VecTransposeImage, unwrap_vec_wrapper

    environment = agent.get_env()
    assert environment is not None
    transpose = unwrap_vec_wrapper(environment, VecTransposeImage)
    skipped = max(0, n - agent.replay_buffer.buffer_size)
    steps = itertools.islice(journal.steps(after=skipped), n - skipped)
    for done, step in enumerate(steps, 1):
        if isinstance(transpose, VecTransposeImage):
            step = replace(
                step,
                observation=transpose.transpose_observations(step.observation),
                next_observation=transpose.transpose_observations(step.next_observation),
            )
        agent.replay_buffer.add_steps([step])
        if agent.frames is not None:
            agent.frames.add([step])  # a robot may be in the middle of an episode
        tick(done, n - skipped)
    agent.num_timesteps = agent.collector.journaled = journal.last
    agent.collector.journal_id = journal.id


class OfflineDriver(Driver):
    """An agent learns from the transitions in its memory, and is tested afterwards.

    :param environment: to test the agent in; ``None``: it is not tested
    """

    def __init__(self, agent: Agent, environment: VecEnv | None, progress: OfflineProgress) -> None:
        super().__init__(agent, environment)
        self._progress = progress

    def learn(self, session: Session, observer: Observer, should_stop: Callable[[], bool]) -> None:
        from bdpi.agents.agent_learner import DIAGNOSTICS_EVERY
        from bdpi.agents.logs import record_state

        progress, saved = self._progress, time.monotonic()
        while not (progress.complete or should_stop()):
            self.agent.learn_once()
            progress.epochs += 1
            if session.status.log and progress.epochs % DIAGNOSTICS_EVERY == 0:
                record_state(self.agent)
                self.agent.logger.dump(progress.epochs)
            observer.epoch(progress.epochs, progress.epochs_wanted)
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                session.save("running")  # what fails is tried again
                saved = time.monotonic()

    def contents(self, session: Session) -> list[Content]:
        return [(session.folder.agent, lambda file: self.agent.save(file, include_buffer=True))]

    def finish(self, session: Session, observer: Observer, should_stop: Callable[[], bool]) -> None:
        """Play a few episodes. A failure is a note: what was learned is saved."""
        from bdpi.runs.play import steps

        progress = self._progress
        if self.environment is None:
            return
        try:
            self.environment.seed(session.config.seed)
            for episode in steps(self.agent, self.environment, deterministic=True):
                if episode is not None:
                    progress.test_returns.append(episode.episode_return)
                if len(progress.test_returns) == TEST_EPISODES or should_stop():
                    break
        except Exception as error:  # environments are foreign code
            observer.note(f"the agent could not be tested: {named(error)}")
        session.status.result = progress.summary
        session.write()
