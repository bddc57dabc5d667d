"""Test episodes between the training episodes: what the agent has learned, without the noise that it learns from.

They are played in an environment of their own, by ``predict``, which has its own random numbers: nothing is learned
from them, and training goes on exactly as it would without them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bdpi.runs.build import make_environment, wrapped
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import Episode, append_to_monitor, trim_monitor
from bdpi.runs.play import steps

if TYPE_CHECKING:
    from bdpi.agents import Ensemble as Agent

_STREAM = 3  # mixed into the seed, so that tests do not repeat the episodes of training


class Tester:
    """Plays and records the test episodes of one run.

    :param config: of the run.
    :param agent: that is being trained.
    :param path: the file of the returns, in Monitor's format.
    """

    def __init__(self, config: RunConfig, agent: Agent, path: Path) -> None:
        from stable_baselines3.common.env_util import unwrap_wrapper
        from stable_baselines3.common.monitor import Monitor

        environment = wrapped(make_environment(config.environment), config.action_bits)
        monitor = unwrap_wrapper(environment, Monitor)
        assert isinstance(monitor, Monitor)
        self._agent, self._path, self._monitor = agent, path, monitor
        self._environment_id, self._seed = config.environment, config.seed
        self._environment = agent._wrap_env(environment)

    def open(self, n_played: int, t_start: float) -> None:
        """Forget the tests after the first ``n_played``, of an agent that was lost in a crash, and start the clock."""
        self._monitor.t_start = t_start
        if self._path.exists():
            trim_monitor(self._path, n_played)

    def play(self, number: int, should_stop: Callable[[], bool]) -> Episode | None:
        """One episode, actions drawn as in training.

        :param number: of the episode. It decides on the environment's random numbers, also in a resumed run.
        :param should_stop: asked after every step.
        :returns: ``None`` if it was stopped.
        """
        seed = np.random.SeedSequence([self._seed, number, _STREAM]).generate_state(1)[0]
        self._environment.seed(int(seed) >> 1)  # some environments take no more than 31 bits
        generator = self._agent.policy.generator.bit_generator
        before = generator.state
        for episode in steps(self._agent, self._environment, deterministic=False):
            if episode is not None:
                append_to_monitor(self._path, self._environment_id, self._monitor.t_start, episode)
                return episode
            if should_stop():
                break
        generator.state = before  # it will be played again, and should be the same episode
        return None

    def close(self) -> None:
        self._environment.close()
