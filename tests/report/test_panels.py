"""Runs become rows, panels and series; unfinished runs do no harm."""

import numpy as np
import pytest
from made_up import LAKE, LANDER, run, study

from bdpi.report.panels import rows_of, shared_length
from bdpi.report.style import COLOURS, colours, ordered_series, subject


def test_rows_panels_and_series_come_in_the_papers_order() -> None:
    rows = rows_of(reversed(study()))
    assert [row.title for row in rows] == ["Algorithms", "Critics", "Noise", "Entropy"]
    assert [panel.environment for panel in rows[0].panels] == [LANDER, LAKE]
    assert rows[0].series == ("BDPI", "PPO")
    assert rows[1].series == ("1x1", "16x16")
    assert [stored.place.seed for stored in rows[0].panels[1].series[0].runs] == [0, 1, 2, 3, 4]


def test_numbers_in_names_are_ordered_as_numbers() -> None:
    assert ordered_series(["N_t = 16", "N_t = 8", "BDPI"]) == ("BDPI", "N_t = 8", "N_t = 16")
    rows = rows_of([run([1.0], study="a"), run([1.0], study="b"), run([1.0], study="b", row="")])
    assert [row.title for row in rows] == ["Algorithms (a)", "Algorithms (b)", "B"]
    for names, expected in ((["ABCDQN", "BDPI"], "BDPI"), (["1x1", "16x16"], "16x16"), (["a", "b"], "a")):
        assert subject(names) == expected
    assert ordered_series(["16x16", "8x8", "16x8", "1x1"]) == ("1x1", "8x8", "16x8", "16x16")
    assert ordered_series(["δ = 0.1", "δ = 0.05", "δ = 0.01"]) == ("δ = 0.01", "δ = 0.05", "δ = 0.1")


@pytest.mark.parametrize(
    ("lengths", "episodes", "runs"),
    [
        ([1000] * 8, 1000, 8),
        ([1000] * 7 + [30], 30, 8),  # the shortest run may be the one that does not learn
        ([1000] + [990] * 7, 990, 8),
        ([10, 5], 5, 2),
        ([3, 0], 3, 1),
        ([0, 0], 0, 0),
        ([], 0, 0),
    ],
)
def test_numbers_come_from_the_episodes_that_all_runs_have(lengths: list[int], episodes: int, runs: int) -> None:
    assert shared_length(lengths) == episodes
    if lengths:
        ((panel,),) = [row.panels for row in rows_of(run(np.ones(n), seed=seed) for seed, n in enumerate(lengths))]
        (series,) = panel.series
        assert series.returns.shape == series.smoothed.shape == (runs, episodes)
        assert series.count == (str(runs) if runs == len(lengths) else f"{runs} of {len(lengths)}")


def test_a_run_that_failed_with_all_its_episodes_is_used() -> None:
    complete, half = (run([number] * number, seed=number, status="failed", episodes=4) for number in (4, 2))
    (row,) = rows_of([complete, half, run([1.0] * 4, seed=5)])
    assert [used.place.seed for used in row.panels[0].series[0].used] == [4, 5]
    runs = [run([1.0], seed=seed, status=status) for seed, status in enumerate(["finished", "failed", "running"])]
    assert rows_of(runs)[0].panels[0].series[0].unfinished == "1 failed, 1 running"
    (row,) = rows_of([run([1.0, 1.0], test_returns=np.array([5.0, 7.0]))])
    assert row.panels[0].series[0].returns.tolist() == [[5.0, 7.0]]  # tests are shown where there are any


def test_series_of_a_row_have_different_colours_as_long_as_there_are_any() -> None:
    names = ["BDPI", "PPO", "mine", "yours", "theirs"]
    assert len(set(colours(names).values())) == len(names)
    many = [f"agent {number}" for number in range(20)]
    assert set(colours(many).values()) == set(COLOURS)
    assert colours(["PPO", "BDPI"])["BDPI"] == colours(["BDPI", "x"])["BDPI"]
