"""BDPI on tables."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gymnasium import spaces
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from bdpi.agents.bdpi import BDPI
from bdpi.agents.policies import BDPIPolicy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bdpi.agents.arguments import Settings


class TabularBDPI(BDPI):
    """BDPI with tables instead of networks, for Discrete observations: exact, as no network has to be fitted.

    Learning from a batch takes the same time however many states there are; memory is ``2 * n_critics + 1`` tables.
    The parameters are those of :class:`bdpi.BDPI`, by default with the paper's ``trust_region`` of 0.05 and
    ``persistence`` of 1. Those of networks, their fits and scales have no effect; ``learner``, ``precision`` and
    ``policy_kwargs`` are warned of.
    """

    has_tables = True

    def __init__(
        self,
        policy: str | type[BDPIPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-4,
        *,
        trust_region: float = 0.05,
        actor_learning_rate: float | Schedule | None = None,
        persistence: float = 1.0,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            trust_region=trust_region,
            actor_learning_rate=actor_learning_rate,
            persistence=persistence,
            **settings,
        )

    def _check_hyperparameters(self) -> None:
        super()._check_hyperparameters()
        for what, space in (("observation", self.observation_space), ("action", self.action_space)):
            if not isinstance(space, spaces.Discrete):
                raise ValueError(
                    f"tables need Discrete {what}s, but the {what} space is {space}; use BDPI (--agent bdpi)"
                )
        if self.n_stack > 1:
            raise ValueError(f"tables have no rows for n_stack={self.n_stack} observations: use BDPI (--agent bdpi)")
        given = {"learner": self.learner_choice, "precision": self.precision, **self.policy_kwargs}
        idle = [f"{name}={value!r}" for name, value in given.items() if value not in ("auto", "float32")]
        if idle:
            warnings.warn(
                f"TabularBDPI has tables and no networks, so that this has no effect: {', '.join(idle)}",
                RuntimeWarning,
                stacklevel=2,
            )
