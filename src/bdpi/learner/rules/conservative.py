"""BDPI's rule: a small step towards the critic's greedy policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import one_hot


@dataclass(frozen=True)
class Conservative:
    """y(s) = (1 - lambda) pi(s) + lambda greedy(Q'(s, .)), with lambda = 1 - exp(-delta)   (Eq. ppi_actor).

    :param trust_region: delta, how far (in KL divergence) one critic may move the actor. Lower explores longer.
    """

    trust_region: float = 0.05
    loss: Literal["squared_error"] = "squared_error"

    @property
    def rate(self) -> float:
        """lambda, the share of the greedy policy in the target."""
        return -math.expm1(-self.trust_region)

    @property
    def native(self) -> tuple[str, float]:
        """The C++ function ``conservative``."""
        return "conservative", self.rate

    def targets(self, policy: Tensor, q_values: Tensor) -> Tensor:
        """See :meth:`bdpi.learner.rules.ActorRule.targets`."""
        greedy = one_hot(q_values.argmax(dim=1), policy.shape[1]).to(policy.dtype)
        return (1 - self.rate) * policy + self.rate * greedy
