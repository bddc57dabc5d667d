"""Networks that are fed with patches, and networks that compute in bfloat16, learn what they learn otherwise."""

import numpy as np
import pytest
import torch
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.convolutions import PatchConv2d, Window, products_as_convolutions
from bdpi.learner.functional import FunctionalNetwork, flatten_parameters
from bdpi.learner.patches import lay_out, taking_patches
from bdpi.learner.torch import TorchLearner
from worlds import picture_transitions, random_batches

IMAGES = torch.randn(2, 2, 7, 9, generator=torch.Generator().manual_seed(0))


def convolutions(**first) -> nn.Module:
    arguments = {"kernel_size": 3, "stride": 2, **first}
    return nn.Sequential(nn.Conv2d(2, 4, **arguments), nn.ReLU(), nn.Conv2d(4, 5, 2), nn.Flatten(), nn.LazyLinear(3))


def ready(module: nn.Module) -> nn.Module:
    module(IMAGES)  # lazy layers find out their sizes
    return module


class Both(nn.Module):
    """Looks at a picture and at a vector; with ``mean``, at the picture a second time."""

    def __init__(self, mean: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.image = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 3 * 4 + 5, 3)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        image = self.image(inputs["image"])
        if self.mean:
            image = image + inputs["image"].mean(dim=(1, 2, 3))[:, None]
        return self.head(torch.cat([image, inputs["vector"]], dim=1))


@pytest.mark.parametrize("first", [{}, {"padding": 1}, {"kernel_size": (3, 2), "stride": (1, 3), "bias": False}])
def test_a_network_that_begins_with_a_convolution_can_take_patches(first):
    module = ready(convolutions(**first))
    found = taking_patches(module, IMAGES)
    assert found is not None
    taking, windows = found
    assert isinstance(taking[0], PatchConv2d)
    assert type(module[0]) is type(taking[2]) is nn.Conv2d
    assert windows == (Window.of(module[0]),)
    torch.testing.assert_close(taking(lay_out(IMAGES, windows)), module(IMAGES))
    assert lay_out(IMAGES, windows, torch.bfloat16).dtype == torch.bfloat16


def test_of_a_dictionary_only_pictures_become_patches():
    module, inputs = Both(), {"image": IMAGES, "vector": torch.randn(2, 5)}
    found = taking_patches(module, inputs)
    assert found is not None
    taking, windows = found
    assert windows == (Window((3, 3), (2, 2), (0, 0, 0, 0)), None)
    torch.testing.assert_close(taking(lay_out(inputs, windows)), module(inputs))


class Halved(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs / 2)


