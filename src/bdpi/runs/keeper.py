"""The callback that keeps the books of a run and ends it in time."""

from __future__ import annotations

import time
from collections.abc import Callable

from stable_baselines3.common.callbacks import BaseCallback

from bdpi.runs.progress import Progress

# What a power failure may cost. Saving takes longer with pictures in the buffer, so it never takes more than 1 % of
# the time.
CHECKPOINT_SECONDS = 300.0
_CHECKPOINT_SHARE = 0.01


class Keeper(BaseCallback):
    """Count steps and episodes, save now and then, end training when it is time. For one environment, in a Monitor.

    :param progress: is kept up to date.
    :param should_stop: asked after every step.
    :param checkpoint: saves the run.
    """

    def __init__(self, progress: Progress, should_stop: Callable[[], bool], checkpoint: Callable[[], object]) -> None:
        super().__init__()
        self._progress, self._should_stop, self._checkpoint = progress, should_stop, checkpoint
        self._next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS

    def _on_step(self) -> bool:
        progress = self._progress
        progress.steps = self.num_timesteps
        progress.episode_steps += 1
        episode = self.locals["infos"][0].get("episode")
        if episode is not None:
            progress.episode_steps = 0
            progress.episodes.add(float(episode["r"]), int(episode["l"]), float(episode["t"]))
        if time.monotonic() >= self._next_checkpoint:
            before = time.monotonic()
            self._checkpoint()
            now = time.monotonic()
            self._next_checkpoint = now + max(CHECKPOINT_SECONDS, (now - before) / _CHECKPOINT_SHARE)
        return not (progress.complete or self._should_stop())
