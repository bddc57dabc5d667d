"""Saving an agent now and then."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble


class Autosave:
    """Saves an agent to its ``autosave`` when ``autosave_minutes`` have passed since the last time."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def save_if_due(self, agent: Ensemble) -> None:
        """Asked between steps and epochs; there need not be anything to learn from yet."""
        if agent.autosave is None or time.monotonic() < self._last + 60 * agent.autosave_minutes:
            return
        # With a journal, the experience is in a file already; demonstrations are not.
        include = agent.collector.journal is None or agent.replay_buffer.n_demonstrations > 0
        try:
            agent.save(agent.autosave, include_buffer=include)
        except OSError as error:  # the robot goes on
            warnings.warn(
                f"autosave to {agent.autosave} failed: {error}. It is tried again in {agent.autosave_minutes:g} min.",
                RuntimeWarning,
                stacklevel=3,
            )
        self._last = time.monotonic()
