"""The native learner's own tanh and softmax, on every instruction set, against double precision."""

import numpy as np
import pytest

from bdpi.learner import LearnerState, native
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
