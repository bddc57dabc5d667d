"""The Actor-Mimic's rule: the policy of the critic itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import one_hot


@dataclass(frozen=True)
class Imitation:
    """y(s) = softmax(Q'(s, .) / temperature), or greedy(Q'(s, .)) at temperature 0; cross-entropy loss   (Eq. mimic).

    :param temperature: how much the values of lesser actions count. Higher is more random.
    """

    temperature: float = 0.0
    loss: Literal["cross_entropy"] = "cross_entropy"

    @property
    def native(self) -> tuple[str, float]:
        """The C++ function ``imitation``."""
        return "imitation", self.temperature

    def targets(self, policy: Tensor, q_values: Tensor) -> Tensor:
        """See :meth:`bdpi.learner.rules.ActorRule.targets`."""
        if self.temperature == 0:
            return one_hot(q_values.argmax(dim=1), policy.shape[1]).to(policy.dtype)
        # The largest becomes 0 before, because dividing it by a low temperature might make it infinite.
        behind = q_values - q_values.amax(dim=1, keepdim=True)
        return (behind / self.temperature).softmax(dim=1).to(policy.dtype)
