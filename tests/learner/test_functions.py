"""The native learner's own tanh and softmax, on every instruction set, against double precision."""

import numpy as np
import pytest

from bdpi.learner import Hyperparameters, LearnerState, Transitions, native
from bdpi.learner.native import NativeLearner

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed")


@pytest.mark.parametrize("instruction_set", native.info()["supported"])
def test_tanh_and_softmax_are_exact_to_a_few_roundings(instruction_set):
    """A critic whose weights are one says tanh(x); an actor with the scores x and 0 is a sigmoid."""
    critic = np.float32([1, 0, 1, 0, 0, 0])  # W0, b0, W1 (2), b1 (2)
    state = LearnerState.fresh(np.float32([1, 0, 0, 0]), np.array([[critic, critic]]))
    learner = NativeLearner([1, 2], [1, 1, 2], state, instruction_set=instruction_set)
    x = np.linspace(-12, 12, 20_000, dtype=np.float32)[:, None]
    exact = x[:, 0].astype(np.float64)
    np.testing.assert_allclose(learner.q_values(x)[0, :, 0], np.tanh(exact), rtol=7e-7)
    np.testing.assert_allclose(learner.policy(x)[:, 0], 1 / (1 + np.exp(-exact)), rtol=1e-6)
    found, large = learner.q_values(x)[0, :, 0], exact > 3  # where tanh is nearly one
    np.testing.assert_allclose(found[large], np.tanh(exact[large]), rtol=0, atol=1.7e-7)
    assert (found[exact > 9.1] == 1).all()
    assert learner.q_values(np.float32([[1e30], [-1e30]]))[0, :, 0].tolist() == [1, -1]


@pytest.mark.parametrize("instruction_set", native.info()["supported"])
def test_saturated_units_rest(instruction_set):
    """tanh(50) is 1 and its slope nothing, which Adam would make a step of the usual length of, were it 1e-7."""
    rng = np.random.default_rng(0)
    critics = rng.normal(size=(2, 2, 4 * 3 + 4 + 2 * 4 + 2)).astype(np.float32)
    critics[:, :, :12] = 50 * np.sign(critics[:, :, :12])
    critics[:, :, 12:16] = 0
    states = np.zeros((30, 3), np.float32)
    states[np.arange(30), rng.integers(0, 3, 30)] = rng.uniform(0.5, 1, 30)  # each unit sees one input, of 25 and more
    rewards = rng.normal(size=30).astype(np.float32)
    experience = Transitions(states, rng.integers(0, 2, 30), rewards, np.zeros(30, np.float32), states)
    learner = NativeLearner(
        [3, 4, 2], [3, 4, 2], LearnerState.fresh(None, critics.copy()), instruction_set=instruction_set
    )
    learner.epoch(experience, rng.integers(0, 30, (2, 16)), np.arange(2), Hyperparameters(actor_rule=None))
    after = learner.state_dict()["critics.parameters"]
    np.testing.assert_array_equal(after[:, :, :16], critics[:, :, :16])
    assert (after[:, :, 16:] != critics[:, :, 16:]).any(axis=2).all(), "the second layer learns"
