"""What of an agent is exported: its networks, and all that comes before and after them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import unwrap_vec_normalize

from bdpi.agents.decisions import Decisions
from bdpi.agents.inputs import Inputs, inputs_from, inputs_of_space, stacked_inputs
from bdpi.agents.policies import BDPIPolicy, Network
from bdpi.learner.functional import bind_parameters

if TYPE_CHECKING:
    from bdpi.agents import Ensemble


def note_on_masks(agent: Ensemble) -> str:
    """What an exported policy lacks where actions were masked; empty: nothing."""
    if not agent.learned_with_masks:
        return ""
    if decisions_of(agent).is_plain:
        remedy = "of its probabilities, take the largest that is allowed"
    else:
        remedy = "it may choose actions that are not allowed"
    return f"The agent learned with action masks, which this file knows nothing of: {remedy}"


#: Networks whose weighted sum is an opinion.
Opinion = list[tuple[float, Network]]


def exportable_networks(agent: Ensemble) -> list[Opinion]:
    """What an agent acts by: the scores of its actor, or the Q-values of each of its critics, which then vote.

    Of an agent with a table, none: see :func:`exportable_table`.

    :raises ValueError: when it is more than networks, or a table, behind the usual preprocessing
    """
    from bdpi.agents import Ensemble

    name = type(agent).__name__
    if not isinstance(agent, Ensemble):
        raise ValueError(f"{name} is not an agent of this package: only policies of its own agents are exported")
    policy = agent.policy
    followed = policy.followed()
    for method in ("preprocess", "probabilities", "_probabilities", "_behaviour", "_decide", "_choose", "_predict"):
        if getattr(type(policy), method) is not getattr(BDPIPolicy, method):
            raise ValueError(
                f"{type(policy).__name__} has a method {method} of its own, which cannot be exported: do that in the "
                "environment or in a features extractor"
            )
    opinions: list[Opinion] = []
    if policy.actor is not None:
        opinions.append([(1.0, policy.actor)])
    for critic, active in enumerate(followed["active"].tolist() if "critics.parameters" in followed else ()):
        opinions.append([(1.0, _with(policy, followed["critics.parameters"][critic, active]))])
        if policy.prior_scale:
            opinions[-1].append((policy.prior_scale, _with(policy, followed["priors"][critic])))
    for _, network in itertools.chain(*opinions):
        if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
            raise ValueError(
                "the networks hold numbers that are not finite: export an earlier agent, learning has diverged"
            )
    return opinions


def exportable_table(agent: Ensemble) -> NDArray[np.float32] | None:
    """The probabilities that an agent acts by, (states, actions), if they are in a table.

    :raises ValueError: when they are no numbers
    """
    table = agent.policy.followed().get("actor")
    if table is None:
        return None
    if not bool(table.isfinite().all()):
        raise ValueError("the table holds numbers that are not finite: export an earlier agent, learning has diverged")
    return table.float().cpu().numpy()


def _with(policy: BDPIPolicy, parameters: torch.Tensor) -> Network:
    """A critic that has these parameters."""
    with torch.random.fork_rng():
        critic = policy.make_critic().eval()
    bind_parameters(critic, parameters.clone())
    return critic


def leaves(space: spaces.Space[Any], name: str = "action") -> list[tuple[str, spaces.Space[Any]]]:
    """The parts of an action space, with their names: ``action.left`` of a Dict, ``action.0`` of a Tuple."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [leaf for key, part in named for leaf in leaves(part, f"{name}.{key}")]
    return [(name, space)]


def bounds_of(space: spaces.Space[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Bounds of each number of a part of an action, and whether these are whole numbers."""
    if isinstance(space, spaces.Box):
        whole = bool(np.issubdtype(space.dtype, np.integer))
        return space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64), whole
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(int(np.prod(space.shape))), np.ones(int(np.prod(space.shape))), True
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    low = np.ravel(space.start).astype(np.float64)
    return low, low + sizes - 1, True


def decisions_of(agent: Ensemble) -> Decisions:
    """What an exported policy decides: as the agent does inside, or as ``BinaryActionSearch`` lets it."""
    return inputs_of(agent).search or agent.decisions


def inputs_of(agent: Ensemble) -> Inputs:
    """The inputs of an agent's exported policy, see :func:`~bdpi.agents.inputs.inputs_from`, or stacks of them.

    An agent that was loaded without an environment has them from its file.

    :raises ValueError: when they are not known, or cannot be had
    """
    environment = agent.get_env()
    is_normalized = environment is not None and unwrap_vec_normalize(environment) is not None
    if environment is None and agent.kept_inputs is not None:
        return stacked_inputs(agent.kept_inputs, agent.n_stack)
    if agent.kept_normalizer is not None and not is_normalized:
        raise ValueError(
            "this agent learned with VecNormalize, and how that comes before its policy is not known here: load it "
            "with the environment that it learned in, load(..., env=...), and export it then"
        )
    inputs = inputs_of_space(agent.observation_space) if environment is None else inputs_from(environment)
    return stacked_inputs(inputs, agent.n_stack)
