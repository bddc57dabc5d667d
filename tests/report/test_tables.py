"""The tables: how many runs each number has, the paper beside ours, and Markdown that stays a table."""

import itertools
import re

import numpy as np
import pytest
from made_up import LAKE, LANDER, TABLE, run, study

from bdpi.report.panels import rows_of
from bdpi.report.statistics import Estimate
from bdpi.report.tables import TextTable, estimate_text, markdown, tables_of, unfinished
from bdpi.runs.results import StoredRun


def table(runs: list[StoredRun], title: str, row: int = 0) -> list[dict[str, str]]:
    (found,) = [each for each in tables_of(rows_of(runs)[row]) if each.title == title]
    return [dict(zip(found.columns, line, strict=True)) for line in found.rows]


def test_returns_have_intervals_and_say_how_many_runs_they_have() -> None:
    lines = {(line["environment"], line["series"]): line for line in table(study(), "Returns")}
    assert set(lines) == {(environment, name) for environment in (LAKE, LANDER) for name in ("BDPI", "PPO")}
    assert lines[LAKE, "BDPI"]["runs"] == lines[LAKE, "PPO"]["runs"] == "4 of 5"
    assert lines[LANDER, "BDPI"]["runs"] == "4"
    runs = [each.returns for each in study() if each.place.row == "algorithms" and each.status == "finished"]
    ours = [returns for returns in runs if len(returns) == 60][::4]  # BDPI on the lake comes first of four
    means = [returns.mean() for returns in ours]
    every = [np.mean(drawn) for drawn in itertools.product(means, repeat=4)]
    low, high = np.percentile(every, (2.5, 97.5))
    expected = f"{np.mean(means):.2f} [{low:.2f}, {high:.2f}]"
    assert lines[LAKE, "BDPI"]["mean, all episodes"] == expected


def test_the_papers_means_are_over_the_same_episodes_and_it_is_said_where_its_curve_is_shorter() -> None:
    for n, changes, whole, last in (
        (1000, {}, "0.54", "0.60"),
        (60, {}, "0.0", "0."),  # the paper's agents have learned nothing by then
        (1000, {"row": "noise", "series": "BDPI+noise"}, "0.52 (0 to 456)", "–"),
        (900, {"row": "critics", "environment": LANDER, "series": "16x16"}, "", ""),
    ):
        (line,) = table([run(np.zeros(n), **changes)], "Returns")
        assert line["paper, all episodes"].startswith(whole)
        assert line["paper, last 10 %"].startswith(last)
    assert line["paper, all episodes"].endswith("(64 to 899)")


def test_thresholds_are_reached_by_the_mean_curve_and_by_runs() -> None:
    late = [0.0] * 100 + [1.0] * 200
    runs = [run(late, seed=0), run(late, seed=1), run([0.0] * 300, seed=2), run([], seed=3, status="failed")]
    (line,) = table(runs, "Episodes to a threshold")
    assert line == {
        "environment": LAKE,
        "series": "BDPI",
        "threshold": "0.50",
        "runs": "3 of 4",
        "episodes": "300",
        # over 51 episodes, of which 25 come later, 2/3 (1 - 0.85^k) has a mean of 1/2 and more
        "mean curve": "119",
        "paper's curve": "146",
        "runs that reach it": "2 of 3",
        "median run": "105",
    }


def test_runs_reach_a_threshold_within_their_own_episodes() -> None:
    """The mean curve cannot: it ends with the shortest run."""
    late = [0.0] * 100 + [1.0] * 100
    runs = [run(late, seed=0), run(late, seed=1), run([0.0] * 40, seed=2, status="running")]
    (line,) = table(runs, "Episodes to a threshold")
    assert (line["episodes"], line["mean curve"]) == ("40", "not within 40")
    assert (line["runs that reach it"], line["median run"]) == ("2 of 3 (40 to 200 episodes)", "105")
    (line,) = table(runs[1:], "Episodes to a threshold")
    assert line["median run"] == "not reached"
    (line,) = table([run([0.0] * 200 + [1.0] * 10 + [0.0] * 200)], "Episodes to a threshold")
    assert line["mean curve"] == "not within 410"  # a short peak reaches none
    titles = [each.title for each in tables_of(rows_of([run([1.0], environment="CartPole-v1")])[0])]
    assert titles == ["Returns"]  # it has no threshold


