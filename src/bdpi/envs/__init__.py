"""Environments of the BDPI paper, as plain Gymnasium environments."""

import gymnasium as gym

from bdpi.envs.table import Table

__all__ = ["Table", "register"]


def register() -> None:
    """Make ``gymnasium.make`` know the environments of this package.

    Calling it again changes nothing, so that both ``import bdpi`` and a ``gymnasium.envs`` entry point may do it.
    (The entry point has to be named ``__root__``: under any other name, Gymnasium puts that name before the ids.)
    """
    for env_id, max_episode_steps in (("Table-v0", 200), ("TableLong-v0", 2000)):
        # Gymnasium warns about an id that is registered twice.
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point="bdpi.envs.table:Table",
                max_episode_steps=max_episode_steps,
                reward_threshold=90.0,  # nine episodes in ten dock, the tenth runs out of time
            )
