"""Bootstrapped Dual Policy Iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.type_aliases import GymEnv, Schedule

from bdpi.agents import checks
from bdpi.agents.ensemble import Ensemble
from bdpi.agents.policies import BDPIPolicy
from bdpi.learner.rules import Conservative

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bdpi.agents.arguments import Settings


class BDPI(Ensemble):
    """Bootstrapped Dual Policy Iteration (BDPI).

    An actor slowly imitates the greedy policies of several off-policy critics, each of which is trained aggressively
    on batches of its own. Actions are drawn from the actor. One configuration, the default, serves most tasks; the
    paper's is ``bdpi.PAPER``, as in ``BDPI("MlpPolicy", env, **bdpi.PAPER)``.

    Paper: Steckelmacher et al., "Sample-Efficient Model-Free Reinforcement Learning with Off-Policy Critics",
    https://arxiv.org/abs/1903.04193

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of
        :class:`~bdpi.agents.policies.BDPIPolicy`
    :param env: the environment to learn from (an id, an environment or a ``VecEnv``); Discrete actions
    :param learning_rate: Adam's learning rate of the critics; may be a function of the remaining progress. A third of
        it where rewards are rare, see ``rare_rewards``
    :param trust_region: delta, the KL divergence by which one critic may move the actor. Lower explores longer.
    :param actor_learning_rate: likewise of the actor; ``learning_rate`` if None
    :param persistence: for how many steps, on average and at most, an uncertain actor keeps to a random choice: in half
        of the episodes, as long as that costs no return. Higher finds what is far away sooner. 1: steps choose anew
    :param settings: what all agents have in common, see :class:`~bdpi.agents.ensemble.Ensemble`: ``gamma``,
        ``buffer_size``, ``batch_size``, ``n_critics``, ``critic_iterations``, ``policy_kwargs``, ``seed``, …
    """

    def __init__(
        self,
        policy: str | type[BDPIPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        *,
        trust_region: float = 0.01,
        actor_learning_rate: float | Schedule | None = None,
        persistence: float = 32.0,
        **settings: Unpack[Settings],
    ) -> None:
        self.trust_region = trust_region
        self.actor_learning_rate = actor_learning_rate
        self.persistence = persistence
        super().__init__(policy, env, learning_rate, **settings)

    def _check_hyperparameters(self) -> None:
        super()._check_hyperparameters()
        checks.check_number("trust_region", self.trust_region, 0)

    def actor_rule(self) -> Conservative:
        """A small step towards the critic's greedy policy."""
        return Conservative(self.trust_region)
