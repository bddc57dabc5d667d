"""Kernels for stacks of convolutional networks compute what PyTorch does; without a GPU, in Triton's interpreter."""

import math
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from bdpi.agents.policies import CnnPolicy
from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.functional import FunctionalNetwork, NetworkStack, flatten_parameters
from bdpi.learner.interface import NetworkState
from bdpi.learner.picture_layers import Layer, PlacedLayer
from bdpi.learner.pictures import REMEDY, PictureNetworks, find_picture_networks, lay_out, why_not
from bdpi.learner.torch import TorchLearner
from worlds import picture_transitions, random_batches

pytest.importorskip("triton", reason="needs Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

LAYERS = {
    "one pixel": Layer(1, 1, 40, 20),
    "DeepMind's second, smaller": Layer(10, 12, 8, 16, (4, 4), (2, 2)),
    "not square": Layer(7, 9, 3, 5, (3, 2), (1, 3)),
    "kernel and stride do not go up": Layer(11, 8, 4, 33, (5, 3), (3, 2)),
    "many outputs": Layer(3, 3, 70, 130, (2, 2)),
    "tanh": Layer(5, 4, 6, 7, (2, 3), (2, 1), tanh=True),
}


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, torch.bfloat16)


def reference(layer: Layer, images: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """One network, before it is rectified, in float32."""
    kernel = weights.float().permute(0, 3, 1, 2)
    sums = nn.functional.conv2d(images.float().permute(0, 3, 1, 2), kernel, biases.float(), layer.stride)
    return sums.permute(0, 2, 3, 1)


def parameters_of(layer: Layer, k: int = 3) -> tuple[PlacedLayer, Tensor]:
    """Room for the parameters of some networks, with others before, between and behind those of the layer."""
    shape = layer.outputs, layer.channels, *layer.kernel
    place = PlacedLayer(layer, 2, 5 + math.prod(shape), shape, layer.channels)
    return place, torch.full((k, place.biases + layer.outputs + 1), torch.nan, device=DEVICE)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_a_layer_forwards_and_backwards(layer: Layer) -> None:
    from bdpi.learner.picture_kernels import forwards, to_images, to_weights

    k, n = 3, 5
    sums_before = tensor(k, n, layer.height, layer.width, layer.channels)
    images = sums_before.tanh() if layer.tanh else sums_before.relu()
    weights = tensor(k, layer.outputs, *layer.kernel, layer.channels, seed=1)
    biases = tensor(k, layer.outputs + 3, seed=2).float()[:, :-3]  # a part of something longer
    slopes = tensor(k, n, layer.rows, layer.columns, layer.outputs, seed=3)
    found = forwards(layer, images, weights, biases)
    by_images = to_images(layer, images, weights, slopes, layer.tanh)
    place, by_parameters = parameters_of(layer)
    to_weights(place, images, slopes, by_parameters)
    for i in range(k):
        x, w, b = (each[i].float().requires_grad_() for each in (images, weights, biases))
        sums = reference(layer, x, w, b)
        outputs = sums.detach().tanh() if layer.tanh else sums.detach().relu()
        torch.testing.assert_close(found[i].float(), outputs, rtol=0.01, atol=0.01)
        expected_x, expected_w, expected_b = torch.autograd.grad(sums, (x, w, b), slopes[i].float())
        by_weights = place.weights_of(by_parameters)[i].permute(0, 2, 3, 1)
        torch.testing.assert_close(by_weights, expected_w, rtol=0.001, atol=0.001)
        torch.testing.assert_close(place.biases_of(by_parameters)[i], expected_b, rtol=0.001, atol=0.001)
        slope = 1 - x.detach().square() if layer.tanh else x > 0
        torch.testing.assert_close(by_images[i].float(), expected_x * slope, rtol=0.01, atol=0.01)


def test_sums_in_parts_are_the_same_every_time() -> None:
    from bdpi.learner.picture_kernels import to_weights

    layer = Layer(9, 9, 3, 4, (3, 3))
    images, slopes = tensor(2, 40, 9, 9, 3), tensor(2, 40, 7, 7, 4, seed=1)
    place, first = parameters_of(layer, 2)
    again = first.clone()
    for results in (first, again):
        to_weights(place, images, slopes, results)
    assert torch.equal(first.isnan(), again.isnan())
    assert first.isnan().sum() == 2 * 6  # all but the layer's are left alone
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    x, w = images[1].float(), torch.zeros(4, 3, 3, 3, device=DEVICE, requires_grad=True)
    (expected,) = torch.autograd.grad(reference(layer, x, w, torch.zeros(4, device=DEVICE)), w, slopes[1].float())
    torch.testing.assert_close(place.weights_of(first)[1].permute(0, 2, 3, 1), expected, rtol=0.001, atol=0.01)


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (33, 70, 1, 1), (2, 64, 9, 8)])
def test_weights_are_turned_round_and_padded(shape: tuple[int, int, int, int]) -> None:
    from bdpi.learner.picture_kernels import arrange

    outputs, channels, *kernel = shape
    padded = 4 * math.ceil(channels / 4)
    flat = torch.randn(2, 7 + math.prod(shape) + outputs, device=DEVICE)
    place = PlacedLayer(Layer(*kernel, padded, outputs, (kernel[0], kernel[1])), 7, 7 + math.prod(shape), shape, padded)
    expected = nn.functional.pad(place.weights_of(flat).permute(0, 1, 3, 4, 2), (0, padded - channels))
    assert torch.equal(arrange(place, flat), expected.bfloat16())