OTHERS = {
    "no convolution": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
    "something before it": lambda: nn.Sequential(nn.BatchNorm2d(2), *convolutions()),
    "another tensor": lambda: Halved(*convolutions()),
    "groups": lambda: convolutions(groups=2),
    "dilation": lambda: convolutions(dilation=2),
    "padding with what is there": lambda: convolutions(padding=1, padding_mode="circular"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_networks_take_what_they_took(kind):
    assert taking_patches(ready(OTHERS[kind]()).eval(), IMAGES) is None


def test_a_network_that_looks_at_the_picture_twice_takes_pictures():
    assert taking_patches(Both(mean=True), {"image": IMAGES, "vector": torch.randn(2, 5)}) is None


# -- epochs -----------------------------------------------------------------------------------------------------------


def transitions() -> Transitions:
    return picture_transitions((2, 7, 9), 3)


def from_bytes(images: torch.Tensor) -> torch.Tensor:
    return images.float() / 255


def learner(has_actor: bool = True, actor_padding: int = 0, **arguments) -> TorchLearner:
    torch.manual_seed(0)
    actor = ready(convolutions(padding=actor_padding))
    critics = np.array([[flatten_parameters(ready(convolutions())) for _ in range(2)] for _ in range(3)])
    priors = np.array([flatten_parameters(ready(convolutions())) for _ in range(3)])
    state = LearnerState.fresh(flatten_parameters(actor) if has_actor else None, critics, priors)
    critic = ready(convolutions())
    return TorchLearner(actor if has_actor else None, critic, state, "cpu", from_bytes, 0.5, **arguments)


def train(learner: TorchLearner, epochs: int = 3) -> list[float]:
    rule = {} if learner.actor is not None else {"actor_rule": None}
    hyper = Hyperparameters(critic_iterations=3, fit_steps=2, learning_rate=1e-3, actor_learning_rate=2e-3, **rule)
    metrics = [learner.epoch(transitions(), *random_batches(3, 3, 16, n=60, seed=i), hyper) for i in range(epochs)]
    return [each.critic_loss for each in metrics]


@pytest.mark.parametrize("has_actor", [True, False])
@pytest.mark.parametrize("at_once", [None, 2, 1])
def test_patches_change_nothing(has_actor, at_once):
    usual, patched = learner(has_actor), learner(has_actor, patches=True)
    patched._at_once = at_once
    assert train(patched) == pytest.approx(train(usual), rel=1e-4)
    assert patched._trained.lay_out.keywords["windows"] == (Window((3, 3), (2, 2), (0, 0, 0, 0)),)
    assert not hasattr(usual._trained.lay_out, "keywords")
    expected, found = usual.state_dict(), patched.state_dict()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
    pictures = transitions().observations[:4]  # which predictions still take
    np.testing.assert_allclose(patched.q_values(pictures), usual.q_values(pictures), atol=1e-5)


def test_actor_and_critics_that_see_other_patches_take_pictures():
    usual, patched = learner(actor_padding=1), learner(actor_padding=1, patches=True)
    assert train(patched) == train(usual)
    assert not hasattr(patched._trained.lay_out, "keywords")


def test_on_the_cpu_networks_are_trained_as_they_are():
    usual = learner()
    train(usual, epochs=1)
    assert usual._trained.critics is usual._critic_networks
    assert usual._trained.actor is usual._actor_network


def test_matrix_products_are_as_precise_as_convolutions_and_only_meanwhile(monkeypatch):
    products, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    assert convolution.allow_tf32, "PyTorch's default"
    assert not products.allow_tf32, "PyTorch's default"
    with products_as_convolutions():
        assert products.allow_tf32
    assert not products.allow_tf32
    monkeypatch.setattr(convolution, "allow_tf32", False)
    with products_as_convolutions():
        assert not products.allow_tf32


# -- bfloat16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patches", [False, True])
@pytest.mark.parametrize("at_once", [None, 1])
def test_bfloat16_rounds_computations_and_keeps_parameters(patches, at_once):
    exact, rounded = learner(), learner(precision="bfloat16", patches=patches)
    rounded._at_once = at_once
    losses, expected = train(rounded), train(exact)
    assert losses == pytest.approx(expected, rel=0.02)
    assert losses != pytest.approx(expected, rel=1e-5), "it computed in float32"
    for name, array in rounded.state_dict().items():
        assert array.dtype == exact.state_dict()[name].dtype
    pictures = transitions().observations[:4]
    twin = learner()
    twin.load_state_dict(rounded.state_dict())
    assert (rounded.policy(pictures) == twin.policy(pictures)).all(), "predictions are float32"


def test_q_values_of_a_bfloat16_network_have_all_their_bits():
    """Where 1 is the reward and 0.99 the discount, Q-values of 8 significant bits could not tell near from far."""
    network, short = ready(convolutions()), torch.bfloat16
    rounded = FunctionalNetwork(network, short)
    flat = torch.as_tensor(flatten_parameters(network))
    found, exact = rounded(flat, IMAGES), network(IMAGES)
    assert ((found - exact).abs() < 0.02).all()
    assert (found != exact).any(), "it computed in float32"
    assert (found != found.to(short).float()).all(), "the outputs were rounded"

    def total(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.sum(), outputs

    gradient, _, _ = rounded.gradient(total, flat, IMAGES)
    mapped, _, _ = rounded.mapped_gradient(total, flat, IMAGES)
    assert torch.equal(gradient, mapped)
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient[-3:], torch.full((3,), float(len(IMAGES)))), "of the output biases"


def test_small_steps_are_not_lost_in_bfloat16():
    """A parameter of 1 changes by 1e-4 a step, far less than the 0.004 to which bfloat16 rounds it."""
    rounded = learner(precision="bfloat16")
    rounded.critics.parameters += 1
    hyper = Hyperparameters(critic_iterations=1, fit_steps=1, learning_rate=1e-4)
    before = rounded.state_dict()["critics.parameters"].copy()
    rounded.epoch(transitions(), *random_batches(3, 3, 16, n=60), hyper)
    change = np.abs(rounded.state_dict()["critics.parameters"] - before)[:, 0]
    assert np.median(change) == pytest.approx(1e-4, rel=0.1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_where_a_picture_is_bright_is_learned(precision):
    """The action that names the bright third is worth 1, others nothing. By luck, an actor is right a third of the
    time: of 300 new pictures, 95 % are out of reach."""
    rng = np.random.default_rng(0)

    def pictures(n: int) -> tuple[np.ndarray, np.ndarray]:
        bright, images = rng.integers(0, 3, n), rng.integers(0, 120, (n, 2, 7, 9))
        for image, third in zip(images, bright, strict=True):
            image[:, :, 3 * third : 3 * third + 3] += 100
        return images.astype(np.uint8), bright

    images, bright = pictures(500)
    actions = rng.integers(0, 3, 500)
    rewards = (actions == bright).astype(np.float32)
    experience = Transitions(images, actions, rewards, np.zeros(500, np.float32), images)
    pupil = learner(precision=precision, patches=True)
    hyper = Hyperparameters(fit_steps=4, learning_rate=1e-2, actor_learning_rate=1e-2)
    for epoch in range(12):
        pupil.epoch(experience, *random_batches(3, 3, 64, n=500, seed=epoch), hyper)
    images, bright = pictures(300)
    right = (pupil.policy(images).argmax(axis=1) == bright).mean()
    assert right > 0.95


def test_other_precisions_are_refused():
    with pytest.raises(ValueError, match='precision must be "float32" or "bfloat16", got \'half\''):
        learner(precision="half")
