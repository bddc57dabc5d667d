"""What Table looks like. The only file of that environment that needs pygame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pygame
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bdpi.envs.table import Pose

SIZE = 400  # pixels, both ways
MARGIN = 20  # of floor around the table, so that a fall can be seen
FINE = 3  # drawn this many times larger, then averaged: pygame's own anti-aliasing has no thick lines

FLOOR = (224, 227, 231)
SHADOW = (196, 200, 206)
WOOD = (240, 218, 184)
WOOD_EDGE = (201, 167, 121)
TRACE = (214, 106, 60)
STATION = (38, 103, 214)
STATION_SECTOR = (112, 165, 246)
MARK = (255, 255, 255)
ROBOT = (18, 18, 18)

ROBOT_RADIUS = 0.028  # of the table's side

Point = tuple[float, float]


def draw(
    robot: Pose, goal: Pose, position_tolerance: float, heading_tolerance: float, trace: Sequence[Pose]
) -> NDArray[np.uint8]:
    """Draw the table from above, y upwards: (rows, columns, RGB).

    :param robot: where the robot is now
    :param goal: the docked robot's pose
    :param position_tolerance: half the side of the station's square
    :param heading_tolerance: half the angle of the light sector: a robot that looks into it may dock
    :param trace: the poses since the start of the episode
    """
    canvas = pygame.Surface((SIZE * FINE, SIZE * FINE), depth=32)
    canvas.fill(FLOOR)
    _draw_table(canvas)
    _draw_station(canvas, goal, position_tolerance, heading_tolerance)
    if len(trace) > 1:
        pygame.draw.lines(canvas, TRACE, False, [_pixel(pose.x, pose.y) for pose in trace], width=2 * FINE)
    _draw_robot(canvas, robot)
    picture = pygame.surfarray.array3d(pygame.transform.smoothscale(canvas, (SIZE, SIZE)))
    return np.ascontiguousarray(picture.transpose(1, 0, 2), dtype=np.uint8)  # pygame has columns first


def _length(distance: float) -> float:
    return distance * (SIZE - 2 * MARGIN) * FINE


def _pixel(x: float, y: float) -> Point:
    return MARGIN * FINE + _length(x), MARGIN * FINE + _length(1 - y)


def _ahead(pose: Pose, distance: float, angle: float = 0.0) -> Point:
    """The pixel at some distance from a pose, in a direction relative to its heading."""
    direction = pose.heading + angle
    return _pixel(pose.x + distance * math.cos(direction), pose.y + distance * math.sin(direction))


def _draw_table(canvas: pygame.Surface) -> None:
    top = pygame.Rect(MARGIN * FINE, MARGIN * FINE, _length(1), _length(1))
    pygame.draw.rect(canvas, SHADOW, top.move(4 * FINE, 4 * FINE), border_radius=2 * FINE)
    pygame.draw.rect(canvas, WOOD, top)
    pygame.draw.rect(canvas, WOOD_EDGE, top, width=2 * FINE)


def _draw_station(canvas: pygame.Surface, goal: Pose, position_tolerance: float, heading_tolerance: float) -> None:
    half = max(position_tolerance, 0.02)  # a smaller station could not be seen
    square = pygame.Rect(_pixel(goal.x - half, goal.y + half), (_length(2 * half), _length(2 * half)))
    pygame.draw.rect(canvas, STATION, square, border_radius=5 * FINE)

    # The sector starts behind the arrow's shaft, not in the middle, so that it is long enough to see its angle.
    tail = goal._replace(x=goal.x - 0.7 * half * math.cos(goal.heading), y=goal.y - 0.7 * half * math.sin(goal.heading))
    spread = min(heading_tolerance, math.pi)
    arc = [_ahead(tail, 1.6 * half, angle) for angle in np.linspace(-spread, spread, 33)]
    canvas.set_clip(square)
    pygame.draw.polygon(canvas, STATION_SECTOR, [_pixel(tail.x, tail.y), *arc])
    canvas.set_clip(None)

    pygame.draw.line(canvas, MARK, _pixel(tail.x, tail.y), _ahead(goal, 0.4 * half), width=2 * FINE)
    head = [_ahead(goal, 0.75 * half), _ahead(goal, 0.4 * half, 0.6), _ahead(goal, 0.4 * half, -0.6)]
    pygame.draw.polygon(canvas, MARK, head)


def _draw_robot(canvas: pygame.Surface, robot: Pose) -> None:
    pygame.draw.circle(canvas, ROBOT, _pixel(robot.x, robot.y), _length(ROBOT_RADIUS))
    # A dot, because pygame's lines get thinner the more they slant.
    pygame.draw.circle(canvas, MARK, _ahead(robot, 0.6 * ROBOT_RADIUS), _length(0.25 * ROBOT_RADIUS))
