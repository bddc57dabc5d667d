"""BDPI's critics: clipped, swapped double Q-learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClippedDouble:
    """Q'(s, a) = Q_A(s, a) + alpha (r + discount V(s') - Q_A(s, a))   (Eq. abcdqn).

    V(s') = min(Q_A(s', a*), Q_B(s', a*)), where a* is the action that Q_A prefers: Q_B keeps it from overestimating.
    Bootstrapped DQN has a step size of 1.

    :param step_size: alpha. Lower averages over more transitions; 1 is plain Q-learning.
    """

    step_size: float = 0.2

    @property
    def native(self) -> tuple[str, float]:
        """The C++ function ``clipped_double``."""
        return "clipped_double", self.step_size

    def change(
        self, q: Tensor, next_a: Tensor, next_b: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> Tensor:
        """See :meth:`bdpi.learner.rules.CriticRule.change`."""
        best = next_a.argmax(dim=1, keepdim=True)
        value = torch.minimum(next_a.gather(1, best), next_b.gather(1, best)).squeeze(1)
        return self.step_size * (rewards + discounts * value - q.gather(1, actions.unsqueeze(1)).squeeze(1))
