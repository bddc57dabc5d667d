"""The fused kernels against the reference: on a GPU where there is one, else emulated on the CPU."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, Transitions, nvrtc
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks, is_suitable
from bdpi.learner.reference import ReferenceLearner
from bdpi.learner.rules import ClippedDouble, Conservative, Imitation

pytestmark = pytest.mark.usefixtures("fused_kernels")

CASES = {  # inputs, hidden units of critics and actor, actions, batch, one-hot, ReLU, masks, rule
    "as Table": (3, 20, 20, 3, 20, False, False, False, Conservative()),
    "masks, ReLU, asymmetric": (8, 32, 16, 4, 32, False, True, True, Imitation()),
    "one-hot, odd batch": (20, 16, 16, 4, 33, True, False, True, Conservative(0.5)),
    "softmax": (5, 16, 40, 2, 16, False, False, False, Imitation(0.5)),
    "several programs per network": (8, 100, 70, 4, 100, False, False, False, Conservative()),
    "critics only": (5, 16, 16, 5, 16, False, False, False, None),
}


WHOLE = {  # a program for each network, as for many runs
    "LunarLander, a small batch": (8, 256, 256, 4, 70, False, False, False, Conservative()),
    "odd sizes": (5, 40, 100, 3, 100, False, False, True, Conservative(0.5)),
    "masks, ReLU, asymmetric": (8, 64, 33, 4, 32, False, True, True, Imitation()),
    "many inputs and outputs": (11, 70, 40, 7, 70, False, False, False, Imitation(0.5)),
    "critics only": (3, 40, 40, 5, 50, False, False, False, None),
}


@pytest.mark.parametrize(("runs", "case"), [(1, case) for case in CASES] + [(128, case) for case in WHOLE])
def test_fused_equals_torch(runs, case):
    case = (WHOLE if runs > 1 else CASES)[case]
    n_inputs, hidden, actor_hidden, n_actions, batch_size, one_hot, relu, masked, rule = case
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
    sizes = FusedNetworks((n_inputs, actor_hidden, n_actions), (n_inputs, hidden, n_actions), one_hot, relu, runs)
    modules = (None if rule is None else network(actor_hidden)), network(hidden)
    fused = FusedLearner(*modules, state, sizes, "cuda" if nvrtc.is_available() else "cpu")
    reference = ReferenceLearner(*modules, state, preprocess=fused.preprocess)
    for epoch in range(2):
        hyper = Hyperparameters(2, 2, ClippedDouble(0.3), 1e-3 / (epoch + 1), 2e-3, rule)
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


@pytest.mark.parametrize(
    ("sizes", "one_hot", "runs", "critics_whole", "actor_whole"),
    [
        ((8, 256, 4), False, 3, False, False),
        ((8, 256, 4), False, 4, True, False),
        ((8, 256, 4), False, 40, True, True),
        ((3, 32, 3), False, 128, False, False),
        ((64, 64, 4), True, 128, False, False),
    ],
)
def test_networks_of_many_runs_have_a_program_each(sizes, one_hot, runs, critics_whole, actor_whole):
    networks = FusedNetworks(sizes, sizes, one_hot, relu=False, runs=runs)
    wholes = [networks._layout(kernel, sizes, 256)["WHOLE"] for kernel in ("train_critics", "train_actor")]
    assert wholes == [critics_whole, actor_whole]


def test_bindings_count_if_they_find_the_compiler(monkeypatch):
    def no_library():
        raise RuntimeError("Failed to load libnvrtc.so.13")

    for version, expected in ((lambda: (0, 12, 9), True), (lambda: (7, 0, 0), False), (no_library, False)):
        bindings = SimpleNamespace(nvrtc=SimpleNamespace(nvrtcVersion=version))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        assert nvrtc.can_compile.__wrapped__() == expected
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)  # as if it were not installed
    assert not nvrtc.can_compile.__wrapped__()


def test_what_fits():
    def fits(sizes, one_hot=False, batch_size=256, prior_scale=0.0):
        return is_suitable(sizes, one_hot, batch_size, prior_scale)

    assert fits([8, 256, 4])
    assert fits([64, 32, 4], one_hot=True)
    assert not fits([64, 32, 4])
    assert not fits([8, 64, 64, 4])
    assert not fits([8, 512, 4])
    assert not fits([8, 256, 4], prior_scale=1.0)
    assert not fits([400, 256, 4], one_hot=True)
    assert not fits([8, 256, 4], batch_size=1024)
    assert not fits([8, 256, 16], batch_size=512)
