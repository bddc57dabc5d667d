"""Wrappers that do something else than the agent wanted, and say so.

Agents learn from ``info["executed_action"]``, so whatever decides on it is only another way to collect experience.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction

# Mixed into the seed: the environment seeds its own generator with the bare one, and the same stream of random numbers
# in both would make the noise depend on what the environment does.
_STREAM = 2


class ActionOverride(gym.Wrapper[Any, Any, Any, Any]):
    """Executes ``override(observation, action)`` instead of the agent's action. A base class; it changes nothing.

    After every step, ``info["executed_action"]`` is the action that was executed, and ``info["overridden"]`` whether
    that is another one than the agent's. Overrides may be nested: what the innermost one did counts.

    :param env: with Discrete actions, of any ``start``. Around a ``BinaryActionSearch``, decisions are overridden.
    """

    #: which actions are allowed in the current state, counted from 0; None: all. From ``info["action_mask"]``
    action_mask: Any = None

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(f"{type(self).__name__} wraps an environment, got {env!r}: make it with gymnasium.make")
        if not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(
                f"{type(self).__name__} is for Discrete actions, but the action space is {env.action_space}. Put it "
                "around the wrapper that makes them discrete, such as BinaryActionSearch, not inside."
            )
        super().__init__(env)
        self._observation: Any = None

    def override(self, observation: Any, action: int) -> int:
        """The action to execute.

        :param observation: what the agent saw last
        :param action: what the agent wants to do
        """
        return action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        self.action_mask = info.get("action_mask")
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute what :meth:`override` says."""
        if not self.action_space.contains(action):
            raise InvalidAction(f"{action!r} is no action of {self.action_space}.")
        executed = self.override(self._observation, int(action))
        if not self.action_space.contains(executed):
            raise ValueError(
                f"{type(self).__name__} replaced action {action} by {executed!r}, which is no action of "
                f"{self.action_space}: return one of them, as a whole number."
            )
        self._observation, reward, terminated, truncated, info = self.env.step(executed)
        self.action_mask = info.get("action_mask")
        # A new dictionary, because environments may return the same one every time.
        info = {"executed_action": int(executed), **info}
        info["overridden"] = bool(info["executed_action"] != action)
        return self._observation, reward, terminated, truncated, info


class OffPolicyNoise(ActionOverride):
    """Replaces each action, with some probability, by a random one: the paper's test of being off-policy.

    Random actions are uniform over all actions, or over the allowed ones where there is an ``info["action_mask"]``.
    Set ``active`` to False before an episode to play it without noise.

    :param env: with Discrete actions
    :param probability: of a random action, from 0 to 1; the paper has 0.2, and 0.05 on Table
    """

    def __init__(self, env: gym.Env[Any, Any], probability: float) -> None:
        is_number = isinstance(probability, int | float | np.number) and not isinstance(probability, bool)
        if not is_number or not 0 <= probability <= 1:
            raise ValueError(f"probability must be a number from 0 to 1, got {probability!r}")
        super().__init__(env)
        self.probability = float(probability)
        self.active = True
        self._generator = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; a seed also makes the noise repeatable."""
        if seed is not None:
            self._generator = np.random.default_rng([seed, _STREAM])
        return super().reset(seed=seed, options=options)

    def override(self, observation: Any, action: int) -> int:
        """Perhaps a random action."""
        if not self.active or self._generator.random() >= self.probability:
            return action
        space = self.action_space
        assert isinstance(space, spaces.Discrete)
        choices = np.arange(space.n) if self.action_mask is None else np.flatnonzero(self.action_mask)
        return int(space.start + self._generator.choice(choices))


class BackupPolicy(ActionOverride):
    """A supervisor replaces unsafe actions. ``info["overridden"]`` tells when it did.

    :param env: with Discrete actions
    :param function: gets the agent's last observation and its action, and ``env``, the environment, if it has a
        parameter of that name; returns the action to execute, which is the same one where it is safe
    """

    def __init__(self, env: gym.Env[Any, Any], function: Callable[..., int]) -> None:
        if not callable(function):
            raise ValueError(f"function must be a function of an observation and an action, got {function!r}")
        super().__init__(env)
        self._function = functools.partial(function, env=env) if _takes_env(function) else function

    def override(self, observation: Any, action: int) -> int:
        """What the supervisor says."""
        return self._function(observation, action)


def _takes_env(function: Callable[..., int]) -> bool:
    try:
        return "env" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled functions may not say what they take
        return False
