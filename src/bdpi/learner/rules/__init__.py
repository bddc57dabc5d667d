"""How the actor follows a critic. One rule is one small file.

A rule says which policy the actor should be fitted to, given the policy it has now and the critic's Q-values, and by
which loss. A rule of your own needs nothing more than the :class:`ActorRule` protocol; it runs on the PyTorch and
tabular learners. To run on the native learner too, it names its C++ counterpart: one function in ``cpp/rules.hpp``, and
a line in the table at the end of that file; agents compare the two when they are made. Make it a frozen dataclass: on a
GPU, equal rules share a recorded epoch.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from bdpi.learner.rules.conservative import Conservative
from bdpi.learner.rules.imitation import Imitation

__all__ = ["ActorRule", "Conservative", "Imitation", "check_rule"]

LOSSES = ("squared_error", "cross_entropy")
_ROUNDING = 1e-3  # of single precision, and more


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
    if type(rule).__hash__ in (None, object.__hash__):
        raise ValueError(
            f"the actor rule {name} must be a frozen dataclass, @dataclass(frozen=True): on a GPU, equal rules share a "
            "recorded epoch"
        )
    _check_native(name, rule.native)
    generator = torch.Generator().manual_seed(0)
    policy, q_values = (torch.randn(2, n_actions, generator=generator) for _ in range(2))
    policy = policy.softmax(dim=1)
    targets = rule.targets(policy, q_values)
    if not isinstance(targets, Tensor) or targets.shape != policy.shape:
        got = (
            f"a tensor of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else f"{type(targets).__name__}"
        )
        raise ValueError(
            f"the actor rule {name} must give a tensor of shape (n, n_actions), {(2, n_actions)} here: got {got}"
        )
    sums = targets.sum(dim=1)
    if not bool((targets >= -_ROUNDING).all() and ((sums - 1).abs() <= _ROUNDING).all()):
        raise ValueError(
            f"the actor rule {name} must give probabilities, which are at least 0 and add up to 1 in each row: got "
            f"numbers from {targets.min():.3g} to {targets.max():.3g}, in rows that add up to "
            f"{' and '.join(f'{total:.3g}' for total in sums.tolist())}"
        )


def _check_native(name: str, native: Any) -> None:
    is_pair = isinstance(native, tuple | list) and len(native) == 2
    if native is None or (is_pair and isinstance(native[0], str) and _is_number(native[1])):
        return
    raise ValueError(
        f"native of the actor rule {name} must be the name and the parameter of its C++ counterpart, such as "
        f'("conservative", 0.05), or None if there is none, got {native!r}'
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
