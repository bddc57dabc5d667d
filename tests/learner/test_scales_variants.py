"""Critics of benchmarks/scales that PyTorch trains: as the kernels do, and each variant what it says."""

import numpy as np
import pytest
import torch
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, Transitions, nvrtc
from bdpi.learner.rules import ClippedDouble, Conservative
from bdpi.learner.scales import Scales
from bdpi.learner.torch import TorchLearner
from scales import loop, tasks
from scales.candidates import Candidate, find
from scales.learning import Learning, evaluate, initial_networks
from scales.variants import PlainLearning, step_sizes

DEVICE = torch.device("cuda" if nvrtc.is_available() else "cpu")
SMALL = {"n_critics": 3, "batch_size": 16, "critic_iterations": 3, "fit_steps": 4, "learning_rate": 1e-3}
VECTOR = tasks.Space(3, 2, False, np.full(3, -np.inf), np.full(3, np.inf))
STATES = tasks.Space(5, 3, True, np.zeros(0), np.zeros(0))
SCALED = Scales(np.float32([0.1, 0, -1]), np.float32([0.5, 2, 1]), return_shift=0.3, return_factor=0.2)
HIDDEN, STEPS = 8, 30


@pytest.fixture(autouse=True)
def _kernels(fused_kernels):
    pass


def make(kind, candidates, space=VECTOR, scales=None):
    """Runs with full memories, which only depend on the space."""
    rng, runs = np.random.default_rng(0), len(candidates)

    def observed():
        return rng.integers(0, 5, runs) if space.one_hot else rng.normal(size=(runs, 3)).astype(np.float32)

    learning = kind(space, candidates, range(runs), HIDDEN, STEPS, DEVICE, 1, "test")
    learning.allocate()
    learning.set_scales(np.stack([(scales or Scales.none(space.inputs)).packed()] * runs))
    for _ in range(STEPS):
        arrays = {
            "observations": observed(),
            "final": observed(),
            "actions": rng.integers(0, space.actions, runs),
            "rewards": rng.normal(size=runs).astype(np.float32),
            "discounts": np.where(rng.random(runs) < 0.2, 0, 0.9).astype(np.float32),
            "ended": np.zeros(runs, bool),
        }
        with learning.work():
            learning.store(observed(), arrays)
        learning.wait()
    return learning


def train(learning, epochs=1):
    for _ in range(epochs):
        with learning.work():
            learning.epoch()
        learning.wait()


