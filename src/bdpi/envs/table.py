"""Table: a tiny robot on a large table looks for its charging station."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled, InvalidAction, ResetNeeded
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bdpi.envs.window import PictureWindow

FORWARD = 0
TURN_LEFT = 1
TURN_RIGHT = 2

DOCKED_REWARD = 100.0
FELL_REWARD = -50.0

# A sum of many small steps misses the exact edge of the table or of the dock by some 1e-15. Without this slack,
# whether a robot that stopped *on* an edge is inside would depend on how it came there.
ROUNDING = 1e-9


class Pose(NamedTuple):
    """Where the robot is and which way it looks, in float64: float32 would drift over 2000 steps."""

    x: float
    y: float
    heading: float


class Table(gym.Env[NDArray[np.float32], np.int64]):
    """A robot on a table has to find its charging station, and dock facing the right way.

    ## Description
    The table is a 1-by-1 square without a railing. The charging station is in its middle, the robot starts near a
    corner and drives slowly: it needs about a hundred well-chosen steps, and nothing tells it that it comes closer.
    Nothing is random. The robot is a point; the disc in the pictures is only there to be seen.

    The environment comes from *Sample-Efficient Model-Free Reinforcement Learning with Off-Policy Critics*
    (Steckelmacher et al., 2019), where it tests exploration. Robots that acted at random docked in none of 500
    episodes of 200 steps, and in 31 of 500 episodes of 2000 steps; a robot that has learned not to fall before it
    ever docked has no reason to go anywhere.

    ## Action Space
    `Discrete(3)`:

    | Num | Action                              |
    |-----|-------------------------------------|
    | 0   | Move forward 0.005                  |
    | 1   | Turn left 0.1 rad, without moving   |
    | 2   | Turn right 0.1 rad, without moving  |

    ## Observation Space
    `Box` of shape `(3,)`, float32. y points up, headings are counter-clockwise from the x axis.

    | Num | Observation          | Min | Max |
    |-----|----------------------|-----|-----|
    | 0   | x                    | 0   | 1   |
    | 1   | y                    | 0   | 1   |
    | 2   | heading (wrapped)    | -π  | π   |

    The last observation of a robot that fell is clipped to the edge it went over, so that it lies in the space too.
    Nothing is lost: that state is terminal, no value is ever learned for it.

    ## Rewards
    - Docked: +100
    - Fell off the table: -50
    - Every other step: 0

    ## Starting State
    `(0.1, 0.1, 0.1)`, always. The paper only says that the robot faces away from the goal. We read that as a heading
    of 0.1 rad, along the lower edge; pass `start` to turn it further away.

    ## Episode End
    - Termination: the robot falls off (x or y leaves `[0, 1]`; on the edge it still stands), or docks: x and y within
      0.05 and the heading within 0.3 rad of `(0.5, 0.5, π/4)`. Edges count as docked, headings are compared around
      the circle.
    - Truncation: `Table-v0` after 200 steps, `TableLong-v0` after 2000 steps.

    The two ids differ in nothing else. The text of the paper has 200 steps, but its figure, where all runs of BDPI
    learn to dock, shows what the version with 2000 steps gives; 2000 is also the limit in the code that the authors
    published. Compare with the figure on `TableLong-v0`; `Table-v0` is the harder task of the text.

    `info["is_success"]` tells after every step whether the robot docked, not only after docking and falling:
    otherwise Stable-Baselines3 would leave truncated episodes out of its success rate.

    ## Arguments
    - `start=(0.1, 0.1, 0.1)`: x, y and heading of the robot at the start of each episode.
    - `goal=(0.5, 0.5, π/4)`: x, y and heading of a docked robot.
    - `position_tolerance=0.05`: how far x and y may each be from the goal. Smaller makes the goal harder to find.
    - `heading_tolerance=0.3`: how many radians the heading may be off; π accepts any heading.
    - `speed=0.005`: distance of one step forward. Larger needs fewer steps to the goal, and to the edge.
    - `turn_rate=0.1`: radians of one turn.
    - `positive_heading=False`: headings are observed from 0 to 2π instead of from -π to π, as in the published code.
    - `render_mode=None`: `"rgb_array"` for pictures of 400 by 400 pixels, `"human"` for a window.

    ```python
    >>> import gymnasium as gym
    >>> env = gym.make("bdpi:Table-v0", start=(0.1, 0.1, -2.4), render_mode="rgb_array")

    ```

    ## Version History
    - v0: the paper's environment, with its time limit of 200 steps (`Table-v0`) or 2000 steps (`TableLong-v0`)
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 50}  # noqa: RUF012

    def __init__(
        self,
        start: Iterable[float] = (0.1, 0.1, 0.1),
        goal: Iterable[float] = (0.5, 0.5, math.pi / 4),
        position_tolerance: float = 0.05,
        heading_tolerance: float = 0.3,
        speed: float = 0.005,
        turn_rate: float = 0.1,
        positive_heading: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.start = _pose("start", start)
        self.goal = _pose("goal", goal)
        self.position_tolerance = _number("position_tolerance", position_tolerance)
        self.heading_tolerance = _number("heading_tolerance", heading_tolerance)
        self.speed = _number("speed", speed, positive=True)
        self.turn_rate = _number("turn_rate", turn_rate, positive=True)
        self.positive_heading = bool(positive_heading)
        if self._docked(self.start):
            raise ValueError(
                f"start={tuple(self.start)} is already docked at goal={tuple(self.goal)}, there would be nothing to "
                "learn: move one of them, or make position_tolerance or heading_tolerance smaller."
            )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode={render_mode!r} does not exist: use 'rgb_array', 'human', or None for no pictures."
            )
        self.render_mode = render_mode

        self.action_space = cast("spaces.Space[np.int64]", spaces.Discrete(3))
        self.observation_space = spaces.Box(
            np.array([0, 0, 0 if positive_heading else -math.pi], np.float32),
            np.array([1, 1, math.tau if positive_heading else math.pi], np.float32),
            dtype=np.float32,
        )

        self._pose: Pose | None = None  # None until the first reset
        self._ended = False
        self._trace: list[Pose] = []
        self._window: PictureWindow | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Put the robot back to its start. The seed changes nothing: there is no randomness to seed."""
        super().reset(seed=seed)
        self._pose = self.start
        self._ended = False
        self._trace = [self.start]
        if self.render_mode == "human":
            self.render()
        return self._observation(), {}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move or turn once. Truncation is left to the time limit that the registered ids carry."""
        if self._pose is None:
            raise ResetNeeded("step() was called before reset(): call reset() once to put the robot on the table.")
        if self._ended:
            raise ResetNeeded("The episode has ended, the robot cannot move any more: call reset() to start the next.")
        if not self.action_space.contains(action):
            raise InvalidAction(f"{action!r} is no action: use 0 (forward), 1 (turn left) or 2 (turn right).")

        self._pose = self._moved(self._pose, int(action))
        if self.render_mode is not None and action == FORWARD:
            self._trace.append(self._pose)

        fell = not _on_table(self._pose)
        docked = not fell and self._docked(self._pose)
        self._ended = fell or docked
        reward = FELL_REWARD if fell else DOCKED_REWARD if docked else 0.0

        if self.render_mode == "human":
            self.render()
        return self._observation(), reward, self._ended, False, {"is_success": docked}

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the table, the station, the robot and its trace: the picture, or None when it went to the window."""
        if self.render_mode is None:
            gym.logger.warn(
                "Table.render() draws nothing without a render mode: "
                'make the environment with render_mode="rgb_array" or render_mode="human".'
            )
            return None
        if self._pose is None:
            raise ResetNeeded("render() was called before reset(): call reset() once to put the robot on the table.")
        try:
            # Only here, so that training needs no pygame.
            from bdpi.envs import table_picture
            from bdpi.envs.window import PictureWindow
        except ImportError as error:
            raise DependencyNotInstalled(
                'Table is drawn with pygame, which is not installed: run `pip install "gymnasium[toy-text]"`.'
            ) from error

        picture = table_picture.draw(
            self._pose, self.goal, self.position_tolerance, self.heading_tolerance, self._trace
        )
        if self.render_mode == "rgb_array":
            return picture
        if self._window is None:
            self._window = PictureWindow("Table", (table_picture.SIZE, table_picture.SIZE), self.metadata["render_fps"])
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Close the window, if there is one. May be called more than once."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _observation(self) -> NDArray[np.float32]:
        assert self._pose is not None
        x, y, heading = self._pose
        if self.positive_heading and heading < 0:
            heading += math.tau
        return np.array([min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0), heading], np.float32)

    def _moved(self, pose: Pose, action: int) -> Pose:
        if action == FORWARD:
            return pose._replace(
                x=pose.x + self.speed * math.cos(pose.heading), y=pose.y + self.speed * math.sin(pose.heading)
            )
        turn = self.turn_rate if action == TURN_LEFT else -self.turn_rate
        return pose._replace(heading=_wrapped(pose.heading + turn))

    def _docked(self, pose: Pose) -> bool:
        position = self.position_tolerance + ROUNDING
        return (
            abs(pose.x - self.goal.x) <= position
            and abs(pose.y - self.goal.y) <= position
            and abs(_wrapped(pose.heading - self.goal.heading)) <= self.heading_tolerance + ROUNDING
        )


def _wrapped(angle: float) -> float:
    # The IEEE remainder lies in [-π, π] and, unlike a modulo, has no rounding error of its own.
    return math.remainder(angle, math.tau)


def _on_table(pose: Pose) -> bool:
    return -ROUNDING <= pose.x <= 1 + ROUNDING and -ROUNDING <= pose.y <= 1 + ROUNDING


def _number(name: str, value: float, positive: bool = False) -> float:
    wanted = "a number greater than 0" if positive else "0 or a number greater than 0"
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name}={value!r} makes no sense here: give {wanted}.")
    return float(value)


def _pose(name: str, value: Iterable[float]) -> Pose:
    numbers = list(value) if isinstance(value, Iterable) else []
    if len(numbers) != 3 or not all(isinstance(number, Real) and math.isfinite(number) for number in numbers):
        raise ValueError(f"{name}={value!r} is no pose: give three finite numbers (x, y, heading in radians).")
    x, y, heading = (float(number) for number in numbers)
    pose = Pose(x, y, _wrapped(heading))
    if not _on_table(pose):
        raise ValueError(f"{name}={(x, y, heading)} is off the table: give an x and a y between 0 and 1.")
    return pose
