"""Critic rules of benchmarks/scales: what they compute, in Python and in C++."""

import torch

from bdpi.learner.rules import ClippedDouble, check_rule
from bdpi.learner.twins import check_twins
from scales.critic_rules import PartlyClipped, critic_rule

BATCH = (
    torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    torch.tensor([[5.0, 7.0], [2.0, 1.0]]),
    torch.tensor([[0.0, 6.0], [4.0, 9.0]]),
    torch.tensor([0, 1]),
    torch.tensor([0.5, -0.5]),
    torch.tensor([0.9, 0.9]),
)


def test_without_clipping_it_is_double_q_learning():
    # Q_A prefers actions 1 and 0, of which Q_B says 6 and 4.
    expected = torch.tensor([0.5 + 0.9 * 6 - 1, -0.5 + 0.9 * 4 - 4])
    torch.testing.assert_close(PartlyClipped(0.0, 1.0).change(*BATCH), expected)


def test_fully_clipped_it_is_bdpis_rule():
    torch.testing.assert_close(PartlyClipped(1.0, 0.2).change(*BATCH), ClippedDouble(0.2).change(*BATCH))
    assert critic_rule(1.0) == ClippedDouble()


def test_its_twin_in_cpp_computes_the_same():
    rule = PartlyClipped(0.5, 0.3)
    check_rule(rule, 3, "critic")
    check_twins(None, 3, rule)