@pytest.mark.parametrize(
    ("space", "scales"),
    [pytest.param(VECTOR, SCALED, id="vector", marks=pytest.mark.full), pytest.param(STATES, None, id="states")],
)
def test_without_variants_the_epochs_are_those_of_the_kernels(space, scales):
    candidates = [Candidate(**SMALL), Candidate(**{**SMALL, "learning_rate": 1e-4}, step_size=0.5)]
    plain, fused = (make(kind, candidates, space, scales) for kind in (PlainLearning, Learning))
    for learning in (plain, fused):
        train(learning, 3)
    assert torch.equal(plain.active, fused.active)
    assert torch.equal(plain.critics.steps, fused.critics.steps)
    for name, expected in vars(fused.critics).items():
        torch.testing.assert_close(getattr(plain.critics, name), expected, atol=2e-6, rtol=1e-4, msg=name)
    torch.testing.assert_close(plain.tensors.q, fused.tensors.q, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(plain.tensors.metrics, fused.tensors.metrics, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(plain.actors.parameters, fused.actors.parameters, atol=2e-6, rtol=1e-4)
    for mine, theirs in zip(plain.q_values(), fused.q_values(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("space", [VECTOR, STATES], ids=["vector", "states"])
@pytest.mark.parametrize("changes", [{"layer_norm": True}, {"prior": 2.0}, {"layer_norm": True, "prior": 0.5}], ids=str)
def test_layer_norm_and_priors_are_those_of_any_module(space, changes):
    candidate = Candidate(**SMALL, **changes)
    learning = make(PlainLearning, [candidate], space)
    if candidate.prior:
        learning.priors[:, :, 1] = learning.priors[:, :, 0]  # as that learner has them
    norm = [nn.LayerNorm(HIDDEN, elementwise_affine=False)] if candidate.layer_norm else []
    critic = nn.Sequential(nn.Linear(space.inputs, HIDDEN), *norm, nn.Tanh(), nn.Linear(HIDDEN, space.actions))
    actor = nn.Sequential(nn.Linear(space.inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, space.actions))
    critics, flat = initial_networks(0, learning.sizes, 3)
    priors = learning.priors[0, :, 0].cpu().numpy() if candidate.prior else None
    state = LearnerState.fresh(flat, critics, priors)

    def preprocess(x):
        return (x.reshape(-1, 1) == torch.arange(space.inputs)).float() if space.one_hot else x.float()

    single = TorchLearner(actor, critic, state, "cpu", preprocess, candidate.prior)
    names = "observations", "actions", "rewards", "discounts", "next_observations"
    experience = Transitions(*(getattr(learning.memory, name)[0].cpu().numpy() for name in names))
    hyper = Hyperparameters(3, 4, ClippedDouble(0.2), 1e-3, 1e-3, Conservative(candidate.trust_region))
    for _ in range(2):
        train(learning)
        chosen = (part[0].long().cpu().numpy() for part in (learning.tensors.batches, learning.tensors.order))
        single.epoch(experience, *chosen, hyper)
    for mine, theirs in ((learning.critics, single.critics), (learning.actors, single.actor)):
        for name, tensor in vars(theirs).items():
            torch.testing.assert_close(getattr(mine, name)[0].cpu(), tensor, atol=2e-6, rtol=1e-4, msg=name)
    assert torch.equal(learning.active[0].cpu(), single.active)
    q = single.q_values(learning._there.tensors["current"].cpu().numpy())
    np.testing.assert_allclose(learning.q_values()[0][0].cpu(), q[:, 0], atol=2e-5)


def test_each_network_has_a_prior_of_its_own():
    with_prior = make(PlainLearning, [Candidate(**SMALL, prior=2.0), Candidate(**SMALL)])
    without = make(PlainLearning, [Candidate(**SMALL)] * 2)
    current = with_prior._there.tensors["current"].view(2, 1, 1, 3).expand(2, 3, 2, 3)
    priors = evaluate(with_prior.priors, with_prior.sizes, current, False)
    assert len(priors[0].flatten().unique()) == priors[0].numel()
    for which, (mine, theirs) in enumerate(zip(with_prior.q_values(), without.q_values(), strict=True)):
        torch.testing.assert_close(mine[0] - theirs[0], 2 * priors[0, :, which], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine[1], theirs[1])
    for learning in (with_prior, without):
        train(learning)
    assert not torch.allclose(with_prior.critics.parameters[0], without.critics.parameters[0], atol=1e-5)
    torch.testing.assert_close(with_prior.critics.parameters[1], without.critics.parameters[1])


def test_a_new_scale_of_returns_changes_no_prediction_with_priors():
    learning = make(PlainLearning, [Candidate(**SMALL, prior=2.0, layer_norm=True)])
    before = Scales(np.zeros(3, np.float32), np.ones(3, np.float32), 1.0, 2.0, True)
    after = Scales(before.shift, before.factor, -0.5, 0.3, True)
    q = [before.q_values(each.cpu().numpy()) for each in learning.q_values()]
    learning.rescale({0: (before, after)})
    np.testing.assert_allclose([after.q_values(each.cpu().numpy()) for each in learning.q_values()], q, atol=1e-5)


def test_rates_fall_within_each_fit():
    steps, decays = torch.tensor([1000, 1000]), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    sizes, _ = step_sizes(steps, torch.full((2, 1), 1e-3, dtype=torch.float64), decays, 4)
    torch.testing.assert_close(sizes[1] / sizes[0], torch.tensor([1, 0.75, 0.5, 0.25]))
    moved = []
    for decay in (False, True):
        learning = make(PlainLearning, [Candidate(**SMALL, rate_decay=decay), Candidate(**SMALL)])
        before = learning.critics.parameters.clone()
        train(learning)
        moved.append((learning.critics.parameters - before).abs())
    # The first steps of Adam are as long as the rate: 4 of them, or 1 + 3/4 + 1/2 + 1/4 of one.
    assert float(moved[1][0].mean() / moved[0][0].mean()) == pytest.approx(2.5 / 4, abs=0.05)
    torch.testing.assert_close(moved[1][1], moved[0][1])


def test_moments_are_fresh_for_each_target():
    once = {**SMALL, "critic_iterations": 1}
    fresh, emptied = (make(PlainLearning, [Candidate(**once, fresh_moments=is_fresh)]) for is_fresh in (True, False))
    train(fresh, 3)
    for _ in range(3):
        for name in ("first_moment", "second_moment", "steps"):
            getattr(emptied.critics, name).zero_()
        train(emptied)
    torch.testing.assert_close(fresh.critics.parameters, emptied.critics.parameters)
    fresh = make(PlainLearning, [Candidate(**SMALL, fresh_moments=True), Candidate(**SMALL)])
    train(fresh)
    assert fresh.critics.steps[0].tolist() == [[4, 4]] * 3
    assert fresh.critics.steps[1].tolist() == [[8, 4]] * 3


def test_groups_hold_what_can_be_trained_together():
    texts = "base", "base/prior=1", "base/rate_decay=true", "base/fresh_moments=true", "base/layer_norm=true/prior=1"
    groups = loop.groups_of(["CartPole-v1"], [("*", find(text)) for text in texts], [0], 1)
    assert [[candidate.name for candidate, _ in runs] for _, _, runs in groups] == [["base"], [*texts[1:4]], [texts[4]]]
    assert groups[0][0] == "CartPole-v1/16/256/4/20/0"  # the numbers that are drawn follow from it


def test_a_group_of_variants_learns():
    settings = loop.Settings(DEVICE, sharing=1, steps=20, deploy=1)
    small = {**SMALL, "hidden": HIDDEN, "return_size": 10.0}
    runs = [(Candidate(**small, prior=1.0), 0), (Candidate(**small, fresh_moments=True, rate_decay=True), 0)]
    group = loop.Group("test", tasks.find("CartPole-v1"), runs, settings)
    group.run(loop.threading.Event(), list, list)
    assert not group.failure
    assert (group.steps, group.learning.epochs, group.diverged) == (20, 5, 0)
