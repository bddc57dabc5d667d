"""Aggressive Bootstrapped Clipped DQN: BDPI's critics without the actor."""

from __future__ import annotations

from typing import Any

import numpy as np

from bdpi.agents.base import EnsembleAlgorithm
from bdpi.agents.policies import to_arrays
from bdpi.agents.spaces import shift_to_zero
from bdpi.learner.interface import BoolArray, IntArray
from bdpi.learner.tabular import allowed


class ABCDQN(EnsembleAlgorithm):
    """Aggressive Bootstrapped Clipped DQN (ABCDQN), the paper's ablation of BDPI.

    In training, each environment draws one critic per episode and follows it greedily. ``predict`` follows the votes of
    all critics, the action that most of them prefer, or, if not deterministic, acts as in training: which critic is
    followed is its ``state``, so hand that back, with ``episode_start``, as SB3's ``evaluate_policy`` does.

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

    def predict(
        self,
        observation: Any,
        state: tuple[Any, ...] | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, tuple[Any, ...] | None]:
        """See :meth:`bdpi.agents.base.EnsembleAlgorithm.predict`.

        :param state: which critics are followed, from the last call; None: draw some
        :param episode_start: where an episode has begun since, another one is drawn
        """
        if deterministic:
            return super().predict(observation, state, episode_start, True, action_masks)
        tensors, is_batch = self.policy.obs_to_tensor(observation)
        n = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        masks = self._masks_for_prediction(action_masks, observation)
        followed = np.full(n, -1) if state is None else np.array(state[0])
        if followed.shape != (n,):
            raise ValueError(
                f"state says which critic each observation follows, and has {followed.size} for {n} of them: give the "
                "state that predict returned for as many observations, or None"
            )
        new = followed < 0 if episode_start is None else (followed < 0) | np.asarray(episode_start, bool)
        followed[new] = self.policy.generator.integers(0, self.n_critics, int(new.sum()))
        q = self.agent_learner.q_values(shift_to_zero(to_arrays(tensors), self.observation_space))
        actions = allowed(q[followed, np.arange(n)], masks).argmax(axis=1) + int(self.action_space.start)
        return (actions if is_batch else actions[0]), (followed,)
