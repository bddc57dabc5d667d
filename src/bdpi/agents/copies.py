"""Copies of agents: ``copy.deepcopy``, and pickles, as cloudpickle makes them for other processes.

A copy shares nothing with its original, and goes on as the original would: networks, memory, generators and the
environment are copied. Files stay the original's: a copy has no journal, no autosave and no open log.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, unwrap_vec_normalize

from bdpi.agents.autosave import Autosave
from bdpi.agents.learners import share_actor
from bdpi.agents.normalizing import describe_normalizer

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble

#: What a wrapper has of its environment, and what :meth:`bdpi.agents.collector.Collector.check_before` adds to it.
_OF_ITS_ENVIRONMENT = {"venv", "class_attributes"}
_CHECKS = {"unchecked", "reset", "step_wait"}


def state_of(agent: Ensemble) -> dict[str, Any]:
    """What a copy is made of.

    :raises RuntimeError: while a thread changes it
    """
    if agent._background.is_running:
        raise RuntimeError("the agent learns in the background: stop_learning() before it is copied")
    state = {**vars(agent), "env": _taken_apart(agent.env), "_vec_normalize_env": None}
    state |= {"journal": None, "autosave": None, "_autosave": Autosave(), "_custom_logger": False}
    state.pop("_logger", None)
    if agent.env is not None and state["env"] is None:
        state["_last_obs"] = None
        if agent._vec_normalize_env is not None:
            state["kept_normalizer"] = describe_normalizer(agent._vec_normalize_env)
    return state


def restore(agent: Ensemble, state: dict[str, Any]) -> None:
    """Make an agent of what :func:`state_of` gave."""
    vars(agent).update(state)
    agent.env = _put_together(state["env"])
    agent._vec_normalize_env = None if agent.env is None else unwrap_vec_normalize(agent.env)
    share_actor(agent.policy, agent.agent_learner)
    if agent.agent_learner.actor_parameters is not None:
        agent.agent_learner.act_with(agent.agent_learner.actor_parameters)


def _taken_apart(env: VecEnv | None) -> list[tuple[type, dict[str, Any]]] | None:
    """Classes and attributes, from the outermost wrapper in: wrappers cannot be copied as they are, because they look
    up any name in an environment that they do not have yet. None where processes are in it."""
    layers: list[tuple[type, dict[str, Any]]] = []
    while env is not None:
        if isinstance(env, SubprocVecEnv):
            return None
        checks = _CHECKS if "unchecked" in vars(env) else set()
        without = _OF_ITS_ENVIRONMENT | checks
        layers.append((type(env), {name: value for name, value in vars(env).items() if name not in without}))
        env = env.venv if isinstance(env, VecEnvWrapper) else None
    return layers or None


def _put_together(layers: list[tuple[type, dict[str, Any]]] | None) -> VecEnv | None:
    env = None
    for kind, attributes in reversed(layers or []):
        outer = object.__new__(kind)
        vars(outer).update(attributes)
        if env is not None:
            vars(outer).update(venv=env, class_attributes=dict(inspect.getmembers(kind)))
        env = outer
    return env
