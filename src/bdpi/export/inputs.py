"""What of an agent is exported: its actor, and all that comes before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.vec_env import unwrap_vec_normalize

from bdpi.agents.inputs import Inputs, inputs_from, inputs_of_space
from bdpi.agents.policies import BDPIPolicy, Network

if TYPE_CHECKING:
    from bdpi.agents import Ensemble


MASKS_ARE_NOT_EXPORTED = (
    "The agent learned with action masks, which this file knows nothing of: of its probabilities, take the largest "
    "that is allowed"
)


def exportable_actor(agent: Ensemble) -> Network:
    """The actor of an agent.

    :raises ValueError: when there is none, or when it is more than a network behind the usual preprocessing
    """
    from bdpi.agents import Ensemble

    name = type(agent).__name__
    if not isinstance(agent, Ensemble):
        raise ValueError(f"{name} is not an agent of this package: only policies of BDPI and ActorMimic are exported")
    policy = agent.policy
    if not agent.decisions.is_plain:
        raise ValueError(
            f"{agent.action_space} actions are decided on one after the other, which is not exported: export an agent "
            "with Discrete actions, or call predict"
        )
    if policy.actor is None:
        raise ValueError(
            f"{name} has no actor network to export: it acts by its critics or tables. Train BDPI or ActorMimic."
        )
    for method in ("preprocess", "probabilities", "_probabilities", "_predict"):
        if getattr(type(policy), method) is not getattr(BDPIPolicy, method):
            raise ValueError(
                f"{type(policy).__name__} has a method {method} of its own, which cannot be exported: do that in the "
                "environment or in a features extractor"
            )
    if not all(bool(parameter.isfinite().all()) for parameter in policy.actor.parameters()):
        raise ValueError("the actor holds numbers that are not finite: export an earlier agent, learning has diverged")
    return policy.actor


def inputs_of(agent: Ensemble) -> Inputs:
    """The inputs of an agent's exported policy, see :func:`~bdpi.agents.inputs.inputs_from`.

    An agent that was loaded without an environment has them from its file.

    :raises ValueError: when they are not known, or cannot be had
    """
    environment = agent.get_env()
    is_normalized = environment is not None and unwrap_vec_normalize(environment) is not None
    if environment is None and agent.kept_inputs is not None:
        return agent.kept_inputs
    if agent.kept_normalizer is not None and not is_normalized:
        raise ValueError(
            "this agent learned with VecNormalize, and how that comes before its policy is not known here: load it "
            "with the environment that it learned in, load(..., env=...), and export it then"
        )
    return inputs_of_space(agent.observation_space) if environment is None else inputs_from(environment)
