"""K-FAC against what it approximates, written out: Fisher matrices from per-sample gradients, explicit solves."""

import copy
import doctest
import pickle

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence

from bdpi.baselines import kfac
from bdpi.baselines.kfac import KFAC


def observed(optimizer: KFAC, network: nn.Module, inputs: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Show the optimiser the Fisher matrix of a categorical distribution; returns the actions that were drawn."""
    torch.manual_seed(seed)
    with optimizer.observe(network) as observation:
        distribution = Categorical(logits=network(inputs).flatten(start_dim=1))
    actions = distribution.sample()
    optimizer.update_fisher(observation, distribution.log_prob(actions))
    return actions


def factors(optimizer: KFAC, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    state = optimizer.state[layer.weight]
    return state["input_factor"], state["gradient_factor"]


def columns(layer: nn.Module) -> torch.Tensor:
    """The gradient of a layer as one matrix, (outputs, inputs), its bias being the last column."""
    parts = [layer.weight.grad.flatten(start_dim=1)]
    return torch.cat([*parts, layer.bias.grad[:, None]] if layer.bias is not None else parts, dim=1)


def per_sample_gradients(network: nn.Module, layer: nn.Module, log_likelihoods) -> torch.Tensor:
    """One flat gradient per sample; ``log_likelihoods`` is a function of the sample's number."""
    gradients = []
    for sample in log_likelihoods:
        network.zero_grad()
        sample().backward()
        gradients.append(columns(layer).flatten().clone())
    network.zero_grad()
    return torch.stack(gradients)


@pytest.mark.parametrize("bias", [True, False])
def test_one_sample_has_its_exact_fisher_matrix(bias):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=bias)
    optimizer, inputs = KFAC(layer), torch.randn(1, 4)
    actions = observed(optimizer, layer, inputs)
    gradient = per_sample_gradients(layer, layer, [lambda: Categorical(logits=layer(inputs)).log_prob(actions).sum()])
    input_factor, gradient_factor = factors(optimizer, layer)
    torch.testing.assert_close(torch.kron(gradient_factor, input_factor), gradient.T @ gradient)


