"""Rules by which a trained agent may choose its actions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

#: "drawn" and "actor" ask the actor; "vote", "mean" and the others the critics: Q_A, or with "min", the smaller of Q_A
#: and Q_B. "tenth" and "half" leave out actions that the actor finds less than so likely as its first choice.
RULES = ("drawn", "actor", "vote", "mean", "tenth", "half", "min-vote", "min-mean", "min-tenth", "min-half")


def choose(rule: str, policy: Tensor, q_a: Tensor, q_b: Tensor) -> Tensor:
    """Actions (R,) by a rule without chance.

    :param policy: (R, A)
    :param q_a: (R, C, A)
    :param q_b: the same
    """
    if rule == "actor":
        return policy.argmax(dim=1)
    q = torch.minimum(q_a, q_b) if rule.startswith("min-") else q_a
    rule, mean = rule.removeprefix("min-"), q.mean(dim=1)
    if rule == "mean":
        return mean.argmax(dim=1)
    if rule == "vote":
        votes = one_hot(q.argmax(dim=2), q.shape[2]).sum(dim=1)
        return mean.masked_fill(votes < votes.amax(dim=1, keepdim=True), -torch.inf).argmax(dim=1)
    least = {"tenth": 0.1, "half": 0.5}[rule]
    return mean.masked_fill(policy < least * policy.amax(dim=1, keepdim=True), -torch.inf).argmax(dim=1)
