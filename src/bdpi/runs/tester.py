"""Episodes that are not learned from, between those of training: what the agent has learned, without noise.

A test follows each training episode of a run with noise; an evaluation comes every so many steps, and the agent that
did best is kept. Both are played in an environment of their own, by ``predict``, which has its own random numbers:
nothing is learned from them, and training goes on exactly as it would without them. With ``remember_tests``, the
transitions of tests enter the replay memory.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bdpi.runs.build import environment_of, wrapped
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import Episode, Episodes, append_to_monitor, trim_monitor
from bdpi.runs.play import steps
from bdpi.runs.progress import Progress

if TYPE_CHECKING:
    from bdpi.agents import Ensemble as Agent
    from bdpi.agents.journal import Transition

_TEST, _EVALUATION = 3, 4  # mixed into the seed, so that these do not repeat the episodes of training


class Tester:
    """Plays and records such episodes of one run.

    :param config: of the run.
    :param agent: that is being trained.
    :param path: the file of the returns, in Monitor's format.
    :param deterministic: take the most probable actions, instead of drawing them as in training.
    """

    def __init__(self, config: RunConfig, agent: Agent, path: Path, *, deterministic: bool = False) -> None:
        from stable_baselines3.common.env_util import unwrap_wrapper
        from stable_baselines3.common.monitor import Monitor

        environment = wrapped(environment_of(config), config.action_bits)
        monitor = unwrap_wrapper(environment, Monitor)
        assert isinstance(monitor, Monitor)
        self._agent, self._path, self._monitor = agent, path, monitor
        self._deterministic, self._stream = deterministic, _EVALUATION if deterministic else _TEST
        self._environment_id, self._seed = config.environment, config.seed
        self._remembers = config.remember_tests and not deterministic
        self._environment = agent._wrap_env(environment)

    def open(self, n_played: int, t_start: float) -> None:
        """Forget those after the first ``n_played``, of an agent that was lost in a crash, and start the clock."""
        self._monitor.t_start = t_start
        if self._path.exists():
            trim_monitor(self._path, n_played)

    def play(self, number: int, should_stop: Callable[[], bool]) -> Episode | None:
        """One episode.

        :param number: of the episode. It decides on the environment's random numbers, also in a resumed run.
        :param should_stop: asked after every step.
        :returns: ``None`` if it was stopped.
        """
        seed = np.random.SeedSequence([self._seed, number, self._stream]).generate_state(1)[0]
        self._environment.seed(int(seed) >> 1)  # some environments take no more than 31 bits
        generator = self._agent.policy.generator.bit_generator
        before = generator.state
        seen: list[Transition] = []
        note = seen.append if self._remembers else None
        for episode in steps(self._agent, self._environment, deterministic=self._deterministic, seen=note):
            if episode is not None:
                self._remember(seen)
                append_to_monitor(self._path, self._environment_id, self._monitor.t_start, episode)
                return episode
            if should_stop():
                break
        generator.state = before  # it will be played again, and should be the same episode
        return None

    def _remember(self, seen: Iterable[Transition]) -> None:
        """Of a whole episode: one that was stopped is played again."""
        agent = self._agent
        with agent._background.observing:
            for step in seen:
                agent.collector.store_transition(agent.collector.given_transition(step, "the action of a test", 0))

    def close(self) -> None:
        self._environment.close()


class Evaluator:
    """Evaluates the agent of a run every so many steps, each time by the same episodes, and keeps the best one.

    :param config: of the run; it says how often.
    :param agent: that is being trained.
    :param path: the file of the returns, in Monitor's format: those of the first evaluation, of the second, and so on.
    """

    def __init__(self, config: RunConfig, agent: Agent, path: Path) -> None:
        assert config.eval_every is not None
        self.tester = Tester(config, agent, path, deterministic=True)
        self._agent, self._every, self._n_episodes = agent, config.eval_every, config.eval_episodes
        #: file of the agent that did best, of those in this session
        self.best: bytes | None = None

    def catch_up(self, progress: Progress, should_stop: Callable[[], bool]) -> bool:
        """Play as many episodes as belong to the steps so far, until it should stop: then, the rest is for later.

        :returns: whether none is left
        """
        played = progress.evaluations
        while len(played) < self._n_episodes * (progress.steps // self._every):
            episode = self.tester.play(len(played) % self._n_episodes, should_stop)
            if episode is None:
                return False
            played.add(episode.episode_return, episode.length, episode.seconds)
            means = evaluation_means(played, self._n_episodes)
            if len(played) % self._n_episodes == 0 and means[-1] > max(means[:-1], default=-np.inf):
                file = io.BytesIO()
                self._agent.save(file)
                self.best = file.getvalue()
        return True

    def close(self) -> None:
        self.tester.close()


def evaluation_means(episodes: Episodes, n: int) -> list[float]:
    """Mean return of each evaluation that has all its ``n`` episodes."""
    whole = len(episodes) // n * n
    return [float(np.mean(episodes.returns[first : first + n])) for first in range(0, whole, n)]
