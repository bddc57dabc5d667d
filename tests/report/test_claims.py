"""Verdicts on the paper's claims are computed, by the rules of benchmarks/replication/PROTOCOL.md."""

from pathlib import Path

import numpy as np
import pytest
from made_up import run

from bdpi.report.statistics import bootstrap_difference
from bdpi.runs.results import StoredRun, write_archive
from replication import pages
from replication.claims import CLAIMS, Claim, Comparison, Measured, Series, Verdict
from replication.curves import MARGINS

LAKE = "FrozenLake"
OURS, OTHER = Series("BDPI", LAKE), Series("PPO", LAKE)
MARGIN = MARGINS[LAKE]


def measured(folder: Path, **levels: list[float]) -> Measured:
    """Runs whose returns are always the same, by series."""
    runs: list[StoredRun] = [
        run(np.full(300, level), series=series, seed=seed)
        for series, each in levels.items()
        for seed, level in enumerate(each)
    ]
    (folder / "figure2").mkdir()
    write_archive(folder / "figure2", "made up", runs)
    return Measured("text", folder)


@pytest.mark.parametrize(
    ("kind", "ours", "others", "verdict"),
    [
        ("better", [0.6, 0.7] * 4, [0.1, 0.2] * 4, Verdict.CONFIRMED),
        ("better", [0.1, 0.2] * 4, [0.6, 0.7] * 4, Verdict.REFUTED),
        ("better", [0.1, 0.7] * 4, [0.2, 0.6] * 4, Verdict.UNDECIDED),
        ("better", [0.6, 0.7, 0.65], [0.1, 0.2, 0.15], Verdict.UNDECIDED),  # too few runs for an interval
        ("sooner", [0.6, 0.7] * 4, [0.1, 0.2] * 4, Verdict.CONFIRMED),
        ("as good", [0.5, 0.5 + MARGIN / 4] * 4, [0.5] * 8, Verdict.CONFIRMED),
        ("as good", [0.5 + 2 * MARGIN, 0.5 + 3 * MARGIN] * 4, [0.5] * 8, Verdict.REFUTED),
        ("as good", [0.5, 0.5 + 3 * MARGIN] * 4, [0.5] * 8, Verdict.UNDECIDED),
        ("learns", [0.5, 0.6] * 4, None, Verdict.CONFIRMED),
        ("learns", [0.0, 0.1] * 4, None, Verdict.REFUTED),
        ("fails", [0.0, 0.1] * 4, None, Verdict.CONFIRMED),
        ("fails", [0.5, 0.6] * 4, None, Verdict.REFUTED),
        ("fails", [0.0, 0.9] * 2, None, Verdict.UNDECIDED),
        ("better", [0.5] * 8, [], Verdict.UNMEASURED),
    ],
)
def test_the_interval_decides(
    tmp_path: Path, kind: str, ours: list[float], others: list[float] | None, verdict: Verdict
) -> None:
    found = measured(tmp_path, BDPI=ours, PPO=others or [])
    comparison = Comparison(kind, OURS, None if others is None else OTHER)
    assert comparison.evaluate(found).verdict is verdict


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        (("better", "learns"), Verdict.CONFIRMED),
        (("better", "fails"), Verdict.REFUTED),
        (("better", "unknown"), Verdict.UNDECIDED),
        (("unknown",), Verdict.UNMEASURED),
    ],
)
def test_a_claim_is_as_good_as_all_its_comparisons(tmp_path: Path, kinds: tuple[str, ...], verdict: Verdict) -> None:
    found = measured(tmp_path, BDPI=[0.6, 0.7] * 4, PPO=[0.1, 0.2] * 4)
    known = {
        "better": Comparison("better", OURS, OTHER),
        "learns": Comparison("learns", OURS),
        "fails": Comparison("fails", OURS),
        "unknown": Comparison("learns", Series("ACKTR", LAKE)),
    }
    claim = Claim("Algorithms", "made up", tuple(known[kind] for kind in kinds))
    assert claim.evaluate(found).verdict is verdict


def test_a_difference_has_the_interval_of_both() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 0.0, 0.0])
    difference = bootstrap_difference(x, y)
    assert difference.value == 2.5
    assert 1.0 <= difference.low < 2.5 < difference.high <= 4.0
    assert difference.runs == 4
    wider = bootstrap_difference(x, np.array([-2.0, 2.0, -2.0, 2.0]))
    assert wider.high - wider.low > difference.high - difference.low


def test_every_comparison_is_on_the_page_of_its_panel() -> None:
    text, found = pages.pages(), Measured()
    for claim in CLAIMS:
        assert claim.text in text[pages.DOCS / "results.md"]
        for comparison in claim.comparisons:
            page = text.get(pages.PANELS / f"{pages.slug(*comparison.place)}.md")
            if page is not None:
                assert comparison.evaluate(found).what in page


def test_the_pages_are_what_the_results_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check"]) == 0, capsys.readouterr().err
