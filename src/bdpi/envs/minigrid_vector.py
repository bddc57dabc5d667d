"""Tasks of MiniGrid, observed as a vector of numbers.

Importing this module imports MiniGrid; nothing else of the package imports it before one of the tasks is made.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

try:
    from minigrid.envs import DoorKeyEnv, EmptyEnv
except ImportError as error:
    raise DependencyNotInstalled(
        f'The tasks of MiniGrid need MiniGrid ({error}): install it with `pip install "bdpi[minigrid]"`.'
    ) from error

N_DIRECTIONS = 4
LARGEST = 10  # number of a kind of object, the largest of what the agent's view holds


class VectorView(gym.ObservationWrapper[NDArray[np.float32], Any, Any]):
    """What the agent of a MiniGrid task sees, as ``Box(0, 1)``: its view, flattened and divided by 10, then one number
    for each of the four directions that it may face, 1 for the one that it does. The mission's text is left out.

    :param env: a task of MiniGrid
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        view = env.observation_space["image"]  # type: ignore[index]
        self.observation_space = spaces.Box(0, 1, (int(np.prod(view.shape)) + N_DIRECTIONS,), np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """The vector."""
        view = observation["image"].reshape(-1) / LARGEST
        return np.concatenate(
            [view, np.eye(N_DIRECTIONS)[observation["direction"]]], dtype=np.float32, casting="unsafe"
        )


def empty(**kwargs: Any) -> VectorView:
    """``MiniGridVector-Empty-v0``: an empty room of 8 by 8. The arguments are those of MiniGrid's ``EmptyEnv``."""
    return _retraceable(EmptyEnv(**{"size": 8, **kwargs}))


def door_key(**kwargs: Any) -> VectorView:
    """``MiniGridVector-DoorKey-v0``: a locked door in a room of 5 by 5. The arguments are those of ``DoorKeyEnv``."""
    return _retraceable(DoorKeyEnv(**{"size": 5, **kwargs}))


def _retraceable(task: Any) -> VectorView:
    task.retraceable = True  # a simulation, and its generator decides on everything
    return VectorView(task)
