"""Bring a simulation back to where it was: in the middle of an episode, in another process."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_BIT_GENERATORS: dict[str, Any] = {
    each.__name__: each
    for each in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
CONTINUED = "continued_episode"  #: in the info of a reset that went on with an earlier episode


def is_simulation(env: gym.Env[Any, Any]) -> bool:
    """Whether an episode may be repeated just to come back to a state: never on a real robot.

    The environments of Gymnasium and of this package are simulations; others say so by ``retraceable = True``.
    """
    inner = env.unwrapped
    return type(inner).__module__.startswith(("gymnasium.envs.", "bdpi.envs.")) or getattr(inner, "retraceable", False)


class Retracing(gym.Wrapper[Any, Any, Any, Any]):
    """Remembers how the current episode came about: its random generators at the start, and its actions.

    :meth:`trace` is that memory, as JSON can hold it. After :meth:`follow`, the next ``reset`` begins no new episode
    but repeats that one, action by action, and returns its last observation. If that is not the one it was (an
    environment that depends on more than its generators), an ordinary episode begins.

    :param env: the outermost wrapper that agents act in
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._start: dict[str, Any] = {}
        self._actions: list[Any] = []
        self._digest = ""
        self._to_follow: dict[str, Any] | None = None
        #: whether the last trace could be followed; None: there was none
        self.followed: bool | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, or go on with the one that :meth:`follow` named."""
        trace, self._to_follow = self._to_follow, None
        if trace is not None:
            continued = self._repeat(trace)
            self.followed = continued is not None
            if continued is not None:
                return continued
        self._start = {"generators": _states(self.env), "seed": seed}
        self._actions = []
        observation, info = self.env.reset(seed=seed, options=options)
        self._digest = digest(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act, and remember the action."""
        self._actions.append(self._written(action))
        result = self.env.step(action)
        self._digest = digest(result[0])
        return result

    def trace(self) -> dict[str, Any]:
        """How the environment came to where it is."""
        return {"start": self._start, "actions": list(self._actions), "observation": self._digest}

    def follow(self, trace: dict[str, Any]) -> None:
        """Let the next ``reset`` go on with this episode.

        :raises ValueError: for what :meth:`trace` cannot have returned
        """
        start = trace.get("start") if isinstance(trace, dict) else None
        if not isinstance(start, dict) or not {"generators", "seed"} <= start.keys() or not _is_episode(trace):
            raise ValueError(f"not the trace of an episode: {str(trace)[:100]}")
        self._to_follow = trace

    def _repeat(self, trace: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        start, actions = trace["start"], trace["actions"]
        try:
            _restore(self.env, start["generators"])
            observation, info = self.env.reset(seed=start["seed"])
            for action in map(self._read, actions):
                observation, _, terminated, truncated, info = self.env.step(action)
                if terminated or truncated:
                    return None
        except Exception:  # foreign code in a state that it was not meant to be in
            return None
        if digest(observation) != trace["observation"]:
            return None
        self._start, self._actions, self._digest = start, list(actions), trace["observation"]
        return observation, {**info, CONTINUED: True}

    def _written(self, action: Any) -> Any:
        """An action as JSON can hold it."""
        space = self.action_space
        return int(action) if isinstance(space, spaces.Discrete) else space.to_jsonable([action])

    def _read(self, action: Any) -> Any:
        space = self.action_space
        return action if isinstance(space, spaces.Discrete) else space.from_jsonable(action)[0]


def _is_episode(trace: dict[str, Any]) -> bool:
    return isinstance(trace.get("actions"), list) and isinstance(trace.get("observation"), str)


def digest(observation: Any) -> str:
    """Equal for equal observations."""
    sha = hashlib.sha256()
    parts = observation.values() if isinstance(observation, dict) else [observation]
    for part in parts:
        sha.update(np.ascontiguousarray(part).tobytes())
    return sha.hexdigest()


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _states(env: Any) -> list[dict[str, Any]]:
    """The random generators of each layer, by attribute."""
    return [
        {
            name: value.bit_generator.state
            for name, value in vars(layer).items()
            if isinstance(value, np.random.Generator)
        }
        for layer in _layers(env)
    ]


def _restore(env: Any, states: list[dict[str, Any]]) -> None:
    for layer, generators in zip(_layers(env), states, strict=True):
        for name, state in generators.items():
            found = inspect.getattr_static(layer, name, "")
            if found is not None and not isinstance(found, np.random.Generator):  # a file cannot replace anything else
                raise ValueError(f"{name} is no generator")
            bits = _BIT_GENERATORS[state["bit_generator"]]()
            bits.state = state
            setattr(layer, name, np.random.Generator(bits))
