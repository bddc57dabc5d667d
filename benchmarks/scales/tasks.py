"""The tasks of the study: environments by name, how long they are learned, and what counts as nothing and as solved.

A name may carry suffixes, such as ``CartPole-v1@obs1000@rew0.001``: observations (and their bounds) and rewards that
the agent sees are multiplied by these numbers. Recorded returns stay in the environment's own units.

This module does not import PyTorch: processes that step environments import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

import bdpi.envs

FARTHEST_BOUND = 1e3  # bounds beyond are none


@dataclass(frozen=True)
class Task:
    """One task.

    :param environment: its id
    :param steps: how many the agent makes
    :param random: mean return of a policy that draws every action at random
    :param solved: a return that counts as solved
    :param hidden: units of the networks
    :param bits: of Binary Action Search; None: actions are discrete
    :param time_limit: of an episode, where the environment has none
    """

    environment: str
    steps: int
    random: float
    solved: float
    hidden: int = 32
    bits: int | None = None
    time_limit: int | None = None


TASKS = {
    "Table-v0": Task("Table-v0", 20_000, -12.0, 90.0),
    "TableLong-v0": Task("TableLong-v0", 30_000, -40.0, 90.0),
    "FrozenLake8x8-v1": Task("FrozenLake8x8-v1", 30_000, 0.0, 0.6),
    "LunarLander-v3": Task("LunarLander-v3", 60_000, -172.0, 200.0, hidden=256),
    "PendulumTorques-v0": Task("PendulumTorques-v0", 8_000, -1220.0, -200.0),
    "PendulumBits": Task("Pendulum-v1", 30_000, -1240.0, -200.0, bits=6),
    "PendulumIncrements-v0": Task("PendulumIncrements-v0", 20_000, -1220.0, -200.0),
    "CartPole-v1": Task("CartPole-v1", 15_000, 22.6, 475.0),
    "Acrobot-v1": Task("Acrobot-v1", 8_000, -500.0, -100.0),
    "MountainCar-v0": Task("MountainCar-v0", 20_000, -200.0, -110.0),
    # A random policy falls often, -2070; a policy that has only learned not to fall gets -200, which is nothing yet.
    "CliffWalking-v1": Task("CliffWalking-v1", 10_000, -200.0, -13.0, time_limit=200),
}


@dataclass(frozen=True)
class Variant:
    """A task with factors for what the agent sees."""

    name: str
    task: Task
    observation_factor: float = 1.0
    reward_factor: float = 1.0


def find(name: str) -> Variant:
    """A task by its name with suffixes.

    :raises ValueError: for a name that is none
    """
    plain, *suffixes = name.split("@")
    if plain not in TASKS:
        raise ValueError(f"unknown task {plain!r}: choose from {', '.join(TASKS)}")
    factors = {"obs": 1.0, "rew": 1.0}
    for suffix in suffixes:
        if suffix[:3] not in factors:
            raise ValueError(f"unknown suffix @{suffix} of {name!r}: use @obs or @rew with a number, as in @obs1000")
        factors[suffix[:3]] = float(suffix[3:])
    return Variant(name, TASKS[plain], factors["obs"], factors["rew"])


def make(task: Task) -> gym.Env[Any, Any]:
    """The environment that an agent acts in, without factors."""
    bdpi.envs.register()
    env: gym.Env[Any, Any] = gym.make(task.environment, disable_env_checker=True)
    if task.time_limit is not None:
        env = gym.wrappers.TimeLimit(env, task.time_limit)
    if task.bits is not None:
        from bdpi.envs.wrappers import BinaryActionSearch

        env = BinaryActionSearch(env, task.bits)
    return env


@dataclass(frozen=True)
class Space:
    """What the networks of a task have to know.

    :param inputs: how many; states, where observations are state numbers
    :param low: smallest observations, as the agent sees them; -inf where there is no bound
    """

    inputs: int
    actions: int
    one_hot: bool
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def space_of(variant: Variant) -> Space:
    """The spaces of a task's environment."""
    env = make(variant.task)
    seen, actions = env.observation_space, int(env.action_space.n)  # type: ignore[attr-defined]
    env.close()
    if isinstance(seen, spaces.Discrete):
        if variant.observation_factor != 1:
            raise ValueError(f"{variant.name}: observations are state numbers, which cannot be multiplied")
        nothing = np.zeros(0)
        return Space(int(seen.n), actions, True, nothing, nothing)
    assert isinstance(seen, spaces.Box), seen
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (seen.low, seen.high))
    is_far = (np.abs(low) > FARTHEST_BOUND) | (np.abs(high) > FARTHEST_BOUND)
    low, high = np.where(is_far, -np.inf, low), np.where(is_far, np.inf, high)
    return Space(len(low), actions, False, low * variant.observation_factor, high * variant.observation_factor)
