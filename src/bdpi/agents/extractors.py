"""Convolutions for pictures, by their size."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from torch import Tensor, nn

#: Pixels in each direction that the DeepMind convolutions need, and that two convolutions of three pixels need.
FOR_NATURE, SMALLEST = 36, 5
#: Still smaller pictures of whole numbers are maps: MiniGrid's hold kinds of things, at most 10, and not light.
MAP_SIDE, MAP_VALUES = 16, 10
_MOST_FILTERS = 1024


def _is_grid(space: spaces.Space[Any]) -> bool:
    """Whether a space is a stack of maps of true and false, such as MinAtar's."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.bool_


def _has_channels_last(space: spaces.Box) -> bool:
    """SB3 turns pictures of whole numbers round, unless it takes their width for the channels; others stay."""
    height, width, channels = space.shape
    return height == width != channels or (_is_grid(space) and channels <= height)


def is_small(space: spaces.Space[Any]) -> bool:
    """Whether a picture is too small for the DeepMind convolutions."""
    if not (_is_grid(space) or is_image_space(space, check_channels=False)):
        return False
    assert isinstance(space, spaces.Box)
    sides = space.shape[:2] if _has_channels_last(space) else space.shape[1:]
    return min(sides) < FOR_NATURE


def _check_pictures(space: spaces.Space[Any], is_normalized: bool) -> None:
    if _is_grid(space):
        return
    if not is_image_space(space, check_channels=False, normalized_image=is_normalized):
        raise ValueError(
            f'"CnnPolicy" is for pictures, Box(0, 255, (height, width, channels), uint8) or bool, got {space}: use '
            '"MlpPolicy", or "MultiInputPolicy" for Dict'
        )


class Convolutions(NatureCNN):
    """The DeepMind convolutions alone, whose hidden layer is the policy's: in ``net_arch``.

    Pictures of less than 36 pixels in a direction, and bool ones of any size, have two convolutions of 3 by 3 pixels
    instead, with 16 and 32 channels, which skip every other pixel from 16 pixels on.

    :param last_filters: channels of the last of the DeepMind convolutions; the code of the paper has 32
    :param largest: value that small pictures of whole numbers hold; None: 10 below 16 pixels, where they are maps such
        as MiniGrid's, else 255
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        normalized_image: bool = False,
        largest: float | None = None,
        last_filters: int = 64,
    ) -> None:
        _check_pictures(observation_space, normalized_image)
        if not 1 <= last_filters <= _MOST_FILTERS:
            raise ValueError(f"last_filters must be from 1 to {_MOST_FILTERS}, got {last_filters!r}")
        self.channels_last, self.gain = False, 1.0
        if is_small(observation_space) or _is_grid(observation_space):
            self._make_small(observation_space, normalized_image, largest)
            return
        super().__init__(observation_space, normalized_image=normalized_image)
        first = self.linear[0]
        assert isinstance(first, nn.Linear)
        self._features_dim = first.in_features
        last = self.cnn[4]
        if last_filters != last.out_channels:  # type: ignore[comparison-overlap]
            self._features_dim = first.in_features // last.out_channels * last_filters  # type: ignore[operator, assignment]
            self.cnn[4] = nn.Conv2d(64, last_filters, 3)
        self.linear = nn.Identity()  # type: ignore[assignment]

    def _make_small(self, space: spaces.Box, normalized_image: bool, largest: float | None) -> None:
        channels_last = _has_channels_last(space)
        *sides, channels = space.shape if channels_last else (*space.shape[1:], space.shape[0])
        if min(sides) < SMALLEST:
            raise ValueError(
                f"pictures of {sides[0]} by {sides[1]} pixels are too small for convolutions, which need {SMALLEST} in "
                "each direction: enlarge them, flatten them for MlpPolicy, or give policy_kwargs a "
                "features_extractor_class"
            )
        stride = 1 if min(sides) < MAP_SIDE else 2
        seen = [((side - 3) // stride - 2) // stride + 1 for side in sides]
        BaseFeaturesExtractor.__init__(self, space, 32 * seen[0] * seen[1])
        self.channels_last = channels_last
        if space.dtype == np.uint8 and not normalized_image:  # they were divided by 255
            self.gain = 255 / (largest or (MAP_VALUES if min(sides) < MAP_SIDE else 255))
        first, second = nn.Conv2d(channels, 16, 3, stride), nn.Conv2d(16, 32, 3, stride)
        self.cnn = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten())
        self.linear = nn.Identity()  # type: ignore[assignment]

    def forward(self, observations: Tensor) -> Tensor:
        """Pictures as SB3 gives them, to features."""
        if self.channels_last:
            observations = observations.movedim(-1, -3)
        if self.gain != 1:
            observations = observations * self.gain
        return super().forward(observations)


class CombinedConvolutions(CombinedExtractor):
    """SB3's ``CombinedExtractor``, with :class:`Convolutions` for small pictures and for bool ones."""

    def __init__(
        self, observation_space: spaces.Dict, cnn_output_dim: int = 256, normalized_image: bool = False
    ) -> None:
        small = {key: part for key, part in observation_space.spaces.items() if is_small(part) or _is_grid(part)}
        nothing = spaces.Box(0, 1, (0,))
        others = {key: nothing if key in small else part for key, part in observation_space.spaces.items()}
        super().__init__(spaces.Dict(others), cnn_output_dim, normalized_image)
        for key, part in small.items():
            assert isinstance(part, spaces.Box)
            made = self.extractors[key] = Convolutions(part, normalized_image)
            self._features_dim += made.features_dim
        self._observation_space = observation_space


def combined_extractor(space: Any) -> type[BaseFeaturesExtractor]:
    """What MultiInputPolicy begins with: SB3's, unless a picture is too small for that.

    Small pictures of true and false alone are flattened, which the native learner trains; name
    :class:`CombinedConvolutions` for convolutions.
    """
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else ()
    has_small = any(is_small(part) and not _is_grid(part) for part in parts)
    return CombinedConvolutions if has_small else CombinedExtractor
