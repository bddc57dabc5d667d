"""What to run, before anything runs: plain data that goes into ``config.json`` and to other machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bdpi.runs.errors import RunError

DEFAULT_EPISODES = 300
_ADDED_LATER = (
    "off_policy_noise",
    "action_bits",
    "record_entropy",
)  # the configurations of older runs do not have them


@dataclass(frozen=True)
class Plan:
    """One agent, one environment, one seed, for so long.

    :param environment: Gymnasium id, such as ``"CartPole-v1"`` or ``"my_package:MyEnv-v0"``.
    :param agent: a name in ``bdpi.agents.AGENTS``.
    :param seed: seeds the environment and everything that the agent draws.
    :param episodes: stop after exactly this many episodes; ``None``: ``steps`` decides.
    :param steps: stop after exactly this many environment steps; ``None``: ``episodes`` decides.
    :param hyperparameters: arguments of the agent that differ from its defaults.
    :param policy_kwargs: ``net_arch`` (a list, or a dict with ``pi`` and ``qf``), ``activation_fn`` (``"tanh"``,
        ``"relu"``) and ``normalize_images``, written as JSON can hold them.
    :param off_policy_noise: in training, each action is replaced by a random one with this probability, and each
        training episode is followed by a test episode without noise that is not learned from; ``None``: neither.
    :param action_bits: binary decisions per number of a continuous action; ``None``: the default where actions are
        continuous, nothing elsewhere.
    :param record_entropy: keep the entropy of the policy in every step, for agents with an actor.
    """

    environment: str
    agent: str = "bdpi"
    seed: int = 0
    episodes: int | None = DEFAULT_EPISODES
    steps: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    off_policy_noise: float | None = None
    action_bits: int | None = None
    record_entropy: bool = False

    def __post_init__(self) -> None:
        if (self.episodes is None) == (self.steps is None):
            raise RunError("give either a number of episodes or a number of steps, not both and not neither")
        if (self.episodes or self.steps or 0) < 1:
            raise RunError("the number of episodes or steps must be at least 1")
        if self.off_policy_noise is not None and not 0 <= self.off_policy_noise <= 1:
            raise RunError(f"off-policy noise is a probability, from 0 to 1, not {self.off_policy_noise}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """The plan in a configuration. Whatever else the configuration holds is left aside."""
        try:
            return cls(
                **{name: data[name] for name in cls.__dataclass_fields__ if name in data or name not in _ADDED_LATER}
            )
        except KeyError as missing:
            raise RunError(f"the configuration has no entry {missing}") from None
        except TypeError as error:
            raise RunError(f"the configuration is damaged: {error}") from None