def test_a_convolution_over_the_whole_picture_is_a_linear_layer():
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(2, 3, (4, 5)), nn.Linear(40, 3)
    with torch.no_grad():
        linear.weight.copy_(convolution.weight.flatten(start_dim=1))
        linear.bias.copy_(convolution.bias)
    pictures = torch.randn(6, 2, 4, 5)
    one, other = KFAC(convolution), KFAC(linear)
    observed(one, convolution, pictures)
    observed(other, linear, pictures.flatten(start_dim=1))
    for mine, theirs in zip(factors(one, convolution), factors(other, linear), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_factors_of_a_convolution_are_those_of_its_patches():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    pictures = torch.randn(4, 2, 5, 6)
    optimizer = KFAC(layer)
    with optimizer.observe(layer) as observation:
        output = layer(pictures)
    gradients = torch.randn_like(output)
    optimizer.update_fisher(observation, (output * gradients).sum(dim=(1, 2, 3)))

    padded = nn.functional.pad(pictures, (0, 0, 1, 1))
    _, _, height, width = output.shape
    inputs = torch.zeros(13, 13)
    outputs = torch.zeros(3, 3)
    for n in range(4):
        for y in range(height):
            for x in range(width):
                patch = padded[n, :, 2 * y : 2 * y + 3, x : x + 3 : 2].flatten()
                patch = torch.cat([patch, torch.ones(1)])
                inputs += torch.outer(patch, patch) / 4
                outputs += torch.outer(gradients[n, :, y, x], gradients[n, :, y, x]) / (4 * height * width)
                torch.testing.assert_close(output[n, :, y, x], layer.weight.flatten(1) @ patch[:-1] + layer.bias)
    input_factor, gradient_factor = factors(optimizer, layer)
    torch.testing.assert_close(input_factor, inputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient_factor, outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_step_solves_the_damped_kronecker_system(kind, bias):
    torch.manual_seed(0)
    if kind == "linear":
        layer: nn.Module = nn.Linear(5, 3, bias=bias)
        inputs = torch.randn(30, 5)
    else:
        layer = nn.Conv2d(2, 3, 2, bias=bias)
        inputs = torch.randn(7, 2, 3, 4)
    layer = layer.double()
    optimizer = KFAC(layer, lr=0.5, momentum=0.0, damping=0.03, kl_clip=1e9)
    observed(optimizer, layer, inputs.double())
    layer(inputs.double()).pow(2).mean().backward()
    gradient = columns(layer)
    before = copy.deepcopy(layer)
    optimizer.step()

    input_factor, gradient_factor = factors(optimizer, layer)
    fisher = torch.kron(gradient_factor, input_factor)
    solved = torch.linalg.solve(fisher + 0.03 * torch.eye(len(fisher)), gradient.flatten()).reshape(gradient.shape)
    n_weights = layer.weight[0].numel()
    torch.testing.assert_close(layer.weight, before.weight - 0.5 * solved[:, :n_weights].reshape(layer.weight.shape))
    if bias:
        torch.testing.assert_close(layer.bias, before.bias - 0.5 * solved[:, -1])


def test_the_trust_region_holds():
    """A gradient that is far too large moves the distribution by about ``kl_clip``, and a small one by less."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    inputs = torch.randn(2000, 4)
    divergences = []
    for size in (1e4, 1e-4):
        mine = copy.deepcopy(network)
        optimizer = KFAC(mine, momentum=0.0, kl_clip=1e-3, damping=1e-4)
        for seed in range(20):
            observed(optimizer, mine, inputs, seed)
        old = Categorical(logits=mine(inputs).detach())
        (size * Categorical(logits=mine(inputs)).log_prob(torch.ones(2000)) * inputs[:, 0]).mean().backward()
        optimizer.step()
        with torch.no_grad():
            divergences.append(float(kl_divergence(old, Categorical(logits=mine(inputs))).mean()))
    assert 3e-4 <= divergences[0] <= 2e-3
    assert divergences[1] < 1e-6


def test_natural_steps_do_not_depend_on_the_units_of_the_inputs():
    torch.manual_seed(0)
    inputs, wanted, noise = torch.randn(500, 3).double(), torch.randn(500).double(), torch.randn(500).double()
    scale = torch.tensor([1.0, 100.0, 0.01]).double()
    one, other = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    with torch.no_grad():
        other.weight.copy_(one.weight / scale)
        other.bias.copy_(one.bias)
    moves = []
    for layer, seen in ((one, inputs), (other, inputs * scale)):
        optimizer = KFAC(layer, momentum=0.0, damping=1e-12, kl_clip=1e9)
        with optimizer.observe(layer) as observation:
            values = layer(seen).flatten()
        optimizer.update_fisher(observation, values * noise)
        nn.functional.mse_loss(values, wanted).backward()
        optimizer.step()
        moves.append(layer(seen).flatten() - values)
    assert moves[0].abs().mean() > 0.1
    torch.testing.assert_close(moves[0], moves[1], rtol=1e-5, atol=1e-7)


class WithOthers(nn.Module):
    """A linear layer, a convolution in two groups, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(2, 4, 1, groups=2)
        self.linear = nn.Linear(4, 3)
        self.log_std = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(self.grouped(inputs).flatten(start_dim=1)) * self.log_std.exp()


def test_other_parameters_make_gradient_steps():
    torch.manual_seed(0)
    network = WithOthers()
    optimizer = KFAC(network, lr=0.1, momentum=0.0, kl_clip=1e9)
    inputs = torch.randn(8, 2, 1, 1)
    observed(optimizer, network, inputs)
    network(inputs).pow(2).mean().backward()
    before = copy.deepcopy(network)
    optimizer.step()
    for name in ("log_std", "grouped.weight", "grouped.bias"):
        old, new = before.get_parameter(name), network.get_parameter(name)
        torch.testing.assert_close(new, old - 0.1 * network.get_parameter(name).grad)
    assert not torch.allclose(network.linear.weight, before.linear.weight - 0.1 * network.linear.weight.grad)


def test_momentum_is_a_mean_of_directions():
    layer = nn.Linear(1, 1, bias=False)
    optimizer = KFAC(layer, lr=0.1, momentum=0.5, kl_clip=1e9)
    layer.weight.grad = torch.ones(1, 1)
    start = layer.weight.item()
    for step in (0.5, 0.75, 0.875):
        before = layer.weight.item()
        optimizer.step()
        assert before - layer.weight.item() == pytest.approx(0.1 * step, rel=1e-4)
    assert layer.weight.item() < start


def test_the_first_batches_are_averaged_equally_then_forgotten():
    layer = nn.Linear(1, 1, bias=False)
    optimizer = KFAC(layer, decay=0.75)
    expected = 0.0
    for count, size in enumerate([1.0, 3.0, 2.0, 5.0, 4.0, 7.0], start=1):
        with optimizer.observe(layer) as observation:
            output = layer(torch.full((2, 1), size))
        optimizer.update_fisher(observation, output.flatten())
        expected += (size**2 - expected) * max(1 / count, 0.25)
        assert factors(optimizer, layer)[0].item() == pytest.approx(expected)


def test_decompositions_are_refreshed_every_few_updates():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = KFAC(layer, refresh_interval=4)
    changed = []
    for seed in range(12):
        before = optimizer.state[layer.weight].get("input_vectors")
        observed(optimizer, layer, torch.randn(5, 3), seed)
        changed.append(before is not optimizer.state[layer.weight]["input_vectors"])
    assert changed == [True] * 4 + [False] * 3 + [True] + [False] * 3 + [True]


def test_a_decomposition_that_does_not_converge_is_done_in_double_precision(monkeypatch):
    decompose = torch.linalg.eigh

    def only_double(matrix):
        if matrix.dtype != torch.float64:
            raise torch.linalg.LinAlgError("failed to converge")
        return decompose(matrix)

    torch.manual_seed(0)
    layer, inputs = nn.Linear(3, 2), torch.randn(9, 3)
    one, other = KFAC(layer), KFAC(layer)
    observed(one, layer, inputs)
    monkeypatch.setattr(torch.linalg, "eigh", only_double)
    observed(other, layer, inputs)
    mine, theirs = one.state[layer.weight]["input_values"], other.state[layer.weight]["input_values"]
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def learn(network: nn.Module, optimizer: KFAC, steps: int) -> None:
    inputs = torch.linspace(-1, 1, 40).reshape(10, 4)
    for step in range(steps):
        observed(optimizer, network, inputs, step)
        optimizer.zero_grad()
        network(inputs)[:, 0].pow(2).mean().backward()
        optimizer.step()


def fingerprint(network: nn.Module) -> list[float]:
    return [number for parameter in network.parameters() for number in parameter.flatten().tolist()]


@pytest.mark.parametrize("how", ["copied", "pickled", "state"])
def test_copies_go_on_learning_alike(how):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = KFAC(network)
    learn(network, optimizer, 7)
    if how == "state":
        other_network = copy.deepcopy(network)
        other = KFAC(other_network)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # PyTorch would share the tensors
    elif how == "copied":
        other_network, other = copy.deepcopy((network, optimizer))
    else:
        other_network, other = pickle.loads(pickle.dumps((network, optimizer)))
    before = fingerprint(network)
    learn(network, optimizer, 5)
    assert fingerprint(other_network) == before
    learn(other_network, other, 5)
    assert fingerprint(other_network) == fingerprint(network) != before


def test_no_hook_is_left_behind():
    network = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    optimizer = KFAC(network)
    observed(optimizer, network, torch.randn(5, 4))
    assert all(layer.weight.grad is None for layer in network)  # gradients are left alone
    with pytest.raises(RuntimeError, match="shapes"), optimizer.observe(network):
        network(torch.randn(5, 9))
    for layer in network:
        assert not layer._forward_hooks
        assert not layer._backward_hooks


def test_the_example_of_the_documentation():
    assert doctest.testmod(kfac) == (0, 6)


@pytest.mark.parametrize(
    ("argument", "value"), [("momentum", 2), ("decay", -1), ("damping", 0), ("kl_clip", 0), ("refresh_interval", 0)]
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        KFAC(nn.Linear(1, 1), **{argument: value})
