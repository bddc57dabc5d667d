"""BDPI with the loss of the Actor-Mimic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.type_aliases import GymEnv, Schedule

from bdpi.agents import checks
from bdpi.agents.ensemble import Ensemble
from bdpi.agents.policies import BDPIPolicy
from bdpi.learner.rules import Imitation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bdpi.agents.arguments import Settings

_LOWEST_TEMPERATURE = 1e-30


class ActorMimic(Ensemble):
    """BDPI's critics, and an actor that minimises the cross-entropy to their policies (Parisotto et al., 2016).

    :param policy: see :class:`~bdpi.agents.ensemble.Ensemble`
    :param env: the environment to learn from
    :param learning_rate: Adam's learning rate of the critics; a third of it where rewards are rare
    :param temperature: 0 imitates the critics' greedy policies, as the paper does; more (at least 1e-30), their Softmax
        policies. It is in the unit of the rewards.
    :param actor_learning_rate: likewise of the actor; ``learning_rate`` if None
    :param persistence: for how many steps, on average and at most, an uncertain actor keeps to a random choice: in half
        of the episodes, as long as that costs no return. Higher finds what is far away sooner. 1: steps choose anew
    :param settings: what all agents have in common, see :class:`~bdpi.agents.ensemble.Ensemble`
    """

    def __init__(
        self,
        policy: str | type[BDPIPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        *,
        temperature: float = 0.0,
        actor_learning_rate: float | Schedule | None = None,
        persistence: float = 32.0,
        **settings: Unpack[Settings],
    ) -> None:
        self.temperature = temperature
        self.actor_learning_rate = actor_learning_rate
        self.persistence = persistence
        super().__init__(policy, env, learning_rate, **settings)

    def _check_hyperparameters(self) -> None:
        super()._check_hyperparameters()
        checks.check_number("temperature", self.temperature, 0, low_included=True)
        if 0 < self.temperature < _LOWEST_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0, for greedy policies, or at least {_LOWEST_TEMPERATURE:g}, got "
                f"{self.temperature!r}: single precision cannot divide by it"
            )

    def actor_rule(self) -> Imitation:
        """The critic's own policy."""
        return Imitation(self.temperature * self.policy.scales.return_factor)  # of Q-values as networks see them
