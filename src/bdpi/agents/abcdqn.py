"""Aggressive Bootstrapped Clipped DQN: BDPI's critics without the actor."""

from __future__ import annotations

from typing import Any

import numpy as np

from bdpi.agents.base import EnsembleAlgorithm
from bdpi.agents.spaces import shift_to_zero
from bdpi.learner.interface import BoolArray, IntArray
from bdpi.learner.tabular import allowed


class ABCDQN(EnsembleAlgorithm):
    """Aggressive Bootstrapped Clipped DQN (ABCDQN), the paper's ablation of BDPI.

    In training, each environment draws one critic per episode and follows it greedily. ``predict`` follows the votes of
    all critics: the action that most of them prefer, or, if not deterministic, one drawn by the number of its votes.

    The parameters are those of :class:`~bdpi.agents.base.EnsembleAlgorithm`.
    """

    _followed: IntArray | None = None  #: which critic each environment follows

    def _pick_actions(self, observations: Any, masks: BoolArray | None) -> IntArray:
        assert self._followed is not None
        q = self.agent_learner.q_values(shift_to_zero(observations, self.observation_space))
        return allowed(q[self._followed, np.arange(self.n_envs)], masks).argmax(axis=1)

    def _episodes_ended(self, environments: IntArray) -> None:
        assert self._generator is not None
        if self._followed is None or len(self._followed) != self.n_envs:
            self._followed = np.zeros(self.n_envs, dtype=np.int64)
        self._followed[environments] = self._generator.integers(0, self.n_critics, len(environments))
