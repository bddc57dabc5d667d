"""Hallway: a robot with a camera looks for the red box in a room.

Importing this module starts MiniWorld; nothing else of the package imports it before a Hallway is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import sys
from collections.abc import Iterable
from numbers import Real
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled, InvalidAction, ResetNeeded
from numpy.typing import NDArray

from bdpi.envs.drawing import prepare_drawing

prepare_drawing()

try:
    # The fonts are never used, but MiniWorld loads them: if their library is missing, it is said here.
    import pyglet.font  # noqa: F401
    from miniworld.entity import Box
    from miniworld.miniworld import MiniWorldEnv
    from pyglet import gl
except Exception as error:  # missing libraries are ImportErrors, missing displays and drivers have pyglet's own types
    raise DependencyNotInstalled(
        f"Hallway needs MiniWorld, which does not start here ({type(error).__name__}: {error}). Install it with "
        '`pip install "bdpi[hallway]"`, and the system libraries that it draws with (Debian, Ubuntu) with '
        "`apt-get install --no-install-recommends libegl1 libgl1 libglu1-mesa libfreetype6`. "
        "Where there is no display, PYGLET_HEADLESS=1 has to be in the environment when Python starts."
    ) from error

# OpenGL started in this process. Processes that are forked from it cannot draw.
_PROCESS = os.getpid()

FORWARD = 0
BACKWARD = 1
TURN_LEFT = 2
TURN_RIGHT = 3

# What MiniWorld's domain randomisation draws these from.
STEP = (0.12, 0.17)  # metres
DRIFT = (-0.05, 0.05)  # metres to the right
TURN = (10.0, 20.0)  # degrees

SMALLEST_ROOM = 3.0  # metres: around a box in the middle, there still is a place for the robot that is not the goal
PICTURE_WIDTH, PICTURE_HEIGHT = 800, 600


class Hallway(MiniWorldEnv):  # type: ignore[misc] # MiniWorld has no types
    """A robot in a room has to drive to the red box, and sees nothing but the picture of its camera.

    ## Description
    Every episode takes place in another rectangular room, with the box and the robot somewhere in it. The robot
    drives slowly and not exactly: how far it goes, and how far it turns, is drawn at random at every step. Nothing
    tells it that it comes closer to the box. Walls and the box stop it; it does not slide along them.

    The environment comes from *Sample-Efficient Model-Free Reinforcement Learning with Off-Policy Critics*
    (Steckelmacher et al., 2019), where it stands for a robot with a camera in the real world, and is built with
    [MiniWorld](https://miniworld.farama.org). It differs from `MiniWorld-Hallway-v0` in almost everything but the
    looks: that one has no backward action, a room that never changes, a robot that starts facing the box and moves
    exactly, a reward that shrinks with time, and 250 steps.

    ## Action Space
    `Discrete(4)`:

    | Num | Action                                                        |
    |-----|---------------------------------------------------------------|
    | 0   | Move forward 0.12 to 0.17 m, and up to 0.05 m to either side  |
    | 1   | Move backward, by as much                                     |
    | 2   | Turn left 10 to 20 degrees, without moving                    |
    | 3   | Turn right 10 to 20 degrees, without moving                   |

    The paper only says that the amount of movement is stochastic. These are the ranges of MiniWorld's domain
    randomisation, uniformly distributed; what it does to colours, light and camera is left out.

    ## Observation Space
    `Box(0, 255, (60, 80, 3), uint8)`: what the camera sees, (rows, columns, RGB).

    ## Rewards
    - The box is reached: +1
    - Every other step: 0

    ## Starting State
    A room of 6 to 12 by 3 to 6 metres, the box anywhere in it, the robot anywhere but at the box, looking anywhere:
    all uniformly distributed. The paper gives no sizes; these are around those of MiniWorld's own hallway, 12 by 4.

    ## Episode End
    - Termination: the box is reached, that is, its middle is less than 1.15 m from the middle of the robot. They
      touch at 0.97 m.
    - Truncation: after 500 steps.

    `info["is_success"]` tells after every step whether the box was reached.

    ## Arguments
    - `length=(6, 12)`: shortest and longest room, in metres, at least 3. Longer rooms make the box harder to find.
    - `width=(3, 6)`: the same for the other side. Give twice the same number for a room that does not change.
    - `view="agent"`: what `render()` shows: `"agent"` what the robot sees, `"top"` the room from above. The
      observation is what the robot sees in any case.
    - `render_mode=None`: `"rgb_array"` for pictures of 800 by 600 pixels, `"human"` for a window.

    ```python
    >>> import gymnasium as gym
    >>> env = gym.make("bdpi:Hallway-v0", view="top", render_mode="rgb_array")  # doctest: +SKIP

    ```

    ## Drawing
    `pip install "bdpi[hallway]"` installs MiniWorld; OpenGL has to be there. A Debian or Ubuntu without a desktop gets
    it by `apt-get install --no-install-recommends libegl1 libgl1 libglu1-mesa libfreetype6`. Importing this module
    sets two environment variables that are not set yet: `PYGLET_HEADLESS=1` on a Linux without a display, and
    `LP_NUM_THREADS=0`, which makes drawing without a GPU faster. pyglet reads the first when it is imported: programs
    that use pyglet before they make a Hallway set it themselves.

    Any number of Hallways may live in one process, next to each other. MiniWorld's own environments do not mix as
    well: two of them in one process show each other's rooms. OpenGL does not survive a fork, so worker processes have
    to be started by spawn or forkserver: `SubprocVecEnv(..., start_method="spawn")` of Stable-Baselines3,
    `AsyncVectorEnv(..., context="spawn")` of Gymnasium.

    ## Version History
    - v0: the paper's environment
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012

    _closed: bool
    _ended: bool | None  # None until the user resets

    def __init__(
        self,
        length: Iterable[float] = (6, 12),
        width: Iterable[float] = (3, 6),
        view: str = "agent",
        render_mode: str | None = None,
    ) -> None:
        self.length = _range("length", length)
        self.width = _range("width", width)
        if view not in ("agent", "top"):
            raise ValueError(f"view={view!r} does not exist: use 'agent' or 'top'.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode={render_mode!r} does not exist: use 'rgb_array', 'human', or None for no pictures."
            )
        if os.getpid() != _PROCESS:
            raise RuntimeError(
                "OpenGL was started before this process was forked, Hallway cannot draw in it: start worker processes "
                'by spawn, with SubprocVecEnv(..., start_method="spawn") or AsyncVectorEnv(..., context="spawn").'
            )

        self._window: Any = None
        self._start_drawing(view, render_mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Draw a new room, and put the box and the robot somewhere in it."""
        if self._closed:
            self._start_drawing(self.view, self.render_mode)
        observation, _ = super().reset(seed=seed, options=options)  # calls _gen_world and _render_static
        self._ended = False
        if self.render_mode == "human":
            self.render()
        return observation, {}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move or turn once. Truncation is left to the time limit of the registered id."""
        if self._ended is None:
            raise ResetNeeded("step() was called before reset(): call reset() once to put the robot in its room.")
        if self._ended:
            raise ResetNeeded("The episode has ended, the robot cannot move any more: call reset() to start the next.")
        if not self.action_space.contains(action):
            raise InvalidAction(
                f"{action!r} is no action: use 0 (forward), 1 (backward), 2 (turn left) or 3 (turn right)."
            )

        self.step_count += 1
        if action in (FORWARD, BACKWARD):
            distance = self.np_random.uniform(*STEP)
            self.move_agent(distance if action == FORWARD else -distance, self.np_random.uniform(*DRIFT))
        else:
            angle = self.np_random.uniform(*TURN)
            self.turn_agent(angle if action == TURN_LEFT else -angle)

        self._ended = reached = self._at_box(self.agent.pos)
        if self.render_mode == "human":
            self.render()
        return self.render_obs(), float(reached), reached, False, {"is_success": reached}

    def render(self) -> NDArray[np.uint8] | None:
        """Draw what the robot sees, or the room from above: the picture, or None when it went to the window."""
        if self.render_mode is None:
            gym.logger.warn(
                "Hallway.render() draws nothing without a render mode: "
                'make the environment with render_mode="rgb_array" or render_mode="human".'
            )
            return None
        if self._ended is None:
            raise ResetNeeded("render() was called before reset(): call reset() once to put the robot in its room.")
        draw = self.render_top_view if self.view == "top" else self.render_obs
        picture: NDArray[np.uint8] = draw(self.vis_fb)
        if self.render_mode == "rgb_array":
            return picture
        if self._window is None:
            # MiniWorld's own window needs pyglet to have a display, and draws as fast as it can.
            try:
                from bdpi.envs.window import PictureWindow
            except ImportError as error:
                raise DependencyNotInstalled(
                    'The window needs pygame, which is not installed: run `pip install "gymnasium[toy-text]"`.'
                ) from error
            self._window = PictureWindow("Hallway", (PICTURE_WIDTH, PICTURE_HEIGHT), self.metadata["render_fps"])
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Close the window, and give back what OpenGL holds, which MiniWorld does not. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        self._ended = None
        if self._window is not None:
            self._window.close()
            self._window = None
        self.shadow_window.switch_to()
        gl.glDeleteLists(self._scene, 1)
        _free(self.obs_fb)
        _free(self.vis_fb)
        self.shadow_window.close()

    def _start_drawing(self, view: str, render_mode: str | None) -> None:
        """Let MiniWorld make the context of OpenGL, and all that it draws with. This also makes a first room."""
        self._scene = 0  # OpenGL's number of the display list; there is none before the first room
        self._closed = False
        # MiniWorld reserves 34 MB for the large pictures, which are not drawn without a render mode.
        width, height = (1, 1) if render_mode is None else (PICTURE_WIDTH, PICTURE_HEIGHT)
        # It prints how many samples a pixel the driver has.
        with contextlib.redirect_stdout(io.StringIO()):
            super().__init__(max_episode_steps=sys.maxsize, window_width=width, window_height=height, view=view)
        self.render_mode = render_mode  # only now: the constructor resets, which must not open a window
        self.action_space = cast("spaces.Space[np.int64]", spaces.Discrete(4))
        self._ended = None

    def _gen_world(self) -> None:
        length, width = self.np_random.uniform(*self.length), self.np_random.uniform(*self.width)
        self.add_rect_room(min_x=0, max_x=length, min_z=0, max_z=width)

        def anywhere(radius: float) -> NDArray[np.float64]:
            return self.np_random.uniform((radius, 0, radius), (length - radius, 0, width - radius))

        self.box = Box(color="red")
        self.place_entity(self.box, pos=anywhere(self.box.radius))
        start = anywhere(self.agent.radius)
        while self._at_box(start):
            start = anywhere(self.agent.radius)
        self.place_agent(pos=start)  # heading: MiniWorld draws it from np_random

    def _at_box(self, position: NDArray[np.float64]) -> bool:
        # As near as MiniWorld demands: one may have to stop a step short of what one would bump into.
        near = self.box.radius + self.agent.radius + 1.1 * STEP[1]
        return bool(np.linalg.norm(self.box.pos - position) < near)

    def _render_static(self) -> None:
        """Compile the room and the box into a display list of this environment.

        MiniWorld uses the list number 1 in all environments, although they share their lists: each would show the room
        of the one that was reset last. And it draws the box anew in every frame, in case it is carried.
        """
        self.shadow_window.switch_to()
        if self._scene == 0:
            # Number 1 is left to MiniWorld: were it free, two numbers in a row end in one that is not 1.
            self._scene = gl.glGenLists(2) + 1
        gl.glNewList(self._scene, gl.GL_COMPILE)
        # The light of MiniWorld: with a 0 at the end, OpenGL takes it as a direction instead of a place.
        _light(gl.GL_POSITION, (*self.light_pos + 1, 0))
        _light(gl.GL_AMBIENT, (*self.light_ambient, 0))
        _light(gl.GL_DIFFUSE, (*self.light_color, 0))
        for switch in (gl.GL_LIGHTING, gl.GL_LIGHT0, gl.GL_COLOR_MATERIAL, gl.GL_TEXTURE_2D):
            gl.glEnable(switch)
        gl.glShadeModel(gl.GL_SMOOTH)
        gl.glColorMaterial(gl.GL_FRONT_AND_BACK, gl.GL_AMBIENT_AND_DIFFUSE)
        self.rooms[0]._render()
        self.box.render()
        gl.glEndList()

    def _render_world(self, frame_buffer: Any, render_agent: bool) -> NDArray[np.uint8]:
        gl.glCallList(self._scene)
        if render_agent:
            self.agent.render()
        return cast("NDArray[np.uint8]", frame_buffer.resolve())


def _light(what: int, values: Iterable[float]) -> None:
    gl.glLightfv(gl.GL_LIGHT0, what, (gl.GLfloat * 4)(*values))


def _free(frame_buffer: Any) -> None:
    """Delete the two buffers of a ``FrameBuffer``, and what is attached to them: only OpenGL knows its numbers."""
    for buffer in (frame_buffer.multi_fbo, frame_buffer.final_fbo):
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, buffer)
        for attachment, delete in (
            (gl.GL_COLOR_ATTACHMENT0, gl.glDeleteTextures),
            (gl.GL_DEPTH_ATTACHMENT, gl.glDeleteRenderbuffers),
        ):
            number = gl.GLint()
            gl.glGetFramebufferAttachmentParameteriv(
                gl.GL_FRAMEBUFFER, attachment, gl.GL_FRAMEBUFFER_ATTACHMENT_OBJECT_NAME, ctypes.byref(number)
            )
            delete(1, ctypes.byref(gl.GLuint(number.value)))
        gl.glDeleteFramebuffers(1, ctypes.byref(buffer))
    gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, 0)


def _range(name: str, value: Iterable[float]) -> tuple[float, float]:
    numbers = list(value) if isinstance(value, Iterable) else []
    if len(numbers) != 2 or not all(isinstance(number, Real) and math.isfinite(number) for number in numbers):
        raise ValueError(f"{name}={value!r} is no range: give two numbers (shortest, longest), in metres.")
    low, high = (float(number) for number in numbers)
    if not SMALLEST_ROOM <= low <= high:
        raise ValueError(
            f"{name}={(low, high)} makes no room: give two numbers, the larger one last, of at least {SMALLEST_ROOM}."
        )
    return low, high
