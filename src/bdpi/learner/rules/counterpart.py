"""A rule and the C++ function that it names have to say the same: each is tried on a few random transitions."""

from __future__ import annotations

import numpy as np

from bdpi.learner import native
from bdpi.learner.interface import Hyperparameters, LearnerState, Transitions
from bdpi.learner.native import NativeLearner
from bdpi.learner.rules import ActorRule, ClippedDouble
from bdpi.learner.tabular import actor_loss, actor_targets


def check_counterpart(rule: ActorRule, n_actions: int) -> None:
    """Whether the C++ counterpart that a rule names is there, and has the same targets.

    :raises ValueError: if not
    """
    if not native.is_available() or rule.native is None:
        return
    rng, n = np.random.default_rng(0), 4
    seen, sizes = rng.normal(size=(n, 2)).astype(np.float32), [2, n_actions]
    parameters = rng.normal(size=(3, 3 * n_actions)).astype(np.float32)
    learner = NativeLearner(sizes, sizes, LearnerState.fresh(parameters[0], parameters[None, 1:]), n_threads=1)
    zeros = np.zeros(n, np.float32)
    transitions = Transitions(seen, np.zeros(n, np.int64), zeros, zeros, seen)
    # Q' stays what Q_A is, so that the rule has the Q-values which the learner tells.
    hyperparameters = Hyperparameters(critic_iterations=1, fit_steps=1, critic_rule=ClippedDouble(0.0), actor_rule=rule)
    for row in range(n):
        policy, q = learner.policy(seen[row : row + 1]), learner.q_values(seen[row : row + 1])[0]
        expected = actor_loss(rule, policy, actor_targets(rule, policy, q))
        try:
            found = learner.epoch(transitions, np.array([[row]]), np.array([0]), hyperparameters).actor_loss
        except ValueError as error:
            raise ValueError(
                f"{error}, which {type(rule).__name__} names: bdpi has 'conservative' and 'imitation', and what "
                "cpp/rules.hpp had when it was compiled. With native = None, PyTorch trains the rule."
            ) from error
        if not np.isclose(found, expected, rtol=1e-3, atol=1e-5):
            raise ValueError(
                f"the actor rule {type(rule).__name__} names the C++ rule {rule.native}, which has other targets: the "
                f"loss of a random transition is {found:.4g} by the C++ rule, and {expected:.4g} by targets(). Correct "
                "one of them, or set native = None, and PyTorch trains the rule."
            )
