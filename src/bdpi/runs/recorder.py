"""The callbacks that record a run while it learns, and end it in time."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from bdpi.agents.health import Finding
from bdpi.agents.metrics import entropy_bits
from bdpi.runs.episodes import Episode, append_to_monitor
from bdpi.runs.progress import Progress

# What a power failure may cost. Saving takes longer with pictures in the buffer, so it never takes more than 1 % of
# the time.
CHECKPOINT_SECONDS = 300.0
_CHECKPOINT_SHARE = 0.01
_ROW_EVERY = 1000  # steps of an episode that has not ended yet: rows of logs
_ENDLESS = 10_000  # steps of an episode after which it seems to have no end


def never() -> bool:
    """Do not stop."""
    return False


class StoppedAtTest(Exception):
    """Training was to go on, and stopped again during the test or the evaluation before it: nothing may be learned
    meanwhile."""


class Recorder(BaseCallback):
    """Count steps and episodes, test, save now and then, end training when it is time.

    :param progress: is kept up to date.
    :param monitors: of the environments.
    :param should_stop: asked after every step.
    :param checkpoint: saves the run.
    :param began: called when the environment was reset, before the first step.
    :param test: plays a test episode after each training episode; it returns ``None`` where it was stopped, and is then
        played when training goes on. ``None``: no tests.
    :param after_step: called after each step, and its tests; and before the first one, when training goes on. It is
        told what to ask whether to stop, and says whether it has done all that was due.
    :param logs: write a row to the agent's log after each episode, and now and then in long ones.
    :param found: told each finding of the agent about itself, when it is new.
    :param entropy: file of the policy's entropy (bits, float32) at every decision; ``None``: it is not recorded.
    """

    def __init__(
        self,
        progress: Progress,
        monitors: Sequence[Monitor[Any, Any]],
        should_stop: Callable[[], bool],
        checkpoint: Callable[[], object],
        began: Callable[[], object],
        test: Callable[[], Episode | None] | None = None,
        after_step: Callable[[Callable[[], bool]], bool] = lambda should_stop: True,
        entropy: Path | None = None,
        logs: bool = False,
        found: Callable[[Finding], object] = lambda finding: None,
    ) -> None:
        super().__init__()
        self._progress, self._monitors, self._should_stop = progress, monitors, should_stop
        self._after_step = after_step
        self._checkpoint, self._began, self._test, self._entropy = checkpoint, began, test, entropy
        self._found, self._logs = found, logs
        self._known: set[str] = set()
        self._next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS

    def _on_training_start(self) -> None:
        self._began()
        # Monitor has counted the steps that brought a simulation back to where it was.
        self._earlier_steps = self._progress.steps - self._made()
        if self._entropy is not None:  # what a saved agent has not seen does not count
            self._entropy.touch()
            os.truncate(self._entropy, 4 * self.num_timesteps)
        self._catch_up_with_tests()
        if self._test is not None and len(self._progress.tests) < len(self._progress.episodes):
            raise StoppedAtTest
        if not self._after_step(self._should_stop):
            raise StoppedAtTest

    def _made(self) -> int:
        """Steps, those included that brought simulations back to where they were."""
        return sum(monitor.total_steps for monitor in self._monitors)

    def _record_entropy(self, path: Path) -> None:
        probabilities = self.model.actions.drawn_by  # type: ignore[attr-defined]
        with path.open("ab") as file:
            file.write(np.float32(entropy_bits(probabilities)).tobytes())

    def _on_step(self) -> bool:
        progress = self._progress
        if self._entropy is not None:
            self._record_entropy(self._entropy)
        steps = self._earlier_steps + self._made()
        if steps == progress.steps:
            return True  # an inner decision of a continuous action: no time has passed
        progress.steps = steps
        progress.episode_steps = max(len(monitor.rewards) for monitor in self._monitors)
        if progress.episode_steps == _ENDLESS and (progress.episodes_wanted is not None):
            warnings.warn(
                f"episode {len(progress.episodes) + 1} has not ended after {_ENDLESS} steps: if the environment never "
                "ends one, give it a time limit (max_episode_steps, where it is registered), or train for --steps N",
                RuntimeWarning,
                stacklevel=1,
            )
        self._note_findings()
        has_ended = False
        for episode in filter(None, map(Episode.from_info, self.locals["infos"])):
            has_ended = True
            progress.episodes.add(episode.episode_return, episode.length, episode.seconds)
            self._catch_up_with_tests()
        self._after_step(never if progress.complete else self._should_stop)
        if self._logs and (has_ended or progress.episode_steps % _ROW_EVERY == 0):
            self.model.dump_logs()  # type: ignore[attr-defined]
        if time.monotonic() >= self._next_checkpoint:
            before = time.monotonic()
            self._checkpoint()
            now = time.monotonic()
            self._next_checkpoint = now + max(CHECKPOINT_SECONDS, (now - before) / _CHECKPOINT_SHARE)
        return not (progress.complete or self._should_stop())

    def _note_findings(self) -> None:
        findings: list[Finding] = self.model.findings  # type: ignore[attr-defined]
        if findings is self._progress.findings:
            return
        self._progress.findings = findings
        for finding in findings:
            if finding.code not in self._known:
                self._known.add(finding.code)
                self._found(finding)

    def _catch_up_with_tests(self) -> None:
        """As many test episodes as training episodes: one is missing after a training episode, or after a stop."""
        progress = self._progress
        while self._test is not None and len(progress.tests) < len(progress.episodes):
            episode = self._test()
            if episode is None:
                return
            progress.tests.add(episode.episode_return, episode.length, episode.seconds)
            self.logger.record("eval/ep_rew", episode.episode_return)


class PeerRecorder(BaseCallback):
    """Count steps and episodes of one or several environments, write ``monitor.csv``, end training when it is time."""

    def __init__(self, progress: Progress, path: Path, environment: str, should_stop: Callable[[], bool]) -> None:
        super().__init__()
        self._progress, self._path, self._environment, self._should_stop = progress, path, environment, should_stop
        self._t_start = time.time()

    def _on_step(self) -> bool:
        progress = self._progress
        progress.steps = self.num_timesteps
        for info in self.locals["infos"]:
            episode = Episode.from_info(info)
            if episode is not None and not progress.complete:
                append_to_monitor(self._path, self._environment, self._t_start, episode)
                progress.episodes.add(episode.episode_return, episode.length, episode.seconds)
        return not (progress.complete or self._should_stop())
