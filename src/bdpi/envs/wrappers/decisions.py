"""What wrappers share that build a continuous action out of several decisions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from bdpi.envs.factors import check_box

Progress = TypeVar("Progress")


class DecisionWrapper(gym.Wrapper[NDArray[np.float32], Any, Any, Any], RecordConstructorArgs, Generic[Progress]):
    """Base class of wrappers whose discrete decisions build one action of a finite ``Box``.

    ``Progress`` is how far the action is built. The last decision steps the environment and returns what it returned.
    The others take no time: their reward is 0, and ``info["discount"]`` is 1. SB3's ``Monitor`` is inside, or put
    there, so that it counts real steps.

    :param env: with a finite ``Box`` action space, and observations that can be flattened
    :param decisions: how many there are to choose from
    :param low: of what is appended to the observation
    :param high: the same
    """

    #: the wrapper in error messages, and what it does with the bounds of the action
    title = ""
    needs_bounds = ""
    #: what each decision means
    legend = ""
    #: whether a decision that does not step the environment says that it takes no time
    inner_info: dict[str, Any] = {"discount": 1.0}  # noqa: RUF012

    def __init__(
        self, env: gym.Env[Any, Any], decisions: int, low: NDArray[np.float32], high: NDArray[np.float32]
    ) -> None:
        # Imported here, because SB3 brings in PyTorch and environments do without it.
        from stable_baselines3.common.env_util import is_wrapped
        from stable_baselines3.common.monitor import Monitor

        gym.Wrapper.__init__(self, env if is_wrapped(env, Monitor) else Monitor(env))
        seen = flat_space(env.observation_space, self.title)
        self.action_space = spaces.Discrete(decisions)
        self.observation_space = spaces.Box(
            np.concatenate([seen.low, low]), np.concatenate([seen.high, high]), dtype=np.float32
        )
        self._seen: NDArray[np.float32] | None = None  # the environment's observation; None: an episode has to begin
        self._progress = self._begin(None)

    @abstractmethod
    def _begin(self, last: Progress | None) -> Progress:
        """Before the first decision on an action; ``last`` is how the one before it ended, None: there is none."""

    @abstractmethod
    def _decide(self, progress: Progress, decision: int) -> tuple[Progress, bool]:
        """What a decision leads to, and whether it is the last one of the action."""

    @abstractmethod
    def _action(self, progress: Progress) -> NDArray[Any]:
        """The action that the last decision has led to."""

    @abstractmethod
    def _append(self, progress: Progress) -> NDArray[np.float64]:
        """What the agent sees of the progress."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode, and the first action of it."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen = flattened(self.env.observation_space, observation, self.title)
        self._progress = self._begin(None)
        return self._observe(self._seen), info

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Make one decision; the last one of an action steps the environment."""
        if self._seen is None:
            raise ResetNeeded("There is no episode to act in: call reset() to begin one.")
        if not self.action_space.contains(action):
            raise InvalidAction(f"{action!r} is no decision: use {self.legend}.")
        progress, is_last = self._decide(self._progress, int(action))
        if not is_last:
            self._progress = progress
            return self._observe(self._seen), 0.0, False, False, dict(self.inner_info)

        # If the environment raises, the decision was not carried out, and may be made again.
        observation, reward, terminated, truncated, info = self.env.step(self._action(progress))
        seen = flattened(self.env.observation_space, observation, self.title)
        if "executed_action" in info:
            # Of a safety layer inside. Agents take that name for one of their own actions, which are decisions.
            info = {**info, "executed_continuous_action": info["executed_action"]}
            del info["executed_action"]
        self._seen = None if terminated or truncated else seen
        self._progress = self._begin(progress)
        return self._observe(seen), float(reward), terminated, truncated, info

    def _observe(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([seen, self._append(self._progress)], dtype=np.float32, casting="same_kind")


def flattened(space: spaces.Space[Any], observation: Any, title: str) -> NDArray[np.float32]:
    """An observation of :func:`flat_space`.

    :raises ValueError: for numbers that float32 cannot hold
    """
    flat = np.asarray(spaces.flatten(space, observation))
    with np.errstate(over="ignore"):
        kept = flat.astype(np.float32)
    lost = np.isfinite(flat) & ~np.isfinite(kept)
    if lost.any():
        raise ValueError(
            f"the observation holds {flat[lost][0]:g}, which is too large for float32, in which {title} "
            "gives observations: scale them down, with gymnasium.wrappers.TransformObservation."
        )
    return kept


def finite_box(env: Any, title: str, needs_bounds: str) -> spaces.Box:
    """The action space of an environment, if it is a Box with bounds.

    :param title: of the wrapper
    :param needs_bounds: what it does with the bounds, for the error message
    """
    if not isinstance(env, gym.Env):
        raise TypeError(f"{title} wraps an environment, got {env!r}: make it with gymnasium.make")
    space = env.action_space
    if not isinstance(space, spaces.Box):
        hint = " Agents can choose these actions directly." if isinstance(space, spaces.Discrete) else ""
        raise ValueError(f"{title} is for Box action spaces, but this one is {space}.{hint}")
    check_box(space, title, needs_bounds)
    return space


def flat_space(space: spaces.Space[Any], title: str) -> spaces.Box:
    """The flattened space, in float32.

    :param title: of what flattens observations, for messages
    :raises ValueError: for observations that should not be flattened
    """
    for picture in _pictures(space):
        raise ValueError(
            f"{title} flattens observations, which would destroy pictures of shape {picture.shape}: wrap "
            "the environment so that it observes a vector of features."
        )
    if not space.is_np_flattenable:
        raise ValueError(
            f"{title} cannot flatten the observation space {space}: wrap the environment so that its "
            "observations are arrays of a fixed size."
        )
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    with np.errstate(over="ignore"):  # bounds beyond float32 become infinite, which is what they were meant to be
        return spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def _pictures(space: spaces.Space[Any]) -> list[spaces.Box]:
    """Those in a space, also of one colour. Other numbers of type uint8, such as a board with stones, are none."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [picture for part in parts for picture in _pictures(part)]
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return []
    is_picture = len(space.shape) == 3 or (len(space.shape) == 2 and bool((space.high == 255).all()))
    return [space] if is_picture else []
