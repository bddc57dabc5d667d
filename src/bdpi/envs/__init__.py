"""Environments of the BDPI paper, as plain Gymnasium environments."""

from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import WrapperSpec

from bdpi.envs.control_loop import ControlLoop
from bdpi.envs.remote_env import Remote
from bdpi.envs.table import Table

if TYPE_CHECKING:
    from bdpi.envs.hallway import Hallway as Hallway

__all__ = ["ControlLoop", "Remote", "Table", "register"]


def register() -> None:
    """Make ``gymnasium.make`` know the environments of this package.

    Calling it again changes nothing, so that both ``import bdpi`` and a ``gymnasium.envs`` entry point may do it.
    (The entry point has to be named ``__root__``: under any other name, Gymnasium puts that name before the ids.)
    """
    table, supervised = "bdpi.envs.table:Table", "bdpi.envs.wrappers.table_backup:supervised_table"
    for env_id, entry_point, steps in (
        ("Table-v0", table, 200),
        ("TableLong-v0", table, 2000),
        ("TableSafe-v0", supervised, 2000),
    ):
        # Gymnasium warns about an id that is registered twice.
        if env_id not in gym.registry:
            # nine episodes in ten dock, the tenth runs out of time
            gym.register(env_id, entry_point=entry_point, max_episode_steps=steps, reward_threshold=90.0)
    if "Hallway-v0" not in gym.registry:  # the paper's BDPI ends at a return of 0.93
        gym.register("Hallway-v0", entry_point="bdpi.envs.hallway:Hallway", max_episode_steps=500, reward_threshold=0.9)
    for env_id, wrapper, module, arguments in (
        ("PendulumTorques-v0", "DiscreteAction", "discrete_action", {"n": 5}),
        ("PendulumIncrements-v0", "IncrementalAction", "incremental", {}),
    ):
        if env_id not in gym.registry:
            spec = WrapperSpec(wrapper, f"bdpi.envs.wrappers.{module}:{wrapper}", arguments)
            pendulum = gym.spec("Pendulum-v1")
            gym.register(
                env_id,
                entry_point=pendulum.entry_point,
                max_episode_steps=pendulum.max_episode_steps,
                additional_wrappers=(spec,),  # around the time limit, which counts real steps
            )
    for env_id, function, steps in (
        ("MiniGridVector-Empty-v0", "empty", 256),
        ("MiniGridVector-DoorKey-v0", "door_key", 250),
    ):
        if env_id not in gym.registry:  # the reward of reaching the goal shrinks from 1 to 0.1 with the steps
            entry_point = f"bdpi.envs.minigrid_vector:{function}"
            gym.register(env_id, entry_point=entry_point, max_episode_steps=steps, reward_threshold=0.9)


def __getattr__(name: str) -> Any:
    # Hallway brings in MiniWorld, which is an extra and looks for a display: only when it is used. For the
    # same reason it is not in __all__.
    if name == "Hallway":
        from bdpi.envs.hallway import Hallway

        return Hallway
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
