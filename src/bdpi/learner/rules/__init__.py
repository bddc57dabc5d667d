"""How the actor follows a critic. One rule is one small file.

A rule says which policy the actor should be fitted to, given the policy it has now and the critic's Q-values, and by
which loss. A rule of your own needs nothing more than the :class:`ActorRule` protocol; it runs on the PyTorch and
tabular learners. To run on the native learner too, it names its C++ counterpart: one function in ``cpp/rules.hpp``, and
a line in the table at the end of that file. Make it a frozen dataclass: on a GPU, equal rules share a recorded epoch.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from bdpi.learner.rules.conservative import Conservative
from bdpi.learner.rules.imitation import Imitation

__all__ = ["ActorRule", "Conservative", "Imitation", "check_rule"]

LOSSES = ("squared_error", "cross_entropy")


class ActorRule(Protocol):
    """From pi(s, .) and Q'(s, .) to the policy that the actor is fitted to."""

    @property
    def loss(self) -> Literal["squared_error", "cross_entropy"]:
        """Between the actor's probabilities and the target."""
        ...

    @property
    def native(self) -> tuple[str, float] | None:
        """Name and parameter of the C++ counterpart; None if there is none."""
        ...

    def targets(self, policy: Tensor, q_values: Tensor) -> Tensor:
        """One target policy per transition.

        :param policy: pi(s, .), shape (n, n_actions)
        :param q_values: the critic's last Q'(s, .), same shape; minus infinity where an action is not allowed
        """
        ...


def check_rule(rule: ActorRule, n_actions: int) -> None:
    """Find the mistakes of a new rule before anything is learned.

    :raises ValueError: naming what is wrong
    """
    name = type(rule).__name__
    missing = [part for part in ("loss", "native", "targets") if not hasattr(rule, part)]
    if missing:
        raise ValueError(f"the actor rule {name} has no {' and no '.join(missing)}: see bdpi.learner.rules.ActorRule")
    if rule.loss not in LOSSES:
        raise ValueError(f"the loss of the actor rule {name} must be one of {LOSSES}, got {rule.loss!r}")
    policy = torch.full((2, n_actions), 1 / n_actions)
    targets = rule.targets(policy, torch.zeros(2, n_actions))
    if not isinstance(targets, Tensor) or targets.shape != policy.shape:
        got = (
            f"a tensor of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else f"{type(targets).__name__}"
        )
        raise ValueError(
            f"the actor rule {name} must give a tensor of shape (n, n_actions), {(2, n_actions)} here: got {got}"
        )
