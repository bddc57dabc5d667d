"""A film of the learned policy: a GIF that is small enough to be looked at and sent around."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from bdpi.storage.atomic import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

_LARGEST, _SMALLEST = 360, 240  # pixels of the longer side: larger pictures shrink, smaller ones grow
_CAPTION_HEIGHT = 20
_CAPTION_COLOUR = (240, 240, 240)
_FASTEST_MS, _SLOWEST_MS, _LAST_PICTURE_MS = 50, 120, 900
_COLOURS = 96


class Film:
    """Pictures of some episodes, thinned out as they grow too many.

    :param max_pictures: about as many are kept. A longer film skips pictures, evenly, and never the last of an episode.
    """

    def __init__(self, max_pictures: int = 200) -> None:
        self.max_pictures = max_pictures
        self.steps_filmed = 0
        self._stride = 0  # every so many steps one picture; 0: not known before the first one
        self._fps = 30.0
        self._pictures: list[tuple[int, bool, Image.Image]] = []  # step of its episode, last of it, picture

    def __len__(self) -> int:
        return len(self._pictures)

    def wants(self, step: int, ends_episode: bool, fps: float) -> bool:
        """Count one more step, and say whether it should be drawn: drawing takes time.

        :param fps: how many steps a second the environment wants to be shown at.
        """
        if self._stride == 0:
            self._fps = fps
            self._stride = max(1, round(fps * _FASTEST_MS / 1000))
        self.steps_filmed += 1
        return ends_episode or step % self._stride == 0

    def add(self, picture: NDArray[np.uint8], step: int, ends_episode: bool, caption: str) -> None:
        """Add what a wanted step looks like."""
        self._pictures.append((step, ends_episode, _captioned(picture, caption)))
        while len(self._pictures) > self.max_pictures and self._stride < 1_000_000:
            self._stride *= 2
            self._pictures = [kept for kept in self._pictures if kept[0] % self._stride == 0 or kept[1]]

    def save(self, path: Path) -> None:
        """:raises ValueError: when nothing was filmed."""
        if not self._pictures:
            raise ValueError("nothing was drawn, so there is no film to save")
        from PIL import Image

        real_time = 1000 * self._stride / self._fps
        usual = int(min(_SLOWEST_MS, max(_FASTEST_MS, real_time)))
        durations = [_LAST_PICTURE_MS if last else usual for _, last, _ in self._pictures]
        # One palette for all pictures keeps colours from flickering; it is taken from pictures all over the film.
        sample = [picture for _, _, picture in self._pictures[:: max(1, len(self._pictures) // 8)]]
        strip = Image.new("RGB", (sample[0].width, sum(picture.height for picture in sample)))
        top = 0
        for picture in sample:
            strip.paste(picture, (0, top))
            top += picture.height
        palette = strip.quantize(_COLOURS)
        frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for _, _, picture in self._pictures]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path,
            lambda file: frames[0].save(
                file, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0
            ),
        )


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose every step is filmed: from its first picture to its last, before any automatic reset.

    :param env: made with ``render_mode="rgb_array"``.
    :param film: gets the pictures.
    """

    def __init__(self, env: gym.Env[Any, Any], film: Film) -> None:
        super().__init__(env)
        self._film = film
        self._episode, self._step, self._return = 0, 0, 0.0
        self._fps = float(env.metadata.get("render_fps") or 30)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = super().reset(**kwargs)
        self._step, self._return = 0, 0.0
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._step == 0:  # here, not in reset: the reset behind the last episode begins none
            self._episode += 1
            self._shoot(False)
        result = super().step(action)
        self._step += 1
        self._return += float(result[1])
        self._shoot(bool(result[2] or result[3]))
        return result

    def _shoot(self, ends_episode: bool) -> None:
        if not self._film.wants(self._step, ends_episode, self._fps):
            return
        picture = self.env.render()
        if getattr(picture, "ndim", 0) != 3 or picture.shape[2] != 3:  # type: ignore[union-attr]
            raise ValueError("the environment's rgb_array rendering gives no RGB picture")
        caption = f"episode {self._episode}   step {self._step}   return {self._return:.2f}"
        self._film.add(picture, self._step, ends_episode, caption)  # type: ignore[arg-type]


def has_display() -> bool:
    """Whether a window can be opened. (SDL would silently draw on nothing, so it cannot be asked.)"""
    if not sys.platform.startswith("linux"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


@contextlib.contextmanager
def no_window() -> Iterator[None]:
    """Keep SDL, with which many environments draw, from looking for a display where there is none, and complaining."""
    if has_display():
        yield
        return
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        del os.environ["SDL_VIDEODRIVER"]


def _captioned(array: NDArray[np.uint8], caption: str) -> Image.Image:
    """The picture in a sensible size, above a line of text."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(array)
    longer = max(picture.size)
    if longer > _LARGEST:
        scale = _LARGEST / longer
        picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BOX)
    elif longer < _SMALLEST:
        factor = -(-_SMALLEST // longer)  # whole pixels stay whole
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    framed = Image.new("RGB", (max(picture.width, _SMALLEST), picture.height + _CAPTION_HEIGHT), _CAPTION_COLOUR)
    framed.paste(picture, ((framed.width - picture.width) // 2, 0))
    ImageDraw.Draw(framed).text(
        (6, picture.height + 3), caption, fill=(60, 60, 60), font=ImageFont.load_default(size=12)
    )
    return framed
