"""Estimates and intervals, against values that were computed in another way."""

import itertools
import math
import statistics as standard
from typing import Any

import numpy as np
import pytest
from made_up import learned, run

from bdpi.report import statistics
from bdpi.report.panels import StoredSeries, rows_of

# Scores of two agents on two environments: (runs, environments).
X = np.array([[0.1, 12.0], [0.7, 8.0], [0.65, 9.5], [0.9, 30.0], [0.2, 11.0], [0.55, 10.0]])
Y = np.array([[0.3, 7.0], [0.1, 9.0], [0.6, 9.5], [0.05, 2.0], [0.2, 3.0]])


def series_of(*returns: Any) -> StoredSeries:
    (row,) = rows_of(run(each, seed=seed) for seed, each in enumerate(returns))
    return row.panels[0].series[0]


def interval(estimate: statistics.Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


# What rliable 1.2.0 says with 20 000 or more repetitions.
def test_estimates_are_those_of_rliable() -> None:
    assert interval(statistics.iqm([X[:, 0]])) == pytest.approx((0.525, 0.2375, 0.775), abs=0.03)
    assert interval(statistics.iqm([X[:, 0], X[:, 1]])) == pytest.approx((4.95833, 4.35, 5.925), abs=0.1)
    one, both = [(X[:, 0], Y[:, 0])], [(X[:, 0], Y[:, 0]), (X[:, 1], Y[:, 1])]
    assert interval(statistics.improvement(one)) == pytest.approx((0.766667, 0.433333, 1.0), abs=0.035)
    assert interval(statistics.improvement(both)) == pytest.approx((0.841667, 0.65, 0.975), abs=0.025)
    assert statistics.improvement(both).runs == 22


@pytest.mark.full
def test_rliable_itself_agrees_on_other_numbers() -> None:
    try:
        from rliable import library, metrics
    except Exception as error:  # with pandas 3, its dependency arch fails with a TypeError
        pytest.skip(f"rliable cannot be imported: {type(error).__name__}: {error}")
    generator = np.random.default_rng(5)
    x, y = generator.normal(1.0, 1.0, size=(7, 3)), generator.normal(0.5, 2.0, size=(9, 3))
    np.random.seed(1)  # noqa: NPY002 - it draws from the global generator, whatever it is given
    points, intervals = library.get_interval_estimates(
        {"x": x}, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=4000
    )
    expected = (points["x"][0], *intervals["x"][:, 0])
    assert interval(statistics.iqm(list(x.T))) == pytest.approx(expected, abs=0.06)
    points, intervals = library.get_interval_estimates(
        {"xy": (x, y)}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=4000
    )
    expected = (points["xy"][0], *intervals["xy"][:, 0])
    assert interval(statistics.improvement(list(zip(x.T, y.T, strict=True)))) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("values", [[1.0, 5.0, 2.0, 2.0], [0.0, 0.0, 1.0, 10.0], [3.0, 1.0, 4.0, 1.5, 9.0]])
def test_bootstrap_intervals_are_those_of_every_possible_sample(values: list[float]) -> None:
    """Few runs have few samples with replacement: all of them can be looked at."""
    cut = len(values) // 4
    samples = itertools.product(values, repeat=len(values))
    means = [standard.mean(sorted(sample)[cut : len(values) - cut]) for sample in samples]
    value, low, high = interval(statistics.iqm([np.array(values)]))
    assert value == pytest.approx(standard.mean(sorted(values)[cut : len(values) - cut]))
    # 2 000 random ones instead of all: the percentile is within 1 %, more than twice its standard error.
    limits = np.percentile(means, (1.5, 3.5, 96.5, 98.5), method="inverted_cdf")
    assert limits[0] <= low <= limits[1]
    assert limits[2] <= high <= limits[3]
    # Environments are kept apart: runs that are alike within each leave nothing to chance.
    assert interval(statistics.iqm([np.full(5, 0.0), np.full(5, 100.0)])) == (50.0, 50.0, 50.0)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert statistics.iqm([np.array(values)]) == statistics.iqm([np.array(values)])
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_the_interquartile_mean_leaves_the_extremes_out() -> None:
    assert statistics.interquartile_mean(np.array([-1000.0, 1, 2, 3, 4, 5, 6, 5000])) == 3.5
    assert statistics.interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0
    scipy_stats = pytest.importorskip("scipy.stats")
    for n in range(1, 30):
        values = np.random.default_rng(n).normal(size=n)
        assert statistics.interquartile_mean(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25))


