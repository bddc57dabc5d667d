"""What only the PyTorch learner can do: convolutions, dictionaries, modules that cannot be batched."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.interface import Ring
from bdpi.learner.reference import ReferenceLearner
from bdpi.learner.torch import TorchLearner
from worlds import picture_transitions, random_batches


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 4, 3))


class TwoInputs(nn.Module):
    """Takes a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 3 * 4 + 5, 3)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.head(torch.cat([self.image(inputs["image"]), inputs["vector"]], dim=1))


class OldStyleSquare(torch.autograd.Function):
    """Written for ordinary automatic differentiation only, as most custom functions are."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 7 * 9, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return OldStyleSquare.apply(self.net(inputs))


class Branching(nn.Module):
    """Looks at values to decide what to do, which no batched evaluation can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 7 * 9, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores = self.net(inputs)
        return scores * 2 if inputs.mean() > 0 else scores


def image_transitions() -> Transitions:
    return picture_transitions((2, 7, 9), 3, dtype=np.float32)


def compare_with_reference(make_module, transitions, device="cpu") -> TorchLearner:
    torch.manual_seed(1)
    parameters = np.array([flatten_parameters(make_module()) for _ in range(7)])
    state = LearnerState.fresh(parameters[0], parameters[1:].reshape(3, 2, -1))
    learner = TorchLearner(make_module(), make_module(), state, device)
    reference = ReferenceLearner(make_module(), make_module(), state)
    hyper = Hyperparameters(critic_iterations=3, fit_steps=3, learning_rate=1e-3, actor_learning_rate=2e-3)
    batches, order = random_batches(3, 3, 16, n=60)
    for each in (learner, reference):
        each.epoch(transitions, batches, order, hyper)
    result, expected = learner.state_dict(), reference.state_dict()
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, atol=1e-5, err_msg=name)
    assert result["active"].tolist() == [1, 1, 1]
    return learner


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * 7 * 9, 20), nn.Tanh(), nn.Linear(20, 3))


BOTH = {"values": True, "gradients": True}


@pytest.mark.parametrize(
    ("module", "device", "mapped"),
    [
        (perceptron, "cpu", BOTH),
        pytest.param(perceptron, "cuda", BOTH, marks=needs_cuda),
        (convolutions, "cpu", {}),  # one after the other: nothing was a stack
        (Branching, "cpu", {"values": False, "gradients": False}),
        (Custom, "cpu", {"values": False, "gradients": False}),
    ],
)
def test_modules_are_trained_as_the_reference_does_in_stacks_where_they_can_be(module, device, mapped):
    learner = compare_with_reference(module, image_transitions(), device)
    assert learner._critic_networks.can_be_mapped == mapped


def test_stacks_of_convolutions_are_trained_as_the_reference_does(monkeypatch):
    monkeypatch.setattr("bdpi.learner.torch.has_convolutions", lambda module: False)
    assert compare_with_reference(convolutions, image_transitions())._critic_networks.can_be_mapped == BOTH


def test_dictionaries_are_trained_as_the_reference_does():
    images = image_transitions()
    rng = np.random.default_rng(1)

    def with_vector(array):
        return {"image": array, "vector": rng.normal(size=(len(array), 5)).astype(np.float32)}

    transitions = Transitions(
        with_vector(images.observations),
        images.actions,
        images.rewards,
        images.discounts,
        with_vector(images.next_observations),
    )
    learner = compare_with_reference(TwoInputs, transitions)
    assert learner.policy({key: part[:4] for key, part in transitions.observations.items()}).shape == (4, 3)


def test_a_module_that_fails_shows_its_own_error():
    torch.manual_seed(0)
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))  # the images have more than 5 numbers
    critics = np.array([[flatten_parameters(wrong)] * 2])
    learner = TorchLearner(wrong, wrong, LearnerState.fresh(flatten_parameters(wrong), critics))
    with pytest.raises(RuntimeError, match="multiplied"):
        learner.epoch(image_transitions(), *random_batches(1, 1, 16, n=60), Hyperparameters())


def test_a_network_without_parameters_is_refused():
    state = LearnerState.fresh(np.zeros(0), np.zeros((1, 2, 0)))
    with pytest.raises(ValueError, match="without parameters"):
        TorchLearner(nn.Identity(), nn.Identity(), state)


