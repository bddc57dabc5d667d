"""Verdicts on the paper's curves are computed, by the rules of benchmarks/replication/PROTOCOL.md."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import run

from bdpi.report.panels import StoredSeries
from bdpi.report.paper import paper_curve
from bdpi.runs.results import StoredRun
from replication.curves import MARGINS, Counterpart, counterparts

LAKE = paper_curve("algorithms", "FrozenLake8x8-v1", "BDPI")
MARGIN = MARGINS["FrozenLake"]


def found(above: list[float], episodes: int = 1000) -> Counterpart:
    """Runs that end so far above the paper's curve."""
    assert LAKE is not None
    level = LAKE.mean(0.9 * episodes, episodes)
    runs = [run(np.full(episodes, level + each), seed=100 + n) for n, each in enumerate(above)]
    return Counterpart(LAKE, StoredSeries("BDPI", tuple(made_by(one, {}) for one in runs)))


def made_by(one: StoredRun, versions: dict[str, str]) -> StoredRun:
    """The run, with other versions than a clean commit's."""
    status = one.record.status.model_copy(update={"versions": {"commit": "abc", "learning": "one", **versions}})
    return replace(one, record=replace(one.record, status=status))


@pytest.mark.parametrize(
    ("above", "verdict"),
    [
        ([0.0, 0.01] * 4, "as in the paper"),
        ([2 * MARGIN, 3 * MARGIN] * 4, "higher"),
        ([-2 * MARGIN, -3 * MARGIN] * 4, "lower"),
        ([0.0, 3 * MARGIN] * 4, "undecided (8 runs)"),
        ([0.0] * 3, "too few runs (3)"),
    ],
)
def test_the_interval_and_the_margin_decide(above: list[float], verdict: str) -> None:
    assert found(above).verdict == verdict


def test_what_a_curve_lacks_is_named() -> None:
    whole = found([0.0] * 8)
    assert whole.state == "complete"
    assert "episodes" in "".join(found([0.0] * 8, episodes=500).lacks)
    assert "7 of 8" in "".join(found([0.0] * 7).lacks)
    runs = whole.series.used  # type: ignore[union-attr]
    for versions, lack in (({"commit": "abc-dirty"}, "clean commits"), ({"learning": "other"}, "one fingerprint")):
        first = made_by(runs[0], versions)
        assert Counterpart(LAKE, StoredSeries("BDPI", (first, *runs[1:]))).lacks == [lack]  # type: ignore[arg-type]
    assert Counterpart(LAKE, None).state == "missing"  # type: ignore[arg-type]


def test_there_are_59_curves() -> None:
    assert len({(each.paper.row, each.paper.environment, each.paper.series) for each in counterparts()}) == 59
