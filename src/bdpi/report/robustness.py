"""Robustness to hyper-parameters, as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bdpi.report import style
from bdpi.report.configurations import Algorithm, Comparison
from bdpi.report.figure import TEXT_COLOUR, beside, decorate, literal, new_figure, save_figure
from bdpi.report.sensitivity import (
    Importance,
    best_of_others,
    configurations_needed,
    importances,
    sensitivity,
    share_above,
)
from bdpi.report.statistics import Estimate
from bdpi.report.tables import NONE, TextTable, estimate_text
from bdpi.runs.formatting import number

#: S in the paper, on LunarLander, from 800 episodes and more than 2000 configurations of each.
PAPER = {"PrioritizedDuelingDQN": 930, "BDPI": 1167, "DQN": 1326, "A2C": 2369, "PPO": 2452, "ACKTR": 5815}
_BEST = 5  # configurations that are listed
_COLUMNS = 3  # of the figure of importances


@dataclass(frozen=True)
class Robustness:
    """What a report says about robustness.

    :param tables: empty without runs whose configuration was drawn
    :param pictures: PNG files, by the name of what they show
    """

    tables: Sequence[TextTable] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def write_robustness(comparisons: Sequence[Comparison], folder: Path) -> tuple[Robustness, list[Path]]:
    """Draw what can be drawn: ``robustness.png`` from the first finished run on, ``importance.png`` from the third one
    of an algorithm; both as PDF, too.

    :return: also the files that were written
    """
    algorithms = [algorithm for comparison in comparisons for algorithm in comparison.algorithms]
    pictures, written = {}, []
    for name, draw, possible in (
        ("robustness", draw_robustness, any(len(algorithm.scores) for algorithm in algorithms)),
        ("importance", draw_importances, any(importances(algorithm, 1) for algorithm in algorithms)),
    ):
        if possible:
            paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
            draw(comparisons, paths)
            pictures[name] = paths[0].read_bytes()
            written += paths
    return Robustness(robustness_tables(comparisons), pictures), written


def robustness_tables(comparisons: Sequence[Comparison]) -> list[TextTable]:
    """Scores and sensitivities, what matters, the best configurations; tables that would be empty are left out."""
    tables = (_scores(comparisons), _importances(comparisons), _best(comparisons))
    return [table for table in tables if table.rows]


def _scores(comparisons: Sequence[Comparison]) -> TextTable:
    lines = []
    for comparison in comparisons:
        for algorithm in comparison.algorithms:
            found = sensitivity(algorithm.points, algorithm.scores)
            needed = configurations_needed(found)
            lines.append(
                (
                    comparison.title,
                    algorithm.name,
                    _count(algorithm),
                    estimate_text(found),
                    NONE if needed is None else str(needed),
                    _papers(comparison, algorithm),
                    *(_quantile(algorithm, q) for q in (1.0, 0.5, 0.0)),
                    *_share(comparison, algorithm),
                )
            )
    return TextTable(
        "Total reward and sensitivity",
        (
            *("environment", "algorithm", "configurations", "S", "needed for ± 10 %", "S in the paper"),
            *("best", "median", "worst", "better than the best other", "which is of"),
        ),
        2,
        tuple(lines),
        "The score of a configuration is the sum of its returns. S is the mean difference of the scores of two "
        "configurations, weighted by the inverse of their distance in normalised index space; brackets hold 95 % "
        "bootstrap intervals over configurations, and the column after it says how many configurations would make "
        "them as narrow as ± 10 %. The paper does not say how it measures distances, so that its S can be compared in "
        "its order at most. A low S is no merit where all configurations are equally bad: see the scores. The share "
        "of configurations that are better than the best one of all other algorithms has Wilson's 95 % interval.",
    )


def _count(algorithm: Algorithm) -> str:
    counted = len(algorithm.scores)
    if counted == algorithm.n_drawn:
        return str(counted)
    return f"{counted} of {algorithm.n_drawn} ({algorithm.unfinished})"


def _papers(comparison: Comparison, algorithm: Algorithm) -> str:
    on_lander = style.environment_title(comparison.environment) == "LunarLander"
    return str(PAPER[algorithm.name]) if on_lander and algorithm.name in PAPER else NONE


def _quantile(algorithm: Algorithm, q: float) -> str:
    return number(float(np.quantile(algorithm.scores, q))) if len(algorithm.scores) else NONE


def _share(comparison: Comparison, algorithm: Algorithm) -> tuple[str, str]:
    name, best = best_of_others(comparison.algorithms, algorithm.name)
    share = share_above(algorithm.scores, best)
    if math.isnan(share.value):
        return NONE, NONE
    percent = Estimate(100 * share.value, 100 * share.low, 100 * share.high, share.runs)
    return f"{percent.value:.0f} % [{percent.low:.0f}, {percent.high:.0f}]", name


def _importances(comparisons: Sequence[Comparison]) -> TextTable:
    lines = [
        (
            comparison.title,
            algorithm.name,
            each.parameter,
            each.best,
            f"{100 * each.share:.1f} %",
            f"{100 * each.chance:.1f} %",
            "yes" if each.matters else "no",
        )
        for comparison in comparisons
        for algorithm in comparison.algorithms
        for each in importances(algorithm)
    ]
    return TextTable(
        "Which hyper-parameter matters",
        (
            "environment",
            "algorithm",
            "hyper-parameter",
            "best value",
            "share of the variance",
            "chance",
            "more than it",
        ),
        4,
        tuple(lines),
        "Share of the variance of the scores that lies between the values of one hyper-parameter. One that has no "
        "influence stays below chance in 95 % of all cases, by permutation. What is in no share are interactions and "
        "the luck of single runs. The best value is that with the highest mean score.",
    )


def _best(comparisons: Sequence[Comparison]) -> TextTable:
    lines = []
    for comparison in comparisons:
        for algorithm in comparison.algorithms:
            for rank, run in enumerate(np.argsort(-algorithm.scores, kind="stable")[:_BEST]):
                settings = zip(algorithm.parameters, algorithm.indices[run], strict=True)
                text = ", ".join(f"{name}={algorithm.labels[name, int(index)]}" for name, index in settings)
                cells = (comparison.title, algorithm.name, str(algorithm.numbers[run]), text)
                lines.append((*cells, str(rank + 1), number(float(algorithm.scores[run]))))
    return TextTable(
        "The best configurations",
        ("environment", "algorithm", "number", "configuration", "rank", "total reward"),
        4,
        tuple(lines),
        "One run each: the best of many was lucky, too, and another seed would give it less.",
    )


def draw_robustness(comparisons: Sequence[Comparison], paths: Sequence[Path]) -> None:
    """Draw the total rewards of all configurations, sorted, best first; one panel per environment.

    As in the paper, the curves are stretched to a common axis: algorithms may have different numbers of configurations.

    :raises ValueError: when no run is finished.
    """
    shown = [c for c in comparisons if any(len(algorithm.scores) for algorithm in c.algorithms)]
    if not shown:
        raise ValueError("no run is finished, so there are no scores to draw")
    figure = new_figure(max(7.0, 5.2 * len(shown)), 4.2)
    for axes, comparison in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        colours = style.colours([algorithm.name for algorithm in comparison.algorithms])
        for algorithm in comparison.algorithms:
            n = len(algorithm.scores)
            if n:
                axes.plot(
                    stretched(n),
                    np.sort(algorithm.scores)[::-1],
                    color=colours[algorithm.name][0],
                    linewidth=1.7,
                    marker="." if n == 1 else None,
                    label=f"{literal(algorithm.name)} ({n})",
                )
        decorate(axes, comparison.title)
        axes.set_xlim(0, 100)
        axes.set_xlabel("configurations, the best first (% of all)", color=TEXT_COLOUR, fontsize=9)
        axes.set_ylabel("total reward", color=TEXT_COLOUR, fontsize=9)
        beside(axes, "algorithm (configurations)")
    save_figure(figure, paths)


def stretched(n: int) -> Any:
    """Where n sorted configurations are on an axis from 0 to 100: the first at one end, the last at the other."""
    return np.linspace(0.0, 100.0, n)


def draw_importances(comparisons: Sequence[Comparison], paths: Sequence[Path]) -> None:
    """Draw how much each hyper-parameter matters: bars, and a mark up to which chance alone would go.

    :raises ValueError: when there are too few configurations.
    """
    panels: list[tuple[str, str, list[Importance]]] = []
    for comparison in comparisons:
        colours = style.colours([algorithm.name for algorithm in comparison.algorithms])
        # Titles are short where they can be: panels are narrow.
        place = f", {style.environment_title(comparison.environment)}" if len(comparisons) > 1 else ""
        for algorithm in comparison.algorithms:
            found = importances(algorithm)
            if found:
                title = f"{algorithm.name} ({len(algorithm.scores)}){place}"
                panels.append((title, colours[algorithm.name][0], found))
    if not panels:
        raise ValueError("there are too few configurations to say which hyper-parameter matters")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    tallest = max(len(found) for _, _, found in panels)
    figure = new_figure(max(7.0, 4.0 * columns), rows * (0.75 + 0.26 * tallest) + 0.3)
    every = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    widest = max(max(each.share, each.chance) for _, _, found in panels for each in found)
    for axes, (title, colour, found) in zip(every, panels, strict=False):
        places = np.arange(len(found))
        axes.barh(places, [100 * each.share for each in found], color=colour, height=0.62)
        chances = [100 * each.chance for each in found]
        axes.vlines(chances, places - 0.42, places + 0.42, color=TEXT_COLOUR, linewidth=1.2)
        decorate(axes, title)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(places, [each.parameter for each in found])
        axes.set_ylim(tallest - 0.4, -0.6)
        axes.set_xlim(0, 105 * widest)
        axes.set_xlabel("share of the variance, %", color=TEXT_COLOUR, fontsize=9)
    figure.supxlabel(
        "Marks: a hyper-parameter without influence stays to the left of them in 95 % of all cases.",
        x=0.01,
        ha="left",
        color="#777777",
        fontsize=8,
    )
    save_figure(figure, paths)
