"""What is in a journal, and whether all of it can be read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.agents.journal_files import Progress
from bdpi.envs.descriptions import describe


@dataclass
class JournalInfo:
    """A journal, summed up.

    :param observation_space: of the transitions
    :param action_space: of the transitions
    :param size: of its files, in bytes
    :param transitions: that could be read
    :param environments: that they are from, where an agent learned in several at once
    :param returns: sums of the rewards of each complete episode
    :param unfinished: transitions of episodes that have not ended
    :param gaps: transitions that do not begin where the one before them ended, though no episode did
    :param problem: what is damaged; None: nothing
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    size: int
    transitions: int = 0
    environments: int = 0
    returns: list[float] = field(default_factory=list)
    unfinished: int = 0
    gaps: int = 0
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        returns: dict[str, float] | None = None
        if self.returns:
            returns = {"mean": float(np.mean(self.returns)), "min": min(self.returns), "max": max(self.returns)}
        return {
            "transitions": self.transitions,
            "environments": self.environments,
            "episodes": len(self.returns),
            "returns": returns,
            "unfinished": self.unfinished,
            "gaps": self.gaps,
            "observation_space": describe(self.observation_space),
            "action_space": describe(self.action_space),
            "bytes": self.size,
            "intact": self.problem is None,
            "problem": self.problem,
        }


def examine(path: str | os.PathLike[str], progress: Progress = lambda done, total: None) -> JournalInfo:
    """Read a journal from beginning to end; a robot may be writing it.

    :param path: of the journal
    :param progress: told now and then how far this is
    :raises JournalError: when it cannot even be opened
    """
    with Journal(path, read_only=True) as journal:
        info = JournalInfo(journal.observation_space, journal.action_space, journal._file.size)
        try:
            n = len(journal)
            _read(journal, info, n, progress)
            with journal._file.explained("read"):
                found = journal._file.run("PRAGMA quick_check(1)")
            if found != [("ok",)]:
                info.problem = f"{journal.path} is damaged: {found[0][0]}"
        except JournalError as error:
            info.problem = str(error)
    return info


def _read(journal: Journal, info: JournalInfo, n: int, progress: Progress) -> None:
    last: dict[int, Transition] = {}  # of each environment's episode that goes on
    totals: dict[int, float] = {}
    lengths: dict[int, int] = {}
    for step in journal.steps():
        if info.transitions == n:
            return  # a robot has written more meanwhile
        where, number = step.environment, info.transitions + 1
        info.gaps += where in last and not _equal(last[where].next_observation, step.observation)
        totals[where] = totals.get(where, 0.0) + step.reward
        lengths[where] = lengths.get(where, 0) + 1
        last[where] = step
        info.transitions, info.environments = number, len(totals)
        info.unfinished += 1
        if step.terminated or step.truncated:
            info.returns.append(totals[where])
            info.unfinished -= lengths[where]
            totals[where], lengths[where] = 0.0, 0
            del last[where]
        if number % 1000 == 0:
            progress(number, n)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(np.array_equal(one[key], other[key]) for key in one)
    return np.array_equal(one, other)
