"""A few values of a continuous action, for agents with discrete actions."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from bdpi.envs.factors import box_action, check_whole
from bdpi.envs.wrappers.decisions import finite_box

MAX_ACTIONS = 256


class DiscreteAction(gym.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Lets an agent choose among ``n`` equally spaced values of a continuous action, both bounds included.

    Actions of several numbers become all ``n ** dimensions`` combinations, the last number changing fastest.

    ```python
    >>> env = DiscreteAction(gym.make("Pendulum-v1"), 5)
    >>> env.action_space, [float(env.action(action)[0]) for action in range(5)]
    (Discrete(5), [-2.0, -1.0, 0.0, 1.0, 2.0])

    ```

    :param env: with a finite ``Box`` action space
    :param n: values for each number of the action, at least 2; no more than 256 combinations
    """

    def __init__(self, env: gym.Env[Any, Any], n: int) -> None:
        box = finite_box(env, "DiscreteAction", "spaces actions evenly between")
        n = check_whole("n", n, 2, MAX_ACTIONS, "5 gives the bounds, the middle, and one in between on either side")
        dimensions = int(np.prod(box.shape))
        if n**dimensions > MAX_ACTIONS:
            raise ValueError(
                f"n={n} values for each of {dimensions} numbers are {n**dimensions} actions, more than {MAX_ACTIONS}: "
                "take fewer, or decide on the numbers one after the other, with bdpi.envs.wrappers.BinaryActionSearch."
            )
        RecordConstructorArgs.__init__(self, n=n)
        gym.ActionWrapper.__init__(self, env)
        positions = itertools.product(np.linspace(-1, 1, n), repeat=dimensions)
        self._actions = [box_action(box, np.array(position)) for position in positions]
        self.action_space = spaces.Discrete(len(self._actions))

    def action(self, action: Any) -> NDArray[Any]:
        """The environment's action that has this number."""
        if not self.action_space.contains(action):
            raise InvalidAction(f"{action!r} is no action of {self.action_space}.")
        return self._actions[int(action)].copy()
