"""Which replay memory an agent has: its own kinds, each of which does what one of Stable-Baselines3's does there."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her import HerReplayBuffer

from bdpi.agents.arguments import unknown
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
from bdpi.agents.decisions import Decisions
from bdpi.agents.hindsight import HindsightBuffer, hindsight_settings

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble

_OF_SB3 = (None, ReplayBuffer, DictReplayBuffer, NStepReplayBuffer, HerReplayBuffer)
_TIMEOUTS = "handle_timeout_termination"
_OWN = (TransitionBuffer, DictTransitionBuffer, HindsightBuffer)


class MemoryChoice(NamedTuple):
    """What an agent makes its memory of.

    :param kind: of memory
    :param kwargs: of that kind alone
    :param n_steps: rewards that a transition of a batch adds up, at most
    :param hindsight: how goals are replaced; None: they are not
    """

    kind: Any
    kwargs: dict[str, Any]
    n_steps: int
    hindsight: dict[str, Any] | None


def choose_memory(asked: MemoryChoice, space: spaces.Space[Any], decisions: Decisions, gamma: float) -> MemoryChoice:
    """What does here as the replay memory that is asked for does in Stable-Baselines3.

    :param asked: by the arguments of the agent; its kind may be one of Stable-Baselines3
    :param space: of the environment's observations
    :param decisions: of its actions
    :param gamma: the agent's
    :raises ValueError: for what is not possible
    """
    kind, kwargs, n_steps, hindsight = asked
    if kind in _OF_SB3 or kind in _OWN:
        _check_arguments(kind, kwargs)
    if kind is NStepReplayBuffer:
        n_steps = kwargs.get("n_steps", n_steps)
        if kwargs.get("gamma", gamma) != gamma:
            raise ValueError(
                f"replay_buffer_kwargs has gamma={kwargs['gamma']!r}, but the agent has gamma={gamma!r}: leave it out, "
                "or give it to the agent"
            )
    if kind is HerReplayBuffer:
        hindsight = hindsight_settings(dict(kwargs), space)
    if hindsight is not None and not decisions.is_plain:
        raise ValueError(f"HerReplayBuffer is for Discrete actions, but the action space is {decisions.own_actions}")
    if hindsight is not None and n_steps > 1:
        raise ValueError(f"n_steps={n_steps} is not possible with HerReplayBuffer: leave n_steps at 1")
    if kind in _OF_SB3 or kind in _OWN:
        plain = DictTransitionBuffer if isinstance(space, spaces.Dict) else TransitionBuffer
        return MemoryChoice(plain if hindsight is None else HindsightBuffer, {}, n_steps, hindsight)
    if not (isinstance(kind, type) and issubclass(kind, TransitionBuffer | DictTransitionBuffer)):
        raise ValueError(
            f"replay_buffer_class is {kind!r}: transitions need a discount each, so that it has to be derived "
            "from TransitionBuffer or DictTransitionBuffer of bdpi.agents.buffers, or be SB3's HerReplayBuffer"
        )
    return MemoryChoice(kind, kwargs, n_steps, hindsight)


def _check_arguments(kind: type[Any] | None, kwargs: dict[str, Any]) -> None:
    """Arguments of a memory that the agent makes; those of ``HerReplayBuffer`` are checked with its goals.

    :raises TypeError: for those that it does not take
    """
    known = {_TIMEOUTS} | ({"n_steps", "gamma"} if kind is NStepReplayBuffer else set())
    if kind is not HerReplayBuffer and (strange := kwargs.keys() - known):
        raise TypeError(unknown(kind or ReplayBuffer, strange, "replay_buffer_kwargs", known))
    if not kwargs.get(_TIMEOUTS, True):
        warnings.warn(
            f"{_TIMEOUTS}=False is ignored: what follows a time limit is worth something, and optimize_memory_usage "
            "does not need it. bdpi.envs.wrappers.EndAtTimeLimit makes time limits ends.",
            UserWarning,
            stacklevel=6,
        )


def make_memory(agent: Ensemble) -> TransitionBuffer | DictTransitionBuffer:
    """The memory that an agent has chosen."""
    of, kind = agent.decisions, agent.replay_buffer_class
    sizes = agent.buffer_size, of.observation_space, of.action_space, agent.device, agent.n_envs
    own = {"gamma": agent.gamma, "n_steps": agent.n_steps * of.n, "n_stack": agent.n_stack}
    arguments = {"optimize_memory_usage": agent.optimize_memory_usage, **agent.replay_buffer_kwargs, **own}
    memory = kind(*sizes, **arguments, **(agent.hindsight or {}))  # type: ignore[misc, arg-type]
    assert isinstance(memory, TransitionBuffer | DictTransitionBuffer)
    return memory
