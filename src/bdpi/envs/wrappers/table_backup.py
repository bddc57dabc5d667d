"""An example of a backup policy: the robot of Table never falls."""

from __future__ import annotations

import math
from typing import Any

from bdpi.envs.table import FORWARD, TURN_LEFT, TURN_RIGHT

# The observation is rounded to float32, by less than this.
_ROUNDING = 1e-6


def table_backup(observation: Any, action: int, speed: float = 0.005) -> int:
    """Turn towards the middle of the table instead of driving over its edge; every other action is safe.

    ``BackupPolicy(gym.make("Table-v0"), table_backup)``

    :param observation: x, y and heading
    :param action: what the agent wants to do
    :param speed: the one that the Table was made with
    """
    x, y, heading = (float(number) for number in observation)
    ahead = x + speed * math.cos(heading), y + speed * math.sin(heading)
    if action != FORWARD or all(_ROUNDING <= coordinate <= 1 - _ROUNDING for coordinate in ahead):
        return action
    to_the_middle = math.atan2(0.5 - y, 0.5 - x)
    return TURN_LEFT if math.remainder(to_the_middle - heading, math.tau) > 0 else TURN_RIGHT
