"""Runs with random configurations become points in a space, each with a score: its total reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.report import style
from bdpi.report.panels import shared_length
from bdpi.runs.errors import RunError
from bdpi.runs.results import StoredRun


@dataclass(frozen=True)
class Algorithm:
    """The finished runs of one algorithm, which differ in their configuration.

    :param name: ``"BDPI"``
    :param parameters: names of the hyper-parameters that were drawn
    :param sizes: how many values each of them has
    :param indices: which of the values each run has, (runs, parameters)
    :param scores: sum of the returns of each run
    :param labels: text of each value that was drawn, by parameter and index
    :param n_drawn: how many runs there are, those that are not finished included
    :param numbers: which configurations these are
    :param unfinished: ``"1 failed, 2 running"``; empty where all are finished
    """

    name: str
    parameters: tuple[str, ...]
    sizes: tuple[int, ...]
    indices: NDArray[np.int64]
    scores: NDArray[np.float64]
    labels: dict[tuple[str, int], str]
    n_drawn: int
    numbers: tuple[int, ...] = ()
    unfinished: str = ""

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """The runs in normalised index space, (runs, parameters).

        The first of the values of a hyper-parameter is at 0, the last one at 1, and the others are spread evenly
        between them. A learning rate of 0.0001 is then as far from 0.00005 as from 0.0005, and no hyper-parameter
        counts more than another because its numbers are larger.
        """
        return self.indices / np.maximum(np.array(self.sizes, np.float64) - 1.0, 1.0)


@dataclass(frozen=True)
class Comparison:
    """The algorithms of a study in one environment.

    :param environment: Gymnasium id
    :param n_episodes: scores are sums over these first episodes of each run
    :param algorithms: in the order of the legend; some may not have a finished run yet
    """

    study: str
    environment: str
    n_episodes: int
    algorithms: tuple[Algorithm, ...]

    @property
    def title(self) -> str:
        """``"LunarLander, 800 episodes"``."""
        return f"{style.environment_title(self.environment)}, {self.n_episodes} episodes"


def is_drawn(run: StoredRun) -> bool:
    """Whether the configuration of a run was drawn from a space."""
    return bool(_drawn(run))


def _drawn(run: StoredRun) -> dict[str, tuple[int, int]]:
    return run.record.status.configuration or {}


def comparisons_of(runs: Sequence[StoredRun]) -> list[Comparison]:
    """Sort runs by study and environment, then by algorithm.

    Only finished runs have a score. Where some of them are longer than others, as when a study is repeated with more
    episodes, the episodes that all have are counted.

    :param runs: those whose configuration was not drawn are left aside.
    :raises RunError: when the runs of an algorithm come from different spaces
    """
    grouped: dict[tuple[str, str], dict[str, list[StoredRun]]] = {}
    for run in runs:
        if is_drawn(run):
            place = run.place
            grouped.setdefault((place.study, place.environment), {}).setdefault(place.series, []).append(run)
    rank = {name: number for number, name in enumerate(style.ordered_environments({key[1] for key in grouped}))}
    comparisons = []
    for study, environment in sorted(grouped, key=lambda key: (key[0], rank[key[1]])):
        series = grouped[study, environment]
        lengths = (len(run.returns) for group in series.values() for run in group if run.status == "finished")
        n_episodes = shared_length(lengths)
        algorithms = tuple(_algorithm(name, series[name], n_episodes) for name in style.ordered_series(series))
        comparisons.append(Comparison(study, environment, n_episodes, algorithms))
    return comparisons


def _algorithm(name: str, runs: Sequence[StoredRun], n_episodes: int) -> Algorithm:
    finished = [run for run in runs if run.status == "finished" and len(run.returns)]
    statuses = Counter(
        "without episodes" if run.status == "finished" else run.status
        for run in runs
        if run.status != "finished" or not len(run.returns)
    )
    spaces = {tuple((p, size) for p, (_, size) in sorted(_drawn(run).items())) for run in runs}
    if len(spaces) > 1:
        raise RunError(f"the runs of {name} were drawn from {len(spaces)} different spaces: keep them in two folders")
    first = _drawn(runs[0])
    parameters, sizes = tuple(first), tuple(size for _, size in first.values())
    indices = [[_drawn(run)[parameter][0] for parameter in parameters] for run in finished]
    labels = {
        (parameter, index): _label(run, parameter)
        for run, row in zip(finished, indices, strict=True)
        for parameter, index in zip(parameters, row, strict=True)
    }
    return Algorithm(
        name,
        parameters,
        sizes,
        np.array(indices, np.int64).reshape(len(finished), len(parameters)),
        np.array([run.returns[:n_episodes].sum() for run in finished], np.float64),
        labels,
        len(runs),
        tuple(run.place.seed for run in finished),
        ", ".join(f"{n} {status}" for status, n in sorted(statuses.items())),
    )


def _label(run: StoredRun, parameter: str) -> str:
    settings: dict[str, Any] = {**run.config.hyperparameters, **run.config.policy_kwargs}
    value = settings.get(parameter, "?")
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
