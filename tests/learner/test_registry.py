"""Which learner is chosen for what."""

from dataclasses import replace

import pytest
import torch

from bdpi.learner import native
from bdpi.learner.registry import Task, choose
from bdpi.learner.rules import ClippedDouble, Conservative

pytestmark = [
    pytest.mark.usefixtures("fused_kernels"),
    pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed"),
]
CPU = torch.device("cpu")
SMALL = Task(((4, 32, 2), (4, 32, 2)), False, 256, CPU, (ClippedDouble(), Conservative()))


class Unknown(Conservative):
    native = None


NO_TWIN = replace(SMALL, rules=(ClippedDouble(), Unknown()))
DEEP = replace(SMALL, networks=((4, 32, 32, 2),) * 2)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (SMALL, "native"),
        (DEEP, "native"),
        (NO_TWIN, "torch"),
        (replace(SMALL, networks=()), "torch"),  # convolutions, for example
        (replace(SMALL, device=torch.device("meta")), "torch"),
    ],
)
def test_auto_takes_the_fastest_that_can(task, expected):
    assert choose(task) == expected


@pytest.mark.parametrize(
    ("task", "learner", "reason"),
    [
        (DEEP, "fused", "one hidden layer"),
        (NO_TWIN, "fused", "counterpart"),
        (NO_TWIN, "native", "counterpart"),
        (replace(SMALL, networks=()), "native", "multi-layer perceptrons"),
        (replace(SMALL, device=torch.device("meta")), "fused", "on a GPU"),
        (SMALL, "nosuch", "learner must be"),
    ],
)
def test_a_learner_that_cannot_says_why(task, learner, reason):
    with pytest.raises(ValueError, match=reason):
        choose(task, learner)
