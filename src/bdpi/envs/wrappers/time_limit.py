"""Time limits that are taken for ends."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class EndAtTimeLimit(gym.Wrapper[Any, Any, Any, Any]):
    """An episode that runs out of time has ended: agents expect nothing of what would have followed.

    That is what the code of the paper does. As a rule, it is wrong: whether time is over cannot be seen in the
    observation, so that the same state is worth nothing and something.

    ```python
    >>> env = EndAtTimeLimit(gym.make("CartPole-v1", max_episode_steps=1))
    >>> _ = env.reset(seed=0)
    >>> env.step(0)[2:4]
    (True, False)

    ```
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step; one that is the last one terminates."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info