@pytest.mark.parametrize(("k", "size"), [(1, 7), (3, 2500)])
def test_adam_is_pytorchs(k: int, size: int) -> None:
    from bdpi.learner.adam import AdamTensors

    start = torch.randn(k, size)
    mine = AdamTensors(NetworkState.fresh(start.numpy().copy()), DEVICE)
    theirs = start.clone().to(DEVICE).requires_grad_()
    optimiser, rate = torch.optim.Adam([theirs], lr=1e-2), torch.tensor(1e-2, device=DEVICE)
    for number in range(5):
        theirs.grad = torch.randn(k, size, generator=torch.Generator().manual_seed(number)).to(DEVICE)
        optimiser.step()
        mine.step_by_kernel(theirs.grad, rate)
    torch.testing.assert_close(mine.parameters, theirs.detach(), rtol=1e-5, atol=1e-6)
    assert mine.steps.tolist() == [5] * k


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 3 * 5, 24), nn.Tanh(), nn.Linear(24, 4),
    )  # fmt: skip


def stack(module: nn.Module, k: int) -> Tensor:
    """Parameters of networks that differ."""
    flat = torch.as_tensor(flatten_parameters(module))
    noise = torch.randn(k, len(flat), generator=torch.Generator().manual_seed(5))
    return (flat + 0.03 * noise).to(DEVICE)


def found_in(module: nn.Module, images: Tensor) -> PictureNetworks:
    found = find_picture_networks(module, images)
    assert found is not None
    return found


def close(found: Tensor, expected: Tensor) -> None:
    """But for what 8 significant bits lose on the way: of gradients, PyTorch's own lose 1 to 4 percent here, as units
    close to zero are rectified or not."""
    assert found.shape == expected.shape
    assert (found - expected).norm() < 0.04 * expected.norm()


def test_stacks_give_what_pytorch_gives() -> None:
    torch.manual_seed(0)
    module, k, n = small().to(DEVICE), 3, 6
    images = torch.rand(k * n, 3, 12, 16).to(DEVICE)
    flat, targets = stack(module, k), torch.randn(k, n, 4).to(DEVICE)
    networks, plain = found_in(module, images), NetworkStack(module)
    inputs, given = lay_out(images).view(k, n, 12, 16, 4), images.view(k, n, 3, 12, 16)
    close(networks.values(flat, inputs), plain.values(flat, given))
    found = networks.gradients(lambda q, y: q + y, flat, inputs, targets)
    expected = plain.gradients(lambda q, y: q + y, flat, given, targets)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


def test_one_network_and_any_loss() -> None:
    torch.manual_seed(0)
    module = small().to(DEVICE)
    images, targets = torch.rand(6, 3, 12, 16).to(DEVICE), torch.rand(6, 4).to(DEVICE).softmax(1)
    flat = stack(module, 1)[0]

    def loss(scores: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.cross_entropy(scores, targets), scores.detach()

    found = found_in(module, images).gradient(loss, flat, lay_out(images))
    expected = FunctionalNetwork(module).gradient(loss, flat, images)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = small()

    def forward(self, images: Tensor) -> Tensor:
        return self.inside(images) + images.mean()


def head() -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2)


