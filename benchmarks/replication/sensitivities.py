"""The paper's S of random configurations, and S by other readings of what the paper leaves open.

How could its 1,167 come about? Pairs may contain a configuration twice, and the weight of such a pair needs an ε: it is
1/ε, and its scores do not differ. Of random pairs among n configurations, one in n is such a pair.
"""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from bdpi.report.configurations import Algorithm
from bdpi.report.robustness import PAPER
from bdpi.report.sensitivity import sensitivity
from bdpi.report.tables import estimate_text
from bdpi.runs.formatting import number
from replication.claims import Measured
from replication.curves import table

PAPERS_CONFIGURATIONS = 2_000
EPSILONS = (1.0, 0.1, 0.01, 0.001, 0.0001)

HEAD = """S of random configurations on LunarLander, as the protocol has it (distance in index space), and by other
readings: with raw values as coordinates; divided by the mean absolute difference of two scores, which takes the scale
of the scores out of it; and with 1/(distance + ε) as the weight, of pairs in which a configuration may meet itself as
often as among {configurations:,} of them. {episodes} episodes; the paper has 800. *ε of the paper's S* is where that
last reading gives what the paper says.

"""


def sensitivities(measured: Measured) -> str:
    """A table, a line for each algorithm."""
    lines = []
    for each in measured.configurations:
        plain = measured.sensitivities[each.name]
        raw = sensitivity(raw_points(each), each.scores)
        apart = np.abs(each.scores[:, None] - each.scores)[np.triu_indices(len(each.scores), 1)].mean()
        selves = [with_selves(each, epsilon) for epsilon in EPSILONS]
        papers = PAPER[each.name]
        lines.append(
            [
                each.name,
                str(len(each.scores)),
                estimate_text(plain),
                estimate_text(raw),
                f"{plain.value / apart:.2f}",
                *(number(value) for value in selves),
                number(papers),
                papers_epsilon(each, papers),
            ]
        )
    episodes = {run.config.episodes or 0 for run in measured.robustness}
    columns = (
        "algorithm",
        "runs",
        "S",
        "S, raw values",
        "S / mean difference",
        *(f"S, ε = {each:g}" for each in EPSILONS),
        "paper",
        "ε of the paper's S",
    )
    text = HEAD.format(configurations=PAPERS_CONFIGURATIONS, episodes=" or ".join(map(str, sorted(episodes))))
    return text + table(columns, lines)


def raw_points(algorithm: Algorithm) -> NDArray[np.float64]:
    """Coordinates are the values themselves; of networks the units of a layer."""
    columns = [
        [_value(algorithm.labels[name, index]) for index in algorithm.indices[:, column]]
        for column, name in enumerate(algorithm.parameters)
    ]
    return np.array(columns).T


def _value(label: str) -> float:
    found = re.search(r"-?\d[\d.]*(e-?\d+)?", label)
    if found is None:
        raise ValueError(f"{label!r} has no number")
    return float(found[0])


def with_selves(algorithm: Algorithm, epsilon: float) -> float:
    """S over random pairs in which a configuration may meet itself."""
    points, scores = algorithm.points, algorithm.scores
    distances = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    others = ~np.eye(len(scores), dtype=bool)
    weights = 1 / (distances[others] + epsilon)
    changes = np.abs(scores[:, None] - scores)[others]
    share = 1 / PAPERS_CONFIGURATIONS
    return float((1 - share) * (weights * changes).mean() / ((1 - share) * weights.mean() + share / epsilon))


def papers_epsilon(algorithm: Algorithm, papers: float) -> str:
    """Where S with self-pairs is the paper's, found by bisection: S falls with ε."""
    low, high = -12.0, 1.0  # powers of ten
    if not with_selves(algorithm, 10**low) < papers < with_selves(algorithm, 10**high):
        return "none"
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if with_selves(algorithm, 10**middle) < papers else (low, middle)
    return f"{10 ** math.floor(low) * round(10 ** (low - math.floor(low)), 1):.2g}"
