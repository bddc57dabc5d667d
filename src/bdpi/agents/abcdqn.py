"""Aggressive Bootstrapped Clipped DQN: BDPI's critics without the actor."""

from __future__ import annotations

from bdpi.agents.ensemble import Ensemble


class ABCDQN(Ensemble):
    """Aggressive Bootstrapped Clipped DQN (ABCDQN), the paper's ablation of BDPI.

    In training, each environment draws one critic per episode and follows it greedily. ``predict`` follows the votes of
    all critics, the action that most of them prefer, or, if not deterministic, acts as in training: which critic is
    followed is its ``state``, so hand that back, with ``episode_start``, as SB3's ``evaluate_policy`` does.

    The parameters are those of :class:`~bdpi.agents.ensemble.Ensemble`, which is an agent without an actor.
    """
