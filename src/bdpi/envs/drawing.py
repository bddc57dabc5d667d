"""What has to be settled before an environment draws by OpenGL."""

from __future__ import annotations

import contextlib
import os
import sys


def prepare_drawing() -> None:
    """Let MiniWorld's environments, and others that draw by pyglet or Mesa, start where they would not.

    Sets environment variables that are not set yet: ``PYGLET_HEADLESS=1`` on a Linux without a display, and
    ``LP_NUM_THREADS=0``. pyglet reads the first when it is imported.
    """
    # pyglet, with which MiniWorld draws, looks for an X server unless it is told that there is none.
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        os.environ.setdefault("PYGLET_HEADLESS", "1")
    # Mesa's threads for drawing in software cost more than they bring, for pictures as small as a network's inputs.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    # Mesa and Triton, which PyTorch's CUDA packages bring along, each have an LLVM inside. Loaded after Mesa's,
    # Triton's crashes the process; the other way round, both work.
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401