# From the curves that were recovered, averaged over a twentieth of their episodes.
@pytest.mark.parametrize(
    ("row", "environment", "series", "episodes"),
    [
        ("algorithms", LANDER, "ABCDQN", ["never", "never"]),
        ("algorithms", LANDER, "BDPI", ["159", "849"]),
        ("algorithms", LAKE, "ABCDQN", ["458"]),
        ("algorithms", LAKE, "BootstrappedDQN", ["616"]),
        ("algorithms", TABLE, "BDPI", ["104"]),
        ("critics", "Hallway-v0", "1x1", ["275"]),
        ("noise", LANDER, "BDPI+noise", ["168", "847"]),
        ("pendulum", "Pendulum-v1", "SAC", ["110"]),
    ],
)
def test_a_peak_of_the_papers_curve_is_not_enough(row: str, environment: str, series: str, episodes: list[str]) -> None:
    lines = table([run(np.zeros(20), row=row, environment=environment, series=series)], "Episodes to a threshold")
    assert [line["paper's curve"] for line in lines] == episodes


def test_improvement_is_over_the_episodes_that_both_have() -> None:
    rising, flat = np.arange(100.0), np.full(50, 30.0)
    runs = [*(run(rising, seed=seed) for seed in range(4)), *(run(flat, series="PPO", seed=seed) for seed in range(4))]
    (line,) = table(runs, "Probability of improvement")
    assert (line["comparison"], line["runs"], line["episodes"]) == ("BDPI over PPO", "4 and 4", "50")
    assert line["all episodes"] == "0.00 [0.00, 0.00]"  # 24.5 against 30, but 49.5 over all of its 100 episodes
    assert line["last 10 %"] == "1.00 [1.00, 1.00]"
    lines = table(study(), "Probability of improvement")  # also over all environments
    assert [line["environment"] for line in lines] == [LANDER, LAKE, "all of these"]
    assert (lines[-1]["runs"], lines[-1]["episodes"]) == ("8 and 8", "60")
    runs = [
        run(np.arange(float(n)), environment=environment, series=series, seed=seed)
        for environment, n in ((LAKE, 100), (LANDER, 59))
        for series in ("BDPI", "PPO")
        for seed in range(2)
    ]
    assert [line["episodes"] for line in table(runs, "Probability of improvement")] == ["59", "100", "59 to 100"]


def test_every_pair_is_compared_where_there_are_more_than_two() -> None:
    runs = [
        run(np.full(20, value) + seed, series=name, seed=seed)
        for name, value in (("BDPI", 9.0), ("PPO", 0.0), ("ACKTR", 5.0), ("ABCDQN", 5.0))
        for seed in range(4)
    ] + [run([], series="ActorMimic")]
    lines = {line["over all episodes"]: line for line in table(runs, "Probability of improvement, every pair")}
    assert set(lines) == {"BDPI", "PPO", "ACKTR", "ABCDQN"}
    assert lines["BDPI"]["over PPO"] == "1.00 [1.00, 1.00]"
    assert lines["PPO"]["over BDPI"] == "0.00 [0.00, 0.00]"
    assert lines["ACKTR"]["over ABCDQN"].startswith("0.50 [")
    assert lines["PPO"]["over PPO"] == ""


def test_runs_that_are_not_finished_are_listed() -> None:
    found = unfinished(rows_of(study()))
    assert found.rows == (
        ("Algorithms", LAKE, "BDPI", "failed: ValueError: the arm is stuck", "no", "4", "7"),
        ("Algorithms", LAKE, "PPO", "running", "no", "4", "0"),
    )


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.543, 0.4, 0.671, 8), "0.54 [0.40, 0.67]"),
        (Estimate(-0.001, -12.34, 0.001, 8), "0.00 [-12.3, 0.00]"),
        (Estimate(3.0, float("nan"), float("nan"), 1), "3.00"),
        (Estimate(float("nan"), float("nan"), float("nan"), 0), "–"),
    ],
)
def test_estimates_are_written_for_people(estimate: Estimate, text: str) -> None:
    assert estimate_text(estimate) == text


def test_markdown_stays_a_table_whatever_names_are_in_it() -> None:
    runs = [run([1.0, 2.0], series="a|b `c` <i>", environment=TABLE, seed=seed) for seed in range(2)]
    for each in tables_of(rows_of(runs)[0]):
        lines = [line for line in markdown(each).splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(each.rows)
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(each.columns) + 1}
    assert "a\\|b \\`c\\` \\<i\\>" in markdown(tables_of(rows_of(runs)[0])[0])
    text = markdown(TextTable("Title", ("name", "value"), 1, (("a", "1"),), "Note."))
    assert text == "### Title\n\n| name | value |\n| :--- | ---: |\n| a | 1 |\n\nNote.\n"
