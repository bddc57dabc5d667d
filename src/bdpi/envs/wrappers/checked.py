"""What an environment gets wrong is said where it happens: which step, which value, what to do."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

#: Of rewards, and of terminated and truncated, as nearly all environments give them.
_NUMBERS, _TRUTHS = {float, int, np.float64, np.float32}, {bool, np.bool_}


class Checked(gym.Wrapper[Any, Any, Any, Any]):
    """Refuses results of ``step`` and ``reset`` that cannot be learned from, and warns of observations that are far
    outside their space.

    :param env: any environment
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._step, self._warned = 0, False
        #: what observations of numbers must lie between; None: they are looked at by their space
        self._bounds = _far_bounds(self.observation_space)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result: Any = self.env.reset(**kwargs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError("reset of the environment must return an observation and a dictionary: return seen, {}")
        self._check_observation(result[0], self.observation_space, "first observation")
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: Any = self.env.step(action)  # of any kind, in an old environment
        self._step += 1
        if not isinstance(result, tuple) or len(result) != 5:
            n = len(result) if isinstance(result, tuple) else 1
            raise ValueError(
                f"step {self._step} of the environment returned {n} values instead of 5: return observation, reward, "
                "terminated, truncated, info (shimmy converts environments of the old gym)"
            )
        seen, reward, terminated, truncated, info = result
        is_usual = type(reward) in _NUMBERS and type(terminated) in _TRUTHS and type(truncated) in _TRUTHS
        if not (is_usual and type(info) is dict):
            self._check_numbers(reward, terminated, truncated, info)
        is_inside = False
        if self._bounds is not None and type(seen) is np.ndarray and seen.shape == self._bounds[0].shape:
            is_inside = not (np.less(seen, self._bounds[0]) | np.greater(seen, self._bounds[1])).any()
        if not is_inside:
            self._check_observation(seen, self.observation_space, "observation")
        return result

    def _check_numbers(self, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        if np.ndim(reward) != 0:
            raise ValueError(
                f"the reward of step {self._step} is an array of shape {np.shape(reward)}, not a number: return "
                "float(reward), or its sum"
            )
        if not hasattr(reward, "__float__"):  # None, text
            raise ValueError(f"the reward of step {self._step} is {reward!r:.80}, not a number: return a float")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if np.ndim(value) != 0:
                raise ValueError(
                    f"{name} of step {self._step} is an array of shape {np.shape(value)}, not true or false: return "
                    "one bool"
                )
            if value not in (False, True):  # None, text
                raise ValueError(f"{name} of step {self._step} is {value!r:.80}, not true or false: return one bool")
        if not isinstance(info, dict):
            raise ValueError(f"info of step {self._step} is {info!r:.80}, not a dictionary: return {{}}")

    def _check_observation(self, seen: Any, space: spaces.Space[Any], what: str) -> None:
        if isinstance(space, spaces.Dict):
            for key, part in space.spaces.items():
                if isinstance(seen, dict) and key in seen:
                    self._check_observation(seen[key], part, f"{what}[{key!r}]")
            return
        if np.shape(seen) != (space.shape or ()) and not isinstance(space, spaces.Discrete):
            raise ValueError(
                f"the {what} of step {self._step} has shape {np.shape(seen)}, and the observation space says "
                f"{space.shape}: correct one of them"
            )
        if not self._warned:
            self._warned = warn_if_far(seen, space, f"{what} of step {self._step}")


def _far_bounds(space: spaces.Space[Any]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Numbers between these are not far outside a space; None: it is none of floating-point numbers."""
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f":
        return None
    with np.errstate(all="ignore"):
        width = space.high - space.low
        return space.low - width, space.high + width


def warn_if_far(seen: Any, space: spaces.Space[Any], what: str) -> bool:
    """Warn of an observation that is outside its space by more than that is wide; returns whether it is.

    :param what: it is, for the message
    """
    if isinstance(space, spaces.Dict):
        return any(warn_if_far(seen[key], part, f"{what} ({key!r})") for key, part in space.spaces.items())
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f":
        return False
    seen = np.asarray(seen)
    with np.errstate(all="ignore"):
        beyond = np.maximum(space.low - seen, seen - space.high) > space.high - space.low
    if not beyond.any():
        return False
    index = int(np.argmax(beyond.reshape(-1)))
    low, high = (float(bound.reshape(-1)[index]) for bound in (space.low, space.high))
    warnings.warn(
        f"number {index} of the {what} is {float(seen.reshape(-1)[index]):g}, far outside its space, from {low:g} to "
        f"{high:g}: correct the space, or the environment",
        RuntimeWarning,
        stacklevel=3,
    )
    return True
