"""BDPI on tables."""

from __future__ import annotations

from gymnasium import spaces

from bdpi.agents.bdpi import BDPI
from bdpi.agents.learners import AgentLearner, tabular_learner
from bdpi.learner.rules import check_rule


class TabularBDPI(BDPI):
    """BDPI with tables instead of networks, for Discrete observations: exact, as no network has to be fitted.

    Learning from a batch takes the same time however many states there are; memory is ``2 * n_critics + 1`` tables.
    The parameters are those of :class:`bdpi.BDPI`; those of networks and their fits have no effect.
    """

    def _check_hyperparameters(self) -> None:
        super()._check_hyperparameters()
        if not isinstance(self.observation_space, spaces.Discrete):
            raise ValueError(
                f"tables need Discrete observations, but the observation space is {self.observation_space}; use BDPI"
            )

    def _make_learner(self) -> AgentLearner:
        check_rule(self.actor_rule(), int(self.action_space.n))
        return tabular_learner(self.policy, self.n_critics)
