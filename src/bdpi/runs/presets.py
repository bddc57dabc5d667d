"""The environments of the package and the paper: what each is, and what an agent changes by itself on it.

``bdpi envs`` shows it. What a run changes in any environment, by what it finds there, is in :data:`ALWAYS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gymnasium.envs.registration import find_highest_version


@dataclass(frozen=True)
class Preset:
    """What is special about one environment.

    :param what: the task, in a few words.
    :param policy_kwargs: of the agent's networks, unless the user gives others.
    :param changes: what the run does by itself, in words; empty: nothing.
    :param install: what to install for it; empty: it comes with the package.
    """

    what: str
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    changes: str = ""
    install: str = ""


PRESETS: dict[str, Preset] = {
    "Table-v0": Preset("a robot on a table docks within 200 steps, as in the paper's text"),
    "TableLong-v0": Preset("the same within 2000 steps, as in the paper's figure"),
    "TableSafe-v0": Preset("the same within 2000 steps, with a supervisor that turns the robot away from the edge"),
    "Hallway-v0": Preset(
        "find the red box in a 3D room, from pixels",
        changes="policy CnnPolicy, fit_steps=1",
        install='pip install "bdpi[hallway]"',
    ),
    "FrozenLake8x8-v1": Preset("cross slippery ice without falling in", changes="states are one-hot"),
    "LunarLander-v3": Preset(
        "land a rocket between two flags",
        policy_kwargs={"net_arch": [256]},
        changes="net_arch=[256]",
        install='pip install "bdpi[box2d]"',
    ),
    "CartPole-v1": Preset("balance a pole on a cart"),
    "Pendulum-v1": Preset("swing up and balance, with a continuous torque", changes="Binary Action Search, 6 bits"),
    "PendulumTorques-v0": Preset("the same with five torques to choose from"),
    "PendulumIncrements-v0": Preset(
        "the same with a torque that is incremented and decremented, as in the paper's code"
    ),
    "MiniGridVector-Empty-v0": Preset(
        "cross an empty room of MiniGrid, seen as numbers", install='pip install "bdpi[minigrid]"'
    ),
    "MiniGridVector-DoorKey-v0": Preset(
        "take the key, open the door, reach the goal of MiniGrid, seen as numbers",
        install='pip install "bdpi[minigrid]"',
    ),
}

ALWAYS = (
    "Any other Gymnasium id works too: CliffWalking-v1, or my_module:MyEnv-v0. Everywhere:",
    "  continuous actions (a finite Box) become binary decisions, by Binary Action Search;",
    "  pictures get CnnPolicy and fit_steps=1, Dict observations MultiInputPolicy (and fit_steps=1 with pictures),",
    "  state numbers are one-hot.",
)


def preset_of(environment: str) -> Preset:
    """The preset of an id; one that changes nothing where there is none.

    :param environment: as Gymnasium takes it: ``module:Id-v0`` and an id without version, too
    """
    name = environment.rpartition(":")[2]
    if name not in PRESETS and (newest := find_highest_version(None, name)) is not None:
        name = f"{name}-v{newest}"
    return PRESETS.get(name, Preset(""))