class Unused(nn.Module):
    """Has a part that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = small(), nn.Linear(5, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.inside(images)


def shared() -> nn.Module:
    twice = nn.Linear(8, 8)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *head()[:-1], twice, nn.ReLU(), twice)


OTHERS = {
    "unused parameters": Unused,
    "shared parameters": shared,
    "more than layers": lambda: Residual(),
    "padding": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), *head()),
    "dilation": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.ReLU(), *head()),
    "another activation": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ELU(), *head()),
    "no rectifier": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), *head()),
    "a rectified output": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *head(), nn.ReLU()),
    "no biases": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), *head()),
    "no features": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(2)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_networks_of_another_shape_are_left_to_pytorch(kind: str) -> None:
    images, module = torch.rand(2, 3, 12, 16), OTHERS[kind]()
    module(images)  # lazy layers find out their sizes
    assert find_picture_networks(module, images) is None


def test_a_network_that_fails_is_left_to_pytorch() -> None:
    assert find_picture_networks(nn.Conv2d(4, 2, 3), torch.rand(2, 3, 12, 16)) is None


def test_other_inputs_are_left_to_pytorch() -> None:
    assert find_picture_networks(small(), {"image": torch.rand(2, 3, 12, 16)}) is None
    assert find_picture_networks(nn.Linear(4, 2), torch.rand(2, 4)) is None


def test_the_policy_for_pictures_has_the_usual_shape() -> None:
    policy = CnnPolicy(spaces.Box(0, 255, (3, 60, 80), np.uint8), spaces.Discrete(4), lambda _: 1e-4)
    assert policy.actor is not None
    for module in (policy.actor, policy.make_critic()):
        assert find_picture_networks(module, torch.rand(2, 3, 60, 80)) is not None


def transitions() -> Transitions:
    return picture_transitions((3, 12, 16), 4, n=40)


def learner(has_actor: bool, **arguments: Any) -> TorchLearner:
    torch.manual_seed(0)
    actor, critic = small(), small()
    critics = np.array([[flatten_parameters(small()) for _ in range(2)] for _ in range(2)])
    priors = np.array([flatten_parameters(small()) for _ in range(2)])
    state = LearnerState.fresh(flatten_parameters(actor) if has_actor else None, critics, priors)
    module = actor if has_actor else None
    return TorchLearner(module, critic, state, DEVICE, lambda x: x.float() / 255, 0.5, **arguments)


@pytest.mark.parametrize("has_actor", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_learner_is_as_exact_by_kernels_as_by_pytorch(has_actor: bool) -> None:
    assert why_not(DEVICE) == ""
    rule: dict[str, Any] = {} if has_actor else {"actor_rule": None}
    hyper = Hyperparameters(critic_iterations=2, fit_steps=1, learning_rate=1e-3, actor_learning_rate=1e-3, **rule)
    exact = learner(has_actor)
    rounded, kernels = (learner(has_actor, precision="bfloat16", picture_kernels=which) for which in (False, True))
    start = {name: array.copy() for name, array in exact.state_dict().items()}
    for i in range(4 if DEVICE.type == "cuda" else 1):  # as it is, recorded, replayed twice
        batches = random_batches(2, 2, 12, n=40, seed=i)
        expected, _, found = (each.epoch(transitions(), *batches, hyper) for each in (exact, rounded, kernels))
    assert kernels.replay is None or kernels.replay.reason == ""
    assert isinstance(kernels._trained.critics, PictureNetworks)
    assert not isinstance(rounded._trained.critics, PictureNetworks)
    assert [found.critic_loss, found.mean_q] == pytest.approx([expected.critic_loss, expected.mean_q], rel=0.02)
    for name, array in exact.state_dict().items():
        if name.endswith("parameters"):
            mine, theirs = (np.abs(each.state_dict()[name] - array).mean() for each in (kernels, rounded))
            moved = np.abs(array - start[name]).mean()
            # What critics prefer may be a close call, which decides for the actor.
            assert 0 < mine < (1.3 * theirs if name.startswith("critics") else 0.25 * moved)
        elif not name.endswith("moment"):
            np.testing.assert_array_equal(kernels.state_dict()[name], array)


def test_without_a_c_compiler_triton_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bdpi.learner.pictures.is_interpreted", lambda: False)
    monkeypatch.delenv("CC", raising=False)
    assert (why_not(torch.device("cuda")) == "") == any(map(shutil.which, ("gcc", "clang", "cc")))
    monkeypatch.setenv("PATH", "")
    assert why_not(torch.device("cuda")) == REMEDY
    monkeypatch.setenv("CC", "/opt/bin/my-compiler")
    assert why_not(torch.device("cuda")) == ""


def test_that_pytorch_trains_instead_of_kernels_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"precision": "bfloat16", "picture_kernels": True}
    batches, hyper = random_batches(2, 2, 12, n=40), Hyperparameters(critic_iterations=1, fit_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr("bdpi.learner.pictures.why_not", lambda device: REMEDY)
        with pytest.warns(RuntimeWarning, match="need a GPU"):
            learner(True, **asked).epoch(transitions(), *batches, hyper)
    monkeypatch.setattr("bdpi.learner.pictures.find_picture_networks", lambda module, inputs: None)
    with pytest.warns(RuntimeWarning, match="train convolutions"):
        learner(True, **asked).epoch(transitions(), *batches, hyper)