def test_the_probability_of_improvement_counts_pairs() -> None:
    x, y = [1.0, 2.0, 2.0, 5.0], [2.0, 0.0, 5.0]
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in x for b in y)
    assert statistics.improvement([(np.array(x), np.array(y))]).value == pytest.approx(wins / 12)
    assert interval(statistics.improvement([(X[:, 0] + 10, Y[:, 0])])) == pytest.approx((1.0, 1.0, 1.0))
    forth, back = (statistics.improvement([pair]).value for pair in ((X[:, 0], Y[:, 0]), (Y[:, 0], X[:, 0])))
    assert forth + back == pytest.approx(1.0)
    known = [(X[:, 1], Y[:, 1])]  # environments without runs are left out
    assert statistics.improvement([(X[:, 0], np.zeros(0)), *known]) == statistics.improvement(known)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (7, 2.36462), (30, 2.04227), (31, 2.03951), (40, 2.02108), (60, 2.00030), (120, 1.97993)],
)
def test_students_quantiles_are_those_of_the_books(freedom: int, quantile: float) -> None:
    assert statistics.student(freedom) == pytest.approx(quantile, abs=1e-4)
    values = np.random.default_rng(0).normal(size=freedom + 1)
    half = quantile * standard.stdev(values) / math.sqrt(freedom + 1)
    expected = (values.mean(), values.mean() - half, values.mean() + half)
    assert interval(statistics.mean(values)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("estimate", [statistics.mean, lambda values: statistics.iqm([values])])
def test_too_few_runs_have_no_interval(estimate: Any) -> None:
    one, none = estimate(np.array([3.0])), estimate(np.zeros(0))
    assert (one.value, one.runs) == (3.0, 1)
    assert math.isnan(one.low)
    assert math.isnan(none.value)
    assert none.runs == 0


def test_a_learning_curve_is_the_mean_of_smoothed_returns() -> None:
    returns = [learned(seed, 1.0, episodes=50) for seed in range(5)]
    curve = statistics.learning_curve(series_of(*returns))
    expected = []
    averages = [each[0] for each in returns]
    for episode in range(50):
        averages = [0.85 * old + 0.15 * each[episode] for old, each in zip(averages, returns, strict=True)]
        expected.append(sum(averages) / 5)
    assert curve.mean == pytest.approx(expected)
    assert curve.episodes.tolist() == list(range(1, 51))
    assert curve.runs == 5
    assert (curve.low < curve.mean).all()
    assert (curve.mean < curve.high).all()
    alike = [np.full(20, value) for value in (1.0, 1.0, 1.0, 3.0)]
    four, three = statistics.learning_curve(series_of(*alike)), statistics.learning_curve(series_of(*alike[:3]))
    # A third of the samples lacks the last run, so the lower percentile is that of the others.
    assert four.low == pytest.approx(np.full(20, 1.0))
    assert four.high == pytest.approx(np.full(20, 2.5))
    assert np.isnan(three.low).all()
    alone = statistics.learning_curve(series_of([1.0, 2.0], []))
    assert alone.runs == 1
    assert np.isnan(alone.low).all()
    assert len(statistics.learning_curve(series_of([], [])).mean) == 0
    thinned = statistics.learning_curve(series_of(np.arange(5000.0), np.arange(5000.0)), max_points=100).episodes
    assert (len(thinned), thinned[0], thinned[-1]) == (100, 1, 5000)
    assert len(set(np.diff(thinned))) <= 2


def test_a_learning_curve_over_steps_has_the_last_return_of_each_run() -> None:
    short, long = run([1.0, 1.0, 1.0]), run([0.0, 4.0], seed=1)
    long.lengths[:] = 30
    series = StoredSeries("BDPI", (short, long))
    curve = statistics.learning_curve(series, x="steps")
    assert (curve.episodes[0], curve.episodes[-1], curve.runs) == (30, 60, 2)
    assert curve.mean[0] == 0.5
    assert curve.mean[-1] == pytest.approx((1.0 + 0.15 * 4.0) / 2)
    assert set(curve.mean[:-1]) == {0.5}
    assert len(statistics.learning_curve(StoredSeries("BDPI", ()), x="steps").mean) == 0


@pytest.mark.parametrize("n", [3, 4, 8])
def test_intervals_stay_among_the_runs_and_need_four(n: int) -> None:
    values = np.array([1.0, *([0.0] * (n - 2)), 1.0])
    for estimate in (
        statistics.bootstrap_mean(values),
        statistics.iqm([values]),
        statistics.improvement([(values, values + 0.5)]),
    ):
        assert math.isnan(estimate.low) == math.isnan(estimate.high) == (n < 4)
        assert n < 4 or 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0


def test_bands_cover_the_true_mean_about_as_often_as_they_say() -> None:
    """16 runs, 200 times: percentile bootstraps of so few are known to be a little too narrow."""
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        curve = statistics.learning_curve(series_of(*generator.normal(size=(16, 1))))
        covered += bool(curve.low[0] <= 0.0 <= curve.high[0])
    assert 174 <= covered <= 198


def test_scores_are_means_over_all_episodes_or_the_last() -> None:
    series = series_of(np.arange(25.0), np.arange(25.0) + 100.0)
    assert statistics.scores(series).tolist() == [12.0, 112.0]
    assert statistics.scores(series, 0.1).tolist() == [23.0, 123.0]  # 2.5 episodes are 3
    assert statistics.scores(series, 0.1, n_episodes=20).tolist() == [18.5, 118.5]
    assert statistics.scores(series_of([7.0]), 0.1).tolist() == [7.0]
    assert len(statistics.scores(series_of([]))) == 0
    assert [statistics.last_episodes(n, 0.1) for n in (1, 10, 11, 500, 1000, 1001)] == [1, 1, 2, 50, 100, 101]


def test_a_threshold_is_reached_at_the_first_episode_that_is_as_high() -> None:
    curve = np.array([0.0] * 12 + [0.4, 0.5, 0.4, 0.9])
    assert statistics.first_at_least(curve, 0.5) == 14
    assert statistics.first_at_least(curve, 0.95) is None
    assert statistics.first_at_least(np.zeros(0), 0.5) is None
    lucky = np.array([1.0, 0.8] + [0.1] * 20 + [0.6])  # only in its first episodes
    assert statistics.first_at_least(lucky, 0.5) == 23
    assert statistics.first_at_least(np.array([0.0, 0.6]), 0.5) == 2


@pytest.mark.parametrize("n", [1, 4, 30])
def test_centred_means_have_fewer_points_at_the_ends(n: int) -> None:
    curve = np.random.default_rng(0).normal(size=n)
    expected = [curve[max(0, i - 3) : i + 4].mean() for i in range(n)]
    np.testing.assert_allclose(statistics.centred_mean(curve, 7), expected)
    np.testing.assert_allclose(statistics.centred_mean(curve, 1), curve)
    assert len(statistics.centred_mean(np.zeros(0), 7)) == 0


def test_the_median_run_is_there_when_more_than_half_are() -> None:
    late, never = [0.0] * 40 + [1.0] * 60, [0.0] * 100
    # 0.85^k falls below a half with the fifth episode of reward
    assert statistics.median_episode(series_of(late, late, never), 0.5) == (2, 45)
    assert statistics.median_episode(series_of(late, never, never), 0.5) == (1, None)
    assert statistics.median_episode(series_of(late, late, never, never), 0.5) == (2, None)
    assert statistics.median_episode(series_of([]), 0.5) == (0, None)
