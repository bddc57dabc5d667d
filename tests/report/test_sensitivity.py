"""Sensitivity, shares and importances, against what can be computed by hand or is known beforehand."""

import math

import numpy as np
import pytest

from bdpi.report.configurations import Algorithm
from bdpi.report.sensitivity import (
    best_of_others,
    configurations_needed,
    importances,
    sensitivity,
    share_above,
)
from bdpi.report.statistics import Estimate

SIZES = (5, 4, 3)


def algorithm(n: int, seed: int = 0, name: str = "BDPI", noise: float = 0.3) -> Algorithm:
    """The score follows the first of three hyper-parameters, the second a little, the third not at all."""
    generator = np.random.default_rng(seed)
    indices = np.stack([generator.integers(size, size=n) for size in SIZES], axis=1)
    scores = 3.0 * (indices[:, 0] == 2) + 0.5 * indices[:, 1] + generator.normal(scale=noise, size=n)
    labels = {(name, i): f"{name}{i}" for name, size in zip("abc", SIZES, strict=True) for i in range(size)}
    return Algorithm(name, ("a", "b", "c"), SIZES, indices, scores, labels, n)


def by_the_equation(points: np.ndarray, scores: np.ndarray) -> float:
    weighted = weights = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            distance = math.dist(points[i], points[j])
            if distance > 0:
                weighted += abs(scores[i] - scores[j]) / distance
                weights += 1 / distance
    return weighted / weights


def test_values_of_a_hyperparameter_lie_between_0_and_1() -> None:
    some = Algorithm(
        "x", ("a", "b"), (5, 1), np.array([[0, 0], [1, 0], [4, 0]]), np.zeros(3), {}, 3
    )  # one has a single value
    assert some.points.tolist() == [[0.0, 0.0], [0.25, 0.0], [1.0, 0.0]]


def test_sensitivity_by_hand() -> None:
    points = np.array([[0.0, 0.0], [0.5, 0.0], [0.5, 1.0]])
    scores = np.array([10.0, 13.0, 20.0])
    weights = 2.0, 1.0, 1 / math.sqrt(1.25)
    expected = (weights[0] * 3 + weights[1] * 7 + weights[2] * 10) / sum(weights)
    assert sensitivity(points, scores).value == pytest.approx(expected)


def test_sensitivity_is_the_papers_equation() -> None:
    some = algorithm(300)  # more than one block, and 300 draws of 60 configurations: many are identical
    expected = by_the_equation(some.points, some.scores)
    found = sensitivity(some.points, some.scores)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.low < found.value < found.high
    assert found.runs == 300


def test_sampled_pairs_have_a_seed_and_come_close_to_all_pairs() -> None:
    some = algorithm(300)
    everything = sensitivity(some.points, some.scores)
    sampled = [sensitivity(some.points, some.scores, n_pairs=20_000, seed=seed) for seed in (0, 0, 1)]
    assert sampled[0] == sampled[1]
    assert sampled[0].value != sampled[2].value
    assert sampled[0].value == pytest.approx(everything.value, rel=0.03)


def test_sensitivity_grows_with_the_scores_and_does_not_care_where_they_are() -> None:
    some = algorithm(100)
    one, scaled = sensitivity(some.points, some.scores), sensitivity(some.points, 1000 * some.scores - 240_000)
    for a, b in ((one.value, scaled.value), (one.low, scaled.low), (one.high, scaled.high)):
        assert b == pytest.approx(1000 * a, rel=1e-4)
    flat = sensitivity(some.points, np.full(100, 7.0))
    assert (flat.value, flat.low, flat.high) == (0.0, 0.0, 0.0)


def test_identical_configurations_alone_say_nothing() -> None:
    assert math.isnan(sensitivity(np.zeros((4, 2)), np.arange(4.0)).value)
    assert math.isnan(sensitivity(np.zeros((0, 2)), np.zeros(0)).value)
    two = sensitivity(np.array([[0.0], [1.0]]), np.array([1.0, 4.0]))
    assert two.value == pytest.approx(3.0)
    assert math.isnan(two.low)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    many = algorithm(4_000, seed=1_000)
    truth = sensitivity(many.points, many.scores, n_pairs=100_000).value
    held = 0
    for seed in range(60):
        some = algorithm(50, seed)
        found = sensitivity(some.points, some.scores)
        held += found.low <= truth <= found.high
    assert held >= 50  # 57 are expected; 95 % intervals of another width would be out of place


def test_the_number_of_configurations_that_is_needed() -> None:
    some = algorithm(100)
    needed = configurations_needed(sensitivity(some.points, some.scores), width=0.05)
    assert needed is not None
    assert needed > 100
    enough = algorithm(needed, seed=5)
    found = sensitivity(enough.points, enough.scores)
    assert (found.high - found.low) / 2 / found.value == pytest.approx(0.05, rel=0.25)
    assert configurations_needed(Estimate(math.nan, math.nan, math.nan, 0)) is None
    assert configurations_needed(Estimate(100.0, 80.0, 120.0, 50), width=0.1) == 200


def test_the_share_of_configurations_above_the_best_of_the_others() -> None:
    ours, other, none = algorithm(20), algorithm(20, 1, "PPO"), algorithm(0, 1, "DQN")
    name, best = best_of_others([ours, other, none], "BDPI")
    assert (name, best) == ("PPO", other.scores.max())
    assert best_of_others([ours, none], "BDPI")[0] == ""
    share = share_above(np.arange(10.0), 4.0)
    assert share.value == 0.5
    assert (share.low, share.high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert share_above(np.arange(10.0), 100.0).value == 0.0
    assert share_above(np.arange(10.0), 100.0).high > 0.2  # ten configurations do not prove that there is none
    assert math.isnan(share_above(np.arange(3.0), math.nan).value)


def test_the_hyperparameter_that_matters_most_comes_first() -> None:
    found = importances(algorithm(400))
    assert [importance.parameter for importance in found] == ["a", "b", "c"]
    assert found[0].share > 0.6
    assert found[0].best == "a2"
    assert found[1].best == "b3"
    assert [importance.matters for importance in found] == [True, True, False]
    assert sum(importance.share for importance in found) == pytest.approx(1.0, abs=0.1)


def test_shares_are_variances_between_values() -> None:
    some = algorithm(50)
    share = next(i.share for i in importances(some) if i.parameter == "b")
    means = {value: some.scores[some.indices[:, 1] == value].mean() for value in range(4)}
    between = np.var([means[value] for value in some.indices[:, 1]])
    assert share == pytest.approx(between / some.scores.var())


def test_chance_is_mostly_not_called_important() -> None:
    generator = np.random.default_rng(0)
    called = 0
    for seed in range(60):
        some = algorithm(40, seed)
        lucky = Algorithm("x", some.parameters, some.sizes, some.indices, generator.normal(size=40), some.labels, 40)
        called += sum(importance.matters for importance in importances(lucky, repetitions=200))
    assert called <= 18  # 9 of 180 are expected


def test_without_differences_nothing_is_important() -> None:
    assert importances(algorithm(2)) == []
    assert importances(algorithm(0)) == []
    some = algorithm(5)
    assert importances(Algorithm("x", some.parameters, some.sizes, some.indices, np.ones(5), some.labels, 5)) == []
