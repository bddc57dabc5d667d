"""Convolutions as matrix products give what PyTorch's own convolutions give."""

import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from bdpi.learner.convolutions import MatrixConv2d, Overlap, Patches, products_as_convolutions, with_matrix_products

CASES = [
    {"kernel_size": 8, "stride": 4},
    {"kernel_size": (5, 3), "stride": (3, 2), "padding": (1, 2)},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": 1, "bias": False},
]


@pytest.mark.parametrize("arguments", CASES)
def test_values_and_gradients_of_a_stack(arguments):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, **arguments), nn.Tanh(), nn.Conv2d(4, 2, 2)).double()
    matrix = with_matrix_products(plain)
    assert isinstance(matrix[0], MatrixConv2d)
    assert type(plain[0]) is nn.Conv2d
    parameters = {name: torch.stack([p.detach(), p.detach() * 0.5]) for name, p in plain.named_parameters()}
    images = torch.randn(2, 5, 3, 12, 13, dtype=torch.float64)

    def loss(module):
        def value(parameters, images):
            outputs = functional_call(module, parameters, (images,))
            return outputs.square().sum(), outputs

        return vmap(grad(value, argnums=(0, 1), has_aux=True))

    (expected, expected_input), expected_values = loss(plain)(parameters, images)
    (found, found_input), values = loss(matrix)(parameters, images)
    torch.testing.assert_close(values, expected_values)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_input, expected_input)


def test_patches_and_overlap_are_each_others_gradients():
    images = torch.randn(2, 7, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Patches.apply(x, (3, 2), (2, 1)), images)
    patches = torch.randn(2, 3, 5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Overlap.apply(x, (7, 6), (3, 2), (2, 1)), patches)


@pytest.mark.parametrize("arguments", [{"groups": 2}, {"dilation": 2}, {"padding": 1, "padding_mode": "circular"}])
def test_other_convolutions_stay_as_they_are(arguments):
    assert type(with_matrix_products(nn.Sequential(nn.Conv2d(4, 4, 3, **arguments)))[0]) is nn.Conv2d


@pytest.fixture
def settings():
    """PyTorch's, for convolutions and for matrix products."""
    both = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [each.allow_tf32 for each in both]
    yield both
    for each, allowed in zip(both, before, strict=True):
        each.allow_tf32 = allowed


def test_products_stay_as_convolutions_until_the_last_thread_is_done(settings):
    convolutions, products = settings
    convolutions.allow_tf32, products.allow_tf32 = True, False
    entered, may_leave, found = threading.Event(), threading.Event(), []

    def second() -> None:
        with products_as_convolutions():
            entered.set()
            may_leave.wait(60)
            found.append(products.allow_tf32)

    thread = threading.Thread(target=second)
    with products_as_convolutions():
        thread.start()
        assert entered.wait(60)
    found.append(products.allow_tf32)
    may_leave.set()
    thread.join()
    assert found == [True, True], "the second one was still at it"
    assert not products.allow_tf32


@pytest.mark.parametrize("chosen", [True, False])
def test_products_that_are_as_convolutions_stay_so(settings, chosen):
    convolutions, products = settings
    convolutions.allow_tf32 = products.allow_tf32 = chosen
    with products_as_convolutions():
        assert products.allow_tf32 is chosen
    assert products.allow_tf32 is chosen
