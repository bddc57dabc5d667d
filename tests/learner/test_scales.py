"""Scales: from the user's units to the networks', on every learner, and back."""

import dataclasses

import numpy as np
import pytest

from bdpi.learner import Hyperparameters, native
from bdpi.learner.rules import ClippedDouble, Conservative
from bdpi.learner.scales import Scales, rescale_critics, returns_to_go, scale_returns, scale_to_range, size_of
from worlds import assert_same_state, make_learner, random_batches, random_state, random_transitions

pytestmark = pytest.mark.usefixtures("fused_kernels")

needs_native = pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed")
KINDS = [pytest.param("native", marks=needs_native), "torch", "reference", "fused", "whole"]


def some_scales(n_inputs: int) -> Scales:
    rng = np.random.default_rng(7)
    shift, factor = rng.normal(size=n_inputs), rng.uniform(0.2, 3, n_inputs)
    return Scales(shift.astype(np.float32), factor.astype(np.float32), -2.5, 0.3, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("one_hot", [False, True])
def test_scaled_transitions_teach_what_transformed_ones_do(kind, one_hot):
    if kind == "whole" and one_hot:
        pytest.skip("no kernel for many runs trains one-hot states")
    sizes = [5, 40 if kind == "whole" else 16, 3]
    raw = random_transitions(5, 3, one_hot)
    scales = some_scales(5)
    rewards = (raw.rewards - (1 - raw.discounts) * scales.return_shift) * scales.return_factor
    transformed = dataclasses.replace(raw, rewards=rewards.astype(np.float32))
    if not one_hot:
        seen = {name: scales.inputs(getattr(raw, name)) for name in ("observations", "next_observations")}
        transformed = dataclasses.replace(transformed, **seen)
    state, batches = random_state(sizes, sizes, 2), random_batches(2, 2, 32)
    hyperparameters = Hyperparameters(2, 3, ClippedDouble(0.2), 1e-3, 1e-3, Conservative(0.05))
    learners = []
    for transitions in (dataclasses.replace(raw, scales=scales), transformed):
        learner = make_learner(kind, state, sizes, sizes, one_hot=one_hot)
        if kind == "torch" and not one_hot and transitions.scales is not None:  # where the policy's preprocess does it
            transitions = dataclasses.replace(transitions, **seen)
        learner.epoch(transitions, *batches, hyperparameters)
        learners.append(learner)
    assert_same_state(*learners, tolerance=1e-5)
    untouched = make_learner(kind, state, sizes, sizes, one_hot=one_hot)
    untouched.epoch(raw, *batches, hyperparameters)
    with pytest.raises(AssertionError):
        assert_same_state(learners[0], untouched, tolerance=1e-3)


def test_ranges_grow_and_never_shrink():
    first = scale_to_range(Scales.unknown(2), np.array([[0.0, 5.0], [10.0, 5.0]]), is_first=True)
    np.testing.assert_allclose(first.inputs(np.array([[0.0, 5.0], [10.0, 6.0]])), [[-1, 0], [1, 0]])
    wider = scale_to_range(first, np.array([[4.0, 7.0], [5.0, 6.0]]), is_first=False)
    np.testing.assert_allclose(wider.inputs(np.array([[0.0, 5.0], [10.0, 7.0]])), [[-1, -1], [1, 1]])


@pytest.mark.parametrize("unit", [2.0**-10, 2.0**10])
def test_scaled_inputs_are_the_same_bits_in_any_unit(unit):
    observations = np.random.default_rng(0).normal(3, 2, (100, 4)).astype(np.float32)
    expected = scale_to_range(Scales.unknown(4), observations, is_first=True).inputs(observations)
    scaled = scale_to_range(Scales.unknown(4), observations * unit, is_first=True).inputs(
        observations * np.float32(unit)
    )
    np.testing.assert_array_equal(scaled, expected)


def test_returns_to_go_end_with_episodes():
    rewards, discounts = np.array([1.0, 2, 4, 8, 16]), np.array([0.5, 0.5, 0, 0.5, 0.5])
    ends = np.array([False, False, True, False, False])
    np.testing.assert_allclose(returns_to_go(rewards, discounts, ends), [3, 4, 4, 16, 16])
    truncated = np.array([False, True, False, False, False])
    assert returns_to_go(rewards, np.full(5, 0.5), truncated)[0] == 2


def test_the_size_of_rare_returns_is_not_that_of_the_zeros_between_them():
    rare = np.zeros(1000)
    rare[::100] = -7
    assert size_of(rare) == pytest.approx(7)
    assert size_of(np.zeros(5)) == 0
    scales = scale_returns(Scales.none(1), rare, size=10)
    assert scales.knows_returns
    assert scales.return_factor == pytest.approx(10 / 7)


def test_zero_returns_have_no_size():
    before = Scales.none(1)
    assert scale_returns(before, np.zeros(5), size=10) is before


BEFORE = dataclasses.replace(Scales.none(5), return_factor=0.5, knows_returns=True)
AFTER = dataclasses.replace(BEFORE, return_shift=3.0, return_factor=2.0)
SIZES = [5, 16, 3]


def rescaled(state: dict) -> dict:
    copies = {name: array.copy() for name, array in state.items()}
    rescale_critics(copies, BEFORE, AFTER, n_last=17 * 3, n_actions=3)
    return copies


@pytest.mark.parametrize("kind", KINDS[:2])
def test_rescaled_critics_predict_the_same(kind):
    transitions, batches = random_transitions(5, 3, one_hot=False), random_batches(2, 2, 32)
    learner = make_learner(kind, random_state(SIZES, SIZES, 2), SIZES, SIZES)
    hyperparameters = Hyperparameters(2, 3, ClippedDouble(0.2), 1e-3, 1e-3, Conservative(0.05))
    for _ in range(3):
        learner.epoch(dataclasses.replace(transitions, scales=BEFORE), *batches, hyperparameters)
    observations = transitions.observations[:50]
    expected = BEFORE.q_values(learner.q_values(observations))
    learner.load_state_dict(rescaled(learner.state_dict()))
    np.testing.assert_allclose(AFTER.q_values(learner.q_values(observations)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_rescaled_moments_are_those_of_gradients_with_the_new_scales(kind):
    """With a learning rate of 0, parameters stay, and moments are the gradient and its square, times a constant."""
    transitions, batches = random_transitions(5, 3, one_hot=False), random_batches(2, 2, 32)
    only_moments = Hyperparameters(1, 1, ClippedDouble(0.2), 0.0, 0.0, Conservative(0.05))
    first = make_learner(kind, random_state(SIZES, SIZES, 2), SIZES, SIZES)
    second = make_learner(kind, random_state(SIZES, SIZES, 2), SIZES, SIZES)
    second.load_state_dict(rescaled(second.state_dict()))
    first.epoch(dataclasses.replace(transitions, scales=BEFORE), *batches, only_moments)
    second.epoch(dataclasses.replace(transitions, scales=AFTER), *batches, only_moments)
    ours, wanted = rescaled(first.state_dict()), second.state_dict()
    for name in ("critics.parameters", "critics.first_moment", "critics.second_moment"):
        assert np.abs(wanted[name]).max() > 0
        np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-3, atol=1e-4 * np.abs(wanted[name]).max())
