"""The curves of the live page, as those of a report are described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bdpi.report.page_curves import RUN, Lines, lines_data, values_lines

#: Episodes, and points of a curve; the latest.
SHOWN = 500
#: What is drawn over steps: title, and what it is.
POINTS = {
    "rewards": ("Reward", "per step"),
    "entropy": ("Entropy", "of the policy, bits"),
    "disagreement": ("Disagreement", "of the critics"),
}


def live_curves(
    returns: Sequence[float],
    episodes: int,
    points: Mapping[str, Sequence[tuple[int, float]]],
    values: Sequence[tuple[int, float, float]],
) -> dict[str, Any]:
    """A row of panels.

    :param returns: of the latest episodes
    :param episodes: that have ended in all
    :param points: steps, and what was found there, by the names in :data:`POINTS`
    :param values: step, what critics expect, and what followed
    """
    first = episodes - len(returns) + 1
    panels = [Lines("returns", "Return", "episode", "", {RUN: (range(first, episodes + 1), returns)}, _start([first]))]
    for name, (title, y) in POINTS.items():
        steps, found = [*zip(*points[name], strict=True)] or ((), ())
        panels.append(Lines(name, title, "step", y, {RUN: (steps, found)}, _start(steps)))
    steps, expected, followed = [*zip(*values, strict=True)] or ((), (), ())
    panels.append(values_lines(steps, expected, followed, _start(steps)))
    return lines_data("curves", "Learning", panels)


def _start(x: Sequence[float]) -> float:
    """A curve that begins late is shown from there on."""
    return x[0] if len(x) and x[0] > 1 else 0
