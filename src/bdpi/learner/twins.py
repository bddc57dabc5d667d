"""A rule and its C++ twin have to say the same: both are tried on a few random transitions."""

from __future__ import annotations

import numpy as np

from bdpi.learner import native
from bdpi.learner.interface import Hyperparameters, LearnerState, Transitions
from bdpi.learner.native import NativeLearner
from bdpi.learner.rules import ActorRule, ClippedDouble, CriticRule
from bdpi.learner.tabular import actor_loss, actor_targets, critic_targets


def check_twins(rule: ActorRule | None, n_actions: int, critic_rule: CriticRule | None = None) -> None:
    """Whether the C++ twins that rules name are there, and say the same.

    :raises ValueError: if not
    """
    critic_rule = critic_rule or ClippedDouble()
    if not native.is_available() or critic_rule.native is None or (rule is not None and rule.native is None):
        return
    rng, n = np.random.default_rng(0), 4
    seen, sizes = rng.normal(size=(n, 2)).astype(np.float32), [2, n_actions]
    parameters = rng.normal(size=(3, 3 * n_actions)).astype(np.float32)
    state = LearnerState.fresh(parameters[0], parameters[None, 1:])
    learner = NativeLearner(sizes, sizes, state, batch_size=1, n_threads=1)
    actions, rewards = rng.integers(n_actions, size=n), rng.normal(size=n).astype(np.float32)
    transitions = Transitions(seen, actions, rewards, np.full(n, 0.9, np.float32), seen[::-1].copy())
    hyperparameters = Hyperparameters(1, 1, critic_rule, actor_rule=rule)
    for row in range(n):
        here, there = seen[row : row + 1], transitions.next_observations[row : row + 1]  # type: ignore[index]
        q, next_a, policy = learner.q_values(here)[0], learner.q_values(there)[0], learner.policy(here)
        state.active[:] = 1 - state.active
        next_b = learner.q_values(there)[0]
        state.active[:] = 1 - state.active
        columns = (column[row : row + 1] for column in (actions, rewards, transitions.discounts))
        targets = critic_targets(critic_rule, q, next_a, next_b, *columns)
        try:
            found = learner.epoch(transitions, np.array([[row]]), np.array([0]), hyperparameters)
        except ValueError as error:
            raise ValueError(
                f"{error}, which a rule names: for actors, bdpi has 'conservative' and 'imitation', and "
                "'clipped_double' for critics. Any other gives its C++ source as the third part of native; or, with "
                "native = None, PyTorch trains it."
            ) from error
        _compare(critic_rule, found.critic_loss, float(np.mean((targets - q) ** 2)), "change()")
        if rule is not None:
            _compare(
                rule, found.actor_loss, actor_loss(rule, policy, actor_targets(rule, policy, targets)), "targets()"
            )


def _compare(rule: ActorRule | CriticRule, found: float, expected: float, method: str) -> None:
    if np.isclose(found, expected, rtol=1e-3, atol=1e-5):
        return
    assert rule.native is not None
    raise ValueError(
        f"the rule {type(rule).__name__} names the C++ rule {rule.native[:2]}, which has other targets: the loss of a "
        f"random transition is {found:.4g} by the C++ rule, and {expected:.4g} by {method}. Correct one of them, or "
        "set native = None, and PyTorch trains the rule."
    )
