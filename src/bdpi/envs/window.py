"""A window that shows pictures. It needs pygame."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pygame
from numpy.typing import NDArray


class PictureWindow:
    """Shows pictures at the given rate.

    :param title: of the window
    :param size: of the pictures: width, height
    :param fps: pictures in a second
    """

    def __init__(self, title: str, size: tuple[int, int], fps: int) -> None:
        # SDL, on which pygame is built, may draw windows by OpenGL, and would leave MiniWorld with the wrong context.
        os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
        pygame.display.init()
        pygame.display.set_caption(title)
        self._screen = pygame.display.set_mode(size)
        self._clock = pygame.time.Clock()
        self._fps = fps

    def show(self, picture: NDArray[np.uint8]) -> None:
        """:param picture: (rows, columns, RGB)"""
        columns_first: Any = picture.transpose(1, 0, 2)  # as pygame has them
        pygame.surfarray.blit_array(self._screen, columns_first)
        # A window whose events are not taken is reported as hanging by the desktop.
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        pygame.display.quit()
