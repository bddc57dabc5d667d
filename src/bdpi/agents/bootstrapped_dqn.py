"""Bootstrapped DQN, one of the paper's peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.type_aliases import GymEnv, Schedule

from bdpi.agents import checks
from bdpi.agents.abcdqn import ABCDQN
from bdpi.agents.policies import BDPIPolicy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bdpi.agents.arguments import CommonSettings


class BootstrappedDQN(ABCDQN):
    """Bootstrapped DQN (Osband et al., 2016), as the paper configures it: one critic is trained per step, once.

    :param policy: see :class:`~bdpi.agents.ensemble.Ensemble`
    :param env: the environment to learn from
    :param learning_rate: Adam's learning rate
    :param critics_per_step: how many of the critics an epoch trains, picked at random
    :param critic_iterations: training iterations per critic and epoch
    :param critic_step_size: how far Q-values move towards their new estimate
    :param prior_scale: weight of a fixed, random function that is added to each critic (randomised prior functions,
        Osband et al., 2018). Higher explores more; 0 is the original algorithm.
    :param observation_size: None, as in the paper
    :param return_size: None, as in the paper
    :param settings: what all agents have in common, see :class:`~bdpi.agents.ensemble.Ensemble`
    """

    def __init__(
        self,
        policy: str | type[BDPIPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-4,
        *,
        critics_per_step: int | None = 1,
        critic_iterations: int = 1,
        critic_step_size: float = 1.0,
        prior_scale: float = 0.0,
        observation_size: float | None = None,
        return_size: float | None = None,
        **settings: Unpack[CommonSettings],
    ) -> None:
        self.prior_scale = prior_scale
        super().__init__(
            policy,
            env,
            learning_rate,
            critics_per_step=critics_per_step,
            critic_iterations=critic_iterations,
            critic_step_size=critic_step_size,
            observation_size=observation_size,
            return_size=return_size,
            **settings,
        )

    def _check_hyperparameters(self) -> None:
        super()._check_hyperparameters()
        checks.check_number("prior_scale", self.prior_scale, 0, low_included=True)
