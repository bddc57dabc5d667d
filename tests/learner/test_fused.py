"""The fused kernels against the PyTorch learner: on a GPU where there is one, else in Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks, is_suitable
from bdpi.learner.rules import Conservative, Imitation
from bdpi.learner.torch import TorchLearner

# Not imported here: Triton and Mesa's OpenGL, which other tests use, cannot be loaded into one process in this order.
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed: it comes with PyTorch's CUDA packages", allow_module_level=True)
ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

CASES = {  # inputs, hidden units of critics and actor, actions, batch, one-hot, ReLU, masks, rule
    "as Table": (3, 20, 20, 3, 20, False, False, False, Conservative()),
    "masks, ReLU, asymmetric": (8, 32, 16, 4, 32, False, True, True, Imitation()),
    "one-hot, odd batch": (20, 16, 16, 4, 33, True, False, True, Conservative(0.5)),
    "softmax": (5, 16, 40, 2, 16, False, False, False, Imitation(0.5)),
    "critics only": (5, 16, 16, 5, 16, False, False, False, None),
}


@pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="no CUDA device; the next test runs this one interpreted")
@pytest.mark.parametrize("case", CASES)
def test_fused_equals_torch(case):
    n_inputs, hidden, actor_hidden, n_actions, batch_size, one_hot, relu, masked, rule = CASES[case]
    rng = np.random.default_rng(0)
    torch.manual_seed(0)

    def network(hidden: int) -> nn.Module:
        layers = nn.Linear(n_inputs, hidden), nn.ReLU() if relu else nn.Tanh(), nn.Linear(hidden, n_actions)
        return nn.Sequential(*layers)

    critics = np.array([[flatten_parameters(network(hidden)) for _ in range(2)] for _ in range(3)])
    actor = None if rule is None else flatten_parameters(network(actor_hidden))
    state = LearnerState.fresh(actor, critics)
    n = 60

    def observations() -> np.ndarray:
        return rng.integers(0, n_inputs, n) if one_hot else rng.normal(size=(n, n_inputs)).astype(np.float32)

    masks = [rng.random((n, n_actions)) < 0.7 for _ in range(2)]
    for mask in masks:
        mask[:, 0] |= ~mask.any(axis=1)
    transitions = Transitions(
        observations(),
        rng.integers(0, n_actions, n),
        rng.normal(size=n).astype(np.float32),
        rng.choice([0, 0.99], n).astype(np.float32),
        observations(),
        *(masks if masked else (None, None)),
    )
    sizes = FusedNetworks((n_inputs, actor_hidden, n_actions), (n_inputs, hidden, n_actions), one_hot, relu)
    modules = (None if rule is None else network(actor_hidden)), network(hidden)
    fused = FusedLearner(*modules, state, sizes, "cuda" if ON_GPU else "cpu")
    reference = TorchLearner(*modules, state, preprocess=fused.preprocess)
    for epoch in range(2):
        hyper = Hyperparameters(2, 2, 0.3, 1e-3 / (epoch + 1), 2e-3, rule)
        batches, order = rng.integers(0, n, (2, batch_size)), rng.permutation(3)[:2]
        expected, found = (learner.epoch(transitions, batches, order, hyper) for learner in (reference, fused))
        assert found.critic_loss == pytest.approx(expected.critic_loss, rel=1e-3)
        assert found.mean_q == pytest.approx(expected.mean_q, rel=1e-3, abs=1e-4)
        if rule is not None:
            assert found.actor_loss == pytest.approx(expected.actor_loss, rel=1e-3, abs=1e-6)
    before, after = reference.state_dict(), fused.state_dict()
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="tested directly")
def test_fused_equals_torch_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert f"{len(CASES) + 1} passed" in done.stdout, done.stdout[-3000:]


def test_what_fits():
    assert is_suitable([8, 256, 4], Conservative(), 0)
    assert is_suitable([64, 32, 4], None, 0)
    assert not is_suitable([8, 64, 64, 4], Conservative(), 0)
    assert not is_suitable([8, 256, 4], Conservative(), 1.0)
    assert not is_suitable([400, 256, 4], Conservative(), 0)
