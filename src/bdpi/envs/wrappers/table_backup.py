"""An example of a backup policy: the robot of Table never falls."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym

from bdpi.envs.table import FORWARD, TURN_LEFT, TURN_RIGHT, Table
from bdpi.envs.wrappers.overrides import BackupPolicy

# The observation is rounded to float32, by less than this.
_ROUNDING = 1e-6


def table_backup(
    observation: Any, action: int, speed: float | None = None, env: gym.Env[Any, Any] | None = None
) -> int:
    """Turn towards the middle of the table instead of driving over its edge; every other action is safe.

    ``BackupPolicy(gym.make("Table-v0"), table_backup)``

    :param observation: x, y and heading
    :param action: what the agent wants to do
    :param speed: of the robot; None: that of ``env``, or Table's default where there is none
    :param env: the Table, which ``BackupPolicy`` gives
    """
    if speed is None:
        speed = 0.005 if env is None else float(env.get_wrapper_attr("speed"))
    x, y, heading = (float(number) for number in observation)
    ahead = x + speed * math.cos(heading), y + speed * math.sin(heading)
    if action != FORWARD or all(_ROUNDING <= coordinate <= 1 - _ROUNDING for coordinate in ahead):
        return action
    to_the_middle = math.atan2(0.5 - y, 0.5 - x)
    return TURN_LEFT if math.remainder(to_the_middle - heading, math.tau) > 0 else TURN_RIGHT


def supervised_table(**kwargs: Any) -> BackupPolicy:
    """``TableSafe-v0``: a Table whose robot is turned away from the edge. The arguments are those of Table."""
    return BackupPolicy(Table(**kwargs), table_backup)