def convolutional_state(n_critics: int) -> LearnerState:
    torch.manual_seed(0)
    parameters = [flatten_parameters(convolutions()) for _ in range(1 + 2 * n_critics)]
    return LearnerState.fresh(parameters[0], np.array(parameters[1:]).reshape(n_critics, 2, -1))


@needs_cuda
@pytest.mark.parametrize("in_a_ring", [False, True])
@pytest.mark.parametrize("patches", [False, True])
@pytest.mark.parametrize("at_once", [1, 2])
def test_cuda_equals_cpu(in_a_ring, patches, at_once, monkeypatch):
    """The first epoch runs as it is, the second is recorded, the others replay the recording."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    transitions = image_transitions()
    learners = [
        TorchLearner(convolutions(), convolutions(), convolutional_state(3), device, patches=patches)
        for device in ("cpu", "cuda")
    ]
    learners[1]._at_once = at_once
    memory = object()
    for epoch in range(5):
        batches, order = random_batches(3, 3, 16, n=60, seed=epoch)
        rates = {"learning_rate": 1e-3 / (epoch + 1), "actor_learning_rate": 2e-3}
        given = replace(transitions, ring=Ring(memory, 60, 60 + epoch)) if in_a_ring else transitions
        given.rewards[(epoch - 1) % 60] += 1  # the row that the ring says is new
        hyper = Hyperparameters(fit_steps=2, **rates)
        metrics = [learner.epoch(given, batches[:2], order[:2], hyper) for learner in learners]
        assert metrics[1].critic_loss == pytest.approx(metrics[0].critic_loss, rel=1e-2)
    on_cpu, on_gpu = (learner.state_dict() for learner in learners)
    assert learners[1].replay.reason == ""
    np.testing.assert_allclose(on_gpu["critics.parameters"], on_cpu["critics.parameters"], atol=2e-4)
    np.testing.assert_allclose(on_gpu["actor.parameters"], on_cpu["actor.parameters"], atol=2e-4)
    assert on_gpu["critics.steps"].tolist() == on_cpu["critics.steps"].tolist()


@needs_cuda
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_on_cuda_losses_are_those_of_the_cpu_in_any_precision(precision):
    transitions = image_transitions()
    exact = TorchLearner(convolutions(), convolutions(), convolutional_state(3))
    rounded = TorchLearner(convolutions(), convolutions(), convolutional_state(3), "cuda", precision=precision)
    for epoch in range(5):
        batches = random_batches(3, 3, 16, n=60, seed=epoch)
        metrics = [each.epoch(transitions, *batches, Hyperparameters(fit_steps=2)) for each in (exact, rounded)]
        assert metrics[1].critic_loss == pytest.approx(metrics[0].critic_loss, rel=0.02)
    assert rounded.replay.reason == ""
    assert "windows" in rounded._trained.lay_out.keywords


class Synchronous(nn.Sequential):
    """Waits for the device, which a recording cannot."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs.sum().item()
        return super().forward(inputs)


@needs_cuda
def test_what_cannot_be_recorded_runs_step_by_step(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # a CPU has all 24 bits

    def module() -> nn.Module:
        return Synchronous(*convolutions())

    learners = [TorchLearner(module(), module(), convolutional_state(3), device) for device in ("cpu", "cuda")]
    for epoch in range(3):
        for learner in learners:
            learner.epoch(
                image_transitions(), *random_batches(3, 3, 16, n=60, seed=epoch), Hyperparameters(fit_steps=2)
            )
    assert learners[1].replay.reason != ""
    on_cpu, on_gpu = (learner.state_dict()["critics.parameters"] for learner in learners)
    np.testing.assert_allclose(on_gpu, on_cpu, atol=2e-4)


@needs_cuda
def test_several_threads_record_and_replay_as_one_does():
    state = convolutional_state(3)  # here: threads share PyTorch's generator

    def learn() -> bytes:
        learner = TorchLearner(convolutions(), convolutions(), state, "cuda")
        for epoch in range(6):
            learner.epoch(
                image_transitions(), *random_batches(3, 3, 16, n=60, seed=epoch), Hyperparameters(fit_steps=2)
            )
        assert learner.replay.reason == ""
        return learner.state_dict()["critics.parameters"].tobytes()

    alone, found = learn(), []
    threads = [threading.Thread(target=lambda: found.append(learn())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 6
