"""What a person at the page has asked for, and whose action is taken: the person's, or the policy's."""

from __future__ import annotations

import time
from typing import Literal

from bdpi.serve.task import RobotTask

HOLD = 1.0  # seconds that a held button counts for: a page that is gone lets go
_NOT_AGAIN = 10  # times ask_seconds without another question, after one that had no answer

Mark = Literal["success", "failure", "end"]


class Person:
    """Of one robot.

    :param task: says when a person is asked, and for how long
    """

    def __init__(self, task: RobotTask) -> None:
        self._task = task
        self._held: tuple[int, float] | None = None
        self._asked: float | None = None
        self._not_before = 0.0
        #: the episode is to be ended after the next step; None: it is not
        self.mark: Mark | None = None
        #: the policy has acted in this episode, or may; counts only while robots are held before each
        self.started = False

    def drive(self, action: int) -> None:
        """Take over, for a second."""
        self._held = action, time.monotonic() + HOLD

    def release(self) -> None:
        self._held = None

    def begin_episode(self) -> None:
        self._asked = self.mark = None
        self.started = False

    @property
    def action(self) -> int | None:
        """That the person holds now; None: the policy acts."""
        if self._held is not None and time.monotonic() > self._held[1]:
            self._held = None
        return None if self._held is None else self._held[0]

    @property
    def is_asked(self) -> bool:
        return self._asked is not None

    def answered(self) -> None:
        """The person acts: the question is settled."""
        self._asked = None

    def ask(self, uncertainty: float) -> Literal["policy", "ask", "fallback"]:
        """Whether to wait for a person."""
        task, now = self._task, time.monotonic()
        if self._asked is None:
            if task.ask_above is None or uncertainty <= task.ask_above or now < self._not_before:
                return "policy"
            self._asked = now
        if now - self._asked < task.ask_seconds:
            return "ask"
        self._asked, self._not_before = None, now + _NOT_AGAIN * task.ask_seconds
        return "fallback"
