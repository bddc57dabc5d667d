"""Where a run stands. Training writes it; views read it whenever they like, from any thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bdpi.runs.episodes import Episodes, OfflineSummary, Summary, summarize

if TYPE_CHECKING:
    from bdpi.agents.health import Finding

# Episode lengths change while an agent learns, so the time left is judged by the latest ones.
_RECENT_EPISODES = 20


@dataclass
class Progress:
    """The numbers that change during a run.

    :param episodes_wanted: the run ends after so many episodes; ``None``: ``steps_wanted`` decides.
    :param steps_wanted: the run ends after so many steps; ``None``: ``episodes_wanted`` decides.
    :param episodes: those that have ended, with the ones of earlier sessions.
    :param tests: test episodes that have ended, if the run has any: clean, and not learned from.
    :param evaluations: their episodes that have ended, where there are any.
    :param steps: environment steps, with those of earlier sessions. The decisions of a continuous action are one step.
    :param episode_steps: steps of the episode that is going on; of several environments, the longest.
    :param earlier_seconds: training time of earlier sessions.
    :param findings: why the run may not learn, by the agent's last look at itself; replaced, never changed.
    """

    episodes_wanted: int | None
    steps_wanted: int | None
    episodes: Episodes = field(default_factory=Episodes)
    tests: Episodes = field(default_factory=Episodes, kw_only=True)
    evaluations: Episodes = field(default_factory=Episodes, kw_only=True)
    steps: int = 0
    episode_steps: int = 0
    earlier_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    _began: float | None = None
    _session_seconds: float = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self._session_seconds = self.session_seconds
        self._began = None

    @property
    def session_seconds(self) -> float:
        return self._session_seconds if self._began is None else time.perf_counter() - self._began

    @property
    def seconds(self) -> float:
        """Training time so far, pauses between sessions not counted."""
        return self.earlier_seconds + self.session_seconds

    @property
    def shown(self) -> Episodes:
        """The episodes that tell how good the agent is: tests, where there are any."""
        return self.tests or self.episodes

    @property
    def complete(self) -> bool:
        """Whether all the episodes or steps that were wanted are done."""
        if self.episodes_wanted is not None:
            return len(self.episodes) >= self.episodes_wanted
        return self.steps >= (self.steps_wanted or 0)

    @property
    def fraction(self) -> float:
        """How much is done, from 0 to 1."""
        if self.episodes_wanted is not None:
            return min(1.0, len(self.episodes) / self.episodes_wanted)
        return min(1.0, self.steps / (self.steps_wanted or 1))

    @property
    def steps_left(self) -> float | None:
        """How many steps are left; an estimate when episodes are counted, ``None`` before the first has ended."""
        if self.steps_wanted is not None:
            return max(0, self.steps_wanted - self.steps)
        recent = self.episodes.lengths[-_RECENT_EPISODES:]
        if not recent or self.episodes_wanted is None:
            return None
        left = (self.episodes_wanted - len(self.episodes)) * sum(recent) / len(recent)
        return max(0.0, left - self.episode_steps)

    @property
    def summary(self) -> Summary | OfflineSummary:
        return summarize(self.episodes, self.steps, self.seconds, self.tests)


@dataclass(frozen=True)
class RunInfo:
    """What does not change during a run, for titles."""

    environment: str
    agent: str
    seed: int
    learner: str
    folder: Path


class Observer:
    """Is told what happens in a run. These methods do nothing: override those you want to hear of.

    Training goes on while they run, so they should return soon. Progress is not pushed: look at ``progress`` (given to
    ``began``) as often as you like.
    """

    def began(self, info: RunInfo, progress: Progress) -> None:
        """Training begins."""

    def epoch(self, done: int, total: int) -> None:
        """An epoch of learning from a journal has ended."""

    def doing(self, what: str) -> None:
        """Training has ended and something else that takes a moment begins, such as ``"drawing the curve"``."""

    def note(self, text: str) -> None:
        """One line that the user should know."""

    def found(self, finding: Finding) -> None:
        """The agent says why it may not learn. What it says now is in ``progress.findings``; this is new."""

    def ended(self) -> None:
        """The run is over and all its files are written. Also called after a failure, if ``began`` was."""
