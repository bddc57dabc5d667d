"""Observations as the networks see them: counted from zero, then one-hot or scaled as Stable-Baselines3 does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose, preprocess_obs

from bdpi.learner.interface import Observations
from bdpi.learner.scales import Scales


def zero_based(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The same space with every Discrete part counted from 0, which is all that SB3's preprocessing understands."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: zero_based(part) for key, part in space.spaces.items()})
    return space


def shift_to_zero(observations: Any, space: spaces.Space[Any]) -> Any:
    """Observations (arrays or tensors) of ``space`` as observations of ``zero_based(space)``."""
    if isinstance(space, spaces.Dict):
        return {key: shift_to_zero(observations[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete) and space.start != 0:
        return observations - int(space.start)
    if isinstance(space, spaces.MultiDiscrete) and np.any(space.start):
        start = space.start if isinstance(observations, np.ndarray) else observations.new_tensor(space.start)
        return observations - start
    return observations


def to_arrays(tensors: Any) -> Any:
    """A tensor, or a dictionary of them, as NumPy arrays."""
    if isinstance(tensors, dict):
        return {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
    return tensors.cpu().numpy()


def is_zero_based(space: spaces.Space[Any]) -> bool:
    """Whether :func:`shift_to_zero` has nothing to do."""
    if isinstance(space, spaces.Dict):
        return all(map(is_zero_based, space.spaces.values()))
    return not (isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start))


def channels_first(observation: Any, space: spaces.Space[Any]) -> Any:
    """One observation with its pictures as the networks take them, whichever way they come; as SB3's ``predict`` does.

    :param space: the agent's, whose pictures have their channels first
    """
    if isinstance(space, spaces.Dict) and isinstance(observation, dict):
        return {
            key: channels_first(part, space.spaces[key]) if key in space.spaces else part
            for key, part in observation.items()
        }
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and np.ndim(observation) == 3:
        return maybe_transpose(np.asarray(observation), space)
    return observation


def preprocess(observations: Any, space: spaces.Space[Any], normalize_images: bool = True) -> Any:
    """Tensors of a zero-based space as network inputs, by SB3's rules.

    A replay buffer keeps a Discrete observation in an array of shape (1,); SB3 would make that a one-hot of shape
    (1, n), which a network does not mind, but the extra axis is of no use.
    """
    if isinstance(space, spaces.Dict):
        return {key: preprocess(observations[key], part, normalize_images) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        observations = observations.reshape(-1)
    return preprocess_obs(observations, space, normalize_images=normalize_images)


def is_scaled(space: spaces.Space[Any]) -> bool:
    """Whether an agent scales these observations: numbers, but no pictures and nothing that becomes one-hot."""
    return isinstance(space, spaces.Box) and len(space.shape) != 3


def scaled_parts(space: spaces.Space[Any]) -> dict[str | None, int]:
    """How many numbers of which parts of a space are scaled, by the keys of a Dict; the only part of others is None."""
    if isinstance(space, spaces.Dict):
        return {key: int(np.prod(part.shape or ())) for key, part in space.spaces.items() if is_scaled(part)}
    return {None: int(np.prod(space.shape or ()))} if is_scaled(space) else {}


class NativeInputs:
    """From replay arrays to the arrays of the native learner: state numbers, or float32 rows, in which the parts of a
    Dict lie side by side."""

    def __init__(self, space: spaces.Space[Any], normalize_images: bool) -> None:
        self.space = space
        self.normalize_images = normalize_images
        self.one_hot = isinstance(space, spaces.Discrete)
        image = normalize_images and is_image_space(space)
        #: the replay memory can be read in place
        self.direct = self.one_hot or (isinstance(space, spaces.Box) and space.dtype == np.float32 and not image)
        #: inputs are the numbers of observations, side by side
        self.is_float = self.direct and not self.one_hot
        #: the native learner reads small whole numbers as they are stored
        self.is_bytes = isinstance(space, spaces.Box) and space.dtype in (np.uint8, np.bool_) and not image
        #: of a Dict; those of Discrete parts are one-hot
        self.parts: dict[str, NativeInputs] = {}
        if isinstance(space, spaces.Dict):
            self.parts = {key: NativeInputs(part, normalize_images) for key, part in space.spaces.items()}
        #: which inputs an agent scales
        self.is_scaled = np.concatenate(
            [np.full(part.size, is_scaled(part.space)) for part in self.parts.values()] or [np.zeros(0, bool)]
        )

    @property
    def size(self) -> int:
        """Number of network inputs."""
        if isinstance(self.space, spaces.Discrete):
            return int(self.space.n)
        if self.parts:
            return sum(part.size for part in self.parts.values())
        return self(np.zeros((1, *(self.space.shape or ())), dtype=self.space.dtype)).shape[1]

    def __call__(self, observations: Observations) -> NDArray[Any]:
        """Observations of ``space``, first axis counting them, as inputs."""
        if isinstance(observations, dict):
            return np.concatenate([part._row(observations[key]) for key, part in self.parts.items()], axis=1)
        array = np.asarray(observations)
        if self.is_float and array.ndim == 2 and array.dtype == np.float32 and array.flags.c_contiguous:
            return array
        if self.one_hot:
            return np.ascontiguousarray(array.reshape(-1), dtype=np.int64)
        if not self.direct:
            array = preprocess(torch.as_tensor(array), self.space, self.normalize_images).numpy()
        return np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32)

    def bytes(self, observations: Observations) -> NDArray[Any] | None:
        """The same observations as rows of bytes, not copied; None where they are no such."""
        if not (self.is_bytes and isinstance(observations, np.ndarray) and observations.flags.c_contiguous):
            return None
        return observations.reshape(len(observations), -1)

    def _row(self, observations: NDArray[Any]) -> NDArray[Any]:
        """As a part of a row."""
        inputs = self(observations)
        return np.eye(self.size, dtype=np.float32)[inputs] if self.one_hot else inputs

    def all_scales(self, scales: Scales) -> Scales:
        """Those of all inputs: of a Dict, some parts are not scaled, and one-hot inputs have no scales at all.

        :param scales: of those that are scaled
        """
        if len(scales.shift) == self.size:
            return scales
        every = Scales.none(self.size)
        if len(scales.shift):
            every.shift[self.is_scaled], every.factor[self.is_scaled] = scales.shift, scales.factor
        return replace(scales, shift=every.shift, factor=every.factor)


def stack_outside(n_stack: int) -> str:
    """What to do where agents cannot stack frames themselves."""
    wrapper = f"gymnasium.wrappers.FrameStackObservation(env, {n_stack})"
    return f"stack frames in the environment: {wrapper}; pictures by Stable-Baselines3's VecFrameStack(env, {n_stack})"
