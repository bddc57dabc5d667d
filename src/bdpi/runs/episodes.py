"""The episodes of a run: Monitor's CSV file, the moving average of the paper, and the figures that sum a run up."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.runs.errors import RunError
from bdpi.storage.atomic import write_atomically
from bdpi.storage.reading import Damaged, parse_json, read_bytes

# The paper's curves: average ← 0.85 · average + 0.15 · return, once per episode.
AVERAGE_COEFFICIENT = 0.85
# The average of fewer episodes is mostly their luck, so it cannot be the best of a run.
_EPISODES_BEFORE_BEST = 10
_LAST = 50


@dataclass(frozen=True)
class Episode:
    """One episode, in real steps and real rewards.

    :param seconds: at its end, since the run began; pauses between interruption and resumption are not counted.
    """

    episode_return: float
    length: int
    seconds: float = field(default=0.0, compare=False)

    @classmethod
    def from_info(cls, info: dict[str, Any]) -> Episode | None:
        """What Monitor says of the episode that a step ended; ``None`` after any other step."""
        episode = info.get("episode")
        return None if episode is None else cls(float(episode["r"]), int(episode["l"]), float(episode["t"]))


@dataclass
class Episodes:
    """What happened so far, episode by episode. ``averages`` grows with ``returns``."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.returns)

    def add(self, episode_return: float, length: int, seconds: float) -> None:
        """:param seconds: since the run began, pauses between interruption and resumption not counted."""
        self.returns.append(episode_return)
        self.lengths.append(length)
        self.seconds.append(seconds)
        self.averages.append(next_average(self.averages[-1] if self.averages else None, episode_return))

    @property
    def best_average(self) -> float | None:
        """Highest moving average, the first ten episodes left out where there are more."""
        start = _EPISODES_BEFORE_BEST - 1 if len(self) > _EPISODES_BEFORE_BEST else 0
        return max(self.averages[start:], default=None)


def next_average(average: float | None, episode_return: float) -> float:
    """The moving average after one more episode. It starts at the first return."""
    if average is None:
        return episode_return
    return AVERAGE_COEFFICIENT * average + (1.0 - AVERAGE_COEFFICIENT) * episode_return


def moving_average(returns: Iterable[float]) -> list[float]:
    """The moving average after each episode."""
    averages: list[float] = []
    for episode_return in returns:
        averages.append(next_average(averages[-1] if averages else None, episode_return))
    return averages


def read_monitor(path: Path) -> Episodes:
    """Read Monitor's CSV. The last row is left out if a crash cut it off.

    :raises RunError: when the file is missing or is no Monitor file.
    """
    episodes = Episodes()
    for row in _rows(path)[2:]:
        try:
            episode_return, length, seconds = (float(cell) for cell in next(csv.reader([row]))[:3])
        except (ValueError, StopIteration, csv.Error):
            raise RunError(f"{path} is damaged: {row!r} is no episode") from None
        if not math.isfinite(length):
            raise RunError(f"{path} is damaged: {row!r} is no episode")
        episodes.add(episode_return, int(length), seconds)
    return episodes


def read_returns(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns and lengths in a Monitor's CSV: what :func:`read_monitor` finds, in less than half the time.

    :raises RunError: when the file is missing or is no Monitor file.
    """
    rows = _rows(path)[2:]
    try:
        if any(row.count(",") != 2 for row in rows):
            raise ValueError("more columns than Monitor writes by itself, or fewer")
        numbers = np.array(list(map(float, ",".join(rows).split(","))) if rows else [], np.float64).reshape(-1, 3)
        if not np.isfinite(numbers[:, 1]).all():
            raise ValueError("an episode without a length")
    except ValueError:
        episodes = read_monitor(path)  # knows more about the format, and what to say
        return np.array(episodes.returns, np.float64), np.array(episodes.lengths, np.int64)
    return numbers[:, 0].copy(), numbers[:, 1].astype(np.int64)


def count_rows(path: Path) -> int:
    """How many episodes a Monitor's CSV has, without a look at what it says of them.

    :raises RunError: when the file is missing or is no Monitor file.
    """
    return len(_rows(path)) - 2


def check_number(path: Path, found: int, saved: int) -> None:
    """:raises RunError: when a Monitor file has fewer episodes than its run had when it was saved."""
    if found < saved:
        raise RunError(f"{path} is damaged: it has {found} episodes instead of {saved}")


def append_to_monitor(path: Path, environment: str, t_start: float, episode: Episode) -> None:
    """Write one more row, as Monitor does. (SB3's own writer insists on files that are called ``monitor.csv``.)

    :param t_start: when the clock of the episode's ``seconds`` began, for the first line of a new file.
    """
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="\n") as file:
        if new:
            file.write(f"#{json.dumps({'t_start': t_start, 'env_id': environment})}\nr,l,t\n")
        file.write(f"{episode.episode_return},{episode.length},{episode.seconds}\n")


def trim_monitor(path: Path, n_episodes: int) -> None:
    """Forget the episodes after the first ``n_episodes``: those the saved agent has not seen, after a crash."""
    if n_episodes == 0:  # the file is newer than the saved agent, and a power failure may have damaged it
        path.unlink(missing_ok=True)
        return
    kept = _rows(path)[: 2 + n_episodes]
    write_atomically(path, "".join(f"{row}\n" for row in kept))


def _rows(path: Path) -> list[str]:
    try:
        text = read_bytes(path).decode()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged: it is not text") from None
    except Damaged as error:
        raise RunError(f"{path} is damaged: {error}") from None
    rows = text.split("\n")[:-1]  # what comes after the last line break is empty, or half a row
    try:
        header = parse_json(rows[0].removeprefix("#"))
        if not rows[0].startswith("#") or "t_start" not in header or not rows[1].startswith("r,l,t"):
            raise ValueError
    except (IndexError, TypeError, ValueError):
        raise RunError(f"{path} is damaged: it does not begin as a Monitor file does") from None
    return rows


@dataclass(frozen=True)
class Summary:
    """The result of a run in a few figures. Where there are test episodes, the returns are theirs.

    :param episodes: of training.
    :param steps: of training.
    :param test_episodes: without noise, and not learned from; 0 in a run without them.
    :param mean_return: over the last ``last_episodes`` episodes; ``None`` before the first episode has ended.
    :param best_average: highest value of the moving average.
    :param seconds: time spent on training and testing, interruptions not counted.
    """

    episodes: int
    steps: int
    test_episodes: int
    mean_return: float | None
    last_episodes: int
    best_average: float | None
    seconds: float
    ms_per_step: float | None


@dataclass(frozen=True)
class OfflineSummary:
    """The result of a run that learned from a journal.

    :param epochs: that were learned.
    :param seconds: that took.
    :param test_episodes: that were played afterwards.
    :param mean_return: of these; ``None``: there were none.
    """

    epochs: int
    seconds: float
    test_episodes: int
    mean_return: float | None


def summarize(episodes: Episodes, steps: int, seconds: float, tests: Episodes | None = None) -> Summary:
    """:param tests: the test episodes, where there are any."""
    shown = tests or episodes
    last = shown.returns[-_LAST:]
    return Summary(
        episodes=len(episodes),
        steps=steps,
        test_episodes=len(tests or ()),
        mean_return=sum(last) / len(last) if last else None,
        last_episodes=len(last),
        best_average=shown.best_average,
        seconds=round(seconds, 3),
        ms_per_step=round(1000.0 * seconds / steps, 4) if steps else None,
    )
