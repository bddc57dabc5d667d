"""Stacks of frames, for environments that a single observation does not show in full.

Networks see the last ``n_stack`` observations of an episode, oldest first, side by side on their first axis (the
channels of pictures). Before there are so many, the first one is repeated: zeros are no observation in any unit, and
far from all that scales are made for. An episode goes on where an observation is the one that the step before has led
to, and that step did not end it. ``VecNormalize`` and scales treat all frames of a stack alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import maybe_transpose
from stable_baselines3.common.utils import is_vectorized_observation
from stable_baselines3.common.vec_env import VecNormalize

from bdpi.agents.journal import Transition
from bdpi.agents.spaces import stack_outside


def stacked_space(space: spaces.Space[Any], n_stack: int, axis: int = 0) -> spaces.Space[Any]:
    """The space of stacks of its observations. State numbers become one number for each frame.

    :param axis: of a Box, on which frames are side by side
    :raises ValueError: for others than Box and Discrete
    """
    if n_stack == 1:
        return space
    if isinstance(space, spaces.Box):
        low, high = (np.concatenate([bound] * n_stack, axis) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete([int(space.n)] * n_stack, start=[int(space.start)] * n_stack)
    raise ValueError(
        f"n_stack={n_stack} is not for {type(space).__name__} observations: make them a Box "
        f"(gymnasium.wrappers.FlattenObservation), or {stack_outside(n_stack)}"
    )


def normalized(observations: Any, normalizer: VecNormalize) -> Any:
    """A batch of observations, or of stacks of them, as ``VecNormalize`` shows them."""
    if isinstance(observations, dict) or not normalizer.norm_obs:
        return normalizer.normalize_obs(observations)
    statistics: Any = normalizer.obs_rms
    frames = observations.reshape(-1, *statistics.mean.shape)
    changed: Any = normalizer.normalize_obs(frames)
    return changed.reshape(observations.shape)


class Frames:
    """The frames that acting needs: of each environment, or robot, the stack that comes next if its episode goes on.

    :param space: of one observation
    :param n_stack: frames in a stack
    :param coming: these stacks by the number of the environment, frame by frame; changed in place, and saved
    :raises ValueError: for stacks that are none of this space
    """

    def __init__(self, space: spaces.Space[Any], n_stack: int, coming: dict[int, NDArray[Any]]) -> None:
        self._space, self._n_stack, self._coming = space, n_stack, coming
        self._shape = stacked_space(space, n_stack).shape or ()
        #: calls of follow without a state, one after the other; it warns of the second
        self._stateless = 0
        kind = (n_stack, *(space.shape or ())), space.dtype
        if any((stack.shape, stack.dtype) != kind or not np.isfinite(stack).all() for stack in coming.values()):
            raise ValueError(f"the file is damaged: its frames are not n_stack={n_stack} observations of {space}")

    def stacks(self, observations: NDArray[Any], numbers: Iterable[int]) -> NDArray[Any]:
        """What networks see where environments of these numbers show these observations."""
        found = np.stack([self._stack(number, seen) for number, seen in zip(numbers, observations, strict=True)])
        return found.reshape(len(observations), *self._shape)

    def add(self, steps: Iterable[Transition]) -> None:
        """Environments have made steps."""
        for step in steps:
            stack = self._stack(step.environment, step.observation)
            following = np.asarray(step.next_observation, stack.dtype)
            self._coming[step.environment] = np.concatenate([stack[1:], following[None]])
            if step.terminated or step.truncated:
                del self._coming[step.environment]

    def _stack(self, number: int, observation: Any) -> NDArray[Any]:
        frame, coming = np.asarray(observation, self._space.dtype), self._coming.get(number)
        if coming is not None and np.array_equal(coming[-1], frame):
            return coming
        return np.repeat(frame[None], self._n_stack, axis=0)

    def follow(self, observation: Any, state: tuple[Any, ...] | None, starts: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """What networks see for ``predict``, which is given all it remembers, and the frames it needs next time.

        :param observation: one, or a batch; pictures may have their channels last
        :param state: these frames of the last call, (n, n_stack - 1, ...), in a tuple; None: episodes begin
        :param starts: where episodes have begun since
        """
        frames = maybe_transpose(np.asarray(observation), self._space)
        is_batch = is_vectorized_observation(frames, self._space)
        frames = frames if is_batch else frames[None]
        stacks = np.repeat(frames[:, None], self._n_stack, axis=1)
        self._stateless = 0 if state is not None else self._stateless + 1
        if self._stateless == 2:
            warnings.warn(
                f"predict was called again without a state: with n_stack={self._n_stack}, each observation is "
                "taken for the first of an episode. Hand back the state that it returned, predict(observation, state, "
                "episode_start), as evaluate_policy does.",
                RuntimeWarning,
                stacklevel=3,
            )
        if state is not None:
            before = np.asarray(state[0])
            if before.shape != stacks[:, 1:].shape:
                raise ValueError(
                    f"state holds frames of shape {before.shape}, and {stacks[:, 1:].shape} are needed for "
                    f"{len(frames)} observations: give the state that predict returned for as many, or None"
                )
            goes_on = np.ones(len(frames), bool) if starts is None else ~np.asarray(starts, bool)
            stacks[goes_on, :-1] = before[goes_on]
        seen = stacks.reshape(len(frames), *self._shape)
        return (seen if is_batch else seen[0]), stacks[:, 1:].copy()
