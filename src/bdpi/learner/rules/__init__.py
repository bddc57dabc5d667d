"""How a critic moves towards its new estimate, and how the actor follows a critic. One rule is one small file.

A rule of your own is a frozen dataclass that has what :class:`CriticRule` or :class:`ActorRule` say; on a GPU, equal
rules share a recorded epoch. In Python, it is used by the reference, the PyTorch and the tabular learners. To run on
the native learner and in the GPU kernels too, it has a twin in C++: one inline function, written as those in
``rules.hpp``. ``native`` says which: ``(name, parameter)`` of one that is there, or ``(name, parameter, source)``, with
the function itself as text, which is compiled when it is first needed; numbers beside the parameter are written into
the text. Agents compare the twins when they are made. With ``native = None``, PyTorch trains.

All Q-values and rewards are those that networks learn, the user's times ``agent.policy.scales.return_factor``, which
changes while the agent learns; ``agents/actor_mimic.py`` has a rule with a number in the rewards' units.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from bdpi.learner.rules.clipped_double import ClippedDouble
from bdpi.learner.rules.conservative import Conservative
from bdpi.learner.rules.imitation import Imitation

__all__ = ["ActorRule", "ClippedDouble", "Conservative", "CriticRule", "Imitation", "allowed", "check_rule"]

#: Name and parameter of a C++ function in rules.hpp; a third part is its source, for a function that is not there.
Native = tuple[str, float] | tuple[str, float, str]

LOSSES = ("squared_error", "cross_entropy")
_ROUNDING = 1e-3  # of single precision, and more


class CriticRule(Protocol):
    """From what both networks of a critic say to what Q_A should say of the actions that were taken."""

    @property
    def native(self) -> Native | None:
        """The C++ twin; None if there is none."""
        ...

    def change(
        self, q: Tensor, next_a: Tensor, next_b: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> Tensor:
        """Q'(s, a) - Q_A(s, a) of n transitions, shape (n,).

        :param q: Q_A(s, .), shape (n, n_actions)
        :param next_a: Q_A(s', .); minus infinity where an action is not allowed, as in ``next_b``
        :param next_b: Q_B(s', .)
        :param actions: a, shape (n,)
        :param rewards: r, in the units of Q-values
        :param discounts: gamma, or 0 where the episode terminated
        """
        ...


class ActorRule(Protocol):
    """From pi(s, .) and Q'(s, .) to the policy that the actor is fitted to."""

    @property
    def loss(self) -> Literal["squared_error", "cross_entropy"]:
        """Between the actor's probabilities and the target."""
        ...

    @property
    def native(self) -> Native | None:
        """The C++ twin; None if there is none."""
        ...

    def targets(self, policy: Tensor, q_values: Tensor) -> Tensor:
        """One target policy per transition.

        :param policy: pi(s, .), shape (n, n_actions)
        :param q_values: the critic's last Q'(s, .), same shape; minus infinity where an action is not allowed
        """
        ...


def allowed(q: Tensor, masks: Tensor | None) -> Tensor:
    """Q-values with minus infinity for actions that are not allowed, so that no argmax and no softmax takes them.

    Where none is allowed, as after the end of an episode, all of them count.
    """
    return q if masks is None else q.masked_fill(~masks & masks.any(dim=-1, keepdim=True), -torch.inf)


def check_rule(rule: ActorRule | CriticRule, n_actions: int, kind: Literal["actor", "critic"]) -> None:
    """Find the mistakes of a new rule before anything is learned.

    :raises ValueError: naming what is wrong
    """
    name, protocol = f"the {kind} rule {type(rule).__name__}", f"bdpi.learner.rules.{kind.title()}Rule"
    if isinstance(rule, type):
        raise ValueError(f"{kind}_rule() must return a rule, not its class: {rule.__name__}()")
    needed = ("loss", "native", "targets") if kind == "actor" else ("native", "change")
    missing = [part for part in needed if not hasattr(rule, part)]
    if missing:
        raise ValueError(f"{name} has no {' and no '.join(missing)}: see {protocol}")
    if type(rule).__hash__ in (None, object.__hash__):
        raise ValueError(
            f"{name} must be a frozen dataclass, @dataclass(frozen=True): on a GPU, equal rules share a recorded epoch"
        )
    _check_native(name, rule.native)
    generator = torch.Generator().manual_seed(0)
    first, *others = (torch.randn(2, n_actions, generator=generator) for _ in range(3))
    if kind == "actor":
        _check_targets(name, rule, first.softmax(dim=1), others[0])  # type: ignore[arg-type]
    else:
        batch = first, *others, torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.full((2,), 0.9)
        change = rule.change(*batch)  # type: ignore[union-attr, call-arg]
        _check_shape(name, change, (2,), "(n,)")
        if not bool(change.isfinite().all()):
            raise ValueError(f"{name} must give finite numbers, got {change.tolist()}")


def _check_targets(name: str, rule: ActorRule, policy: Tensor, q_values: Tensor) -> None:
    if rule.loss not in LOSSES:
        raise ValueError(f"the loss of {name} must be one of {LOSSES}, got {rule.loss!r}")
    targets = rule.targets(policy, q_values)
    _check_shape(name, targets, tuple(policy.shape), "(n, n_actions)")
    sums = targets.sum(dim=1)
    if not bool((targets >= -_ROUNDING).all() and ((sums - 1).abs() <= _ROUNDING).all()):
        raise ValueError(
            f"{name} must give probabilities, which are at least 0 and add up to 1 in each row: got "
            f"numbers from {targets.min():.3g} to {targets.max():.3g}, in rows that add up to "
            f"{' and '.join(f'{total:.3g}' for total in sums.tolist())}"
        )


def _check_shape(name: str, found: Any, shape: tuple[int, ...], symbols: str) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        got = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{name} must give a tensor of shape {symbols}, {shape} here: got {got}")


def _check_native(name: str, native: Any) -> None:
    if native is None:
        return
    is_tuple = isinstance(native, tuple | list) and len(native) in (2, 3)
    if is_tuple and all(isinstance(text, str) for text in (native[0], *native[2:])) and _is_number(native[1]):
        return
    raise ValueError(
        f"native of {name} must be the name and the parameter of its C++ counterpart, such as "
        f'("conservative", 0.05), and its source if bdpi does not have it, or None if there is none, got {native!r}'
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
