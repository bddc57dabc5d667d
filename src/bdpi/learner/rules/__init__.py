"""How the actor follows a critic. One rule is one small file.

A rule says which policy the actor should be fitted to, given the policy it has now and the critic's Q-values, and by
which loss. A rule of your own needs nothing more than the :class:`ActorRule` protocol; it runs on the PyTorch and
tabular learners. To run on the native learner too, it names its C++ counterpart (one function in ``cpp/kernel.cpp``).
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from bdpi.learner.rules.conservative import Conservative
from bdpi.learner.rules.imitation import Imitation

__all__ = ["ActorRule", "Conservative", "Imitation"]


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
