"""Bootstrapped Dual Policy Iteration: sample-efficient reinforcement learning for discrete actions.

>>> import bdpi
>>> agent = bdpi.BDPI("MlpPolicy", "FrozenLake8x8-v1", seed=1)
>>> agent.learn(20_000)  # doctest: +SKIP

Importing the package also registers its environments with Gymnasium: ``Table-v0``, ``TableLong-v0``, ``TableSafe-v0``,
``Hallway-v0``, ``PendulumTorques-v0``, ``PendulumIncrements-v0``, ``MiniGridVector-Empty-v0``,
``MiniGridVector-DoorKey-v0``.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from bdpi import envs

if TYPE_CHECKING:
    from bdpi.agents import (
        ABCDQN,
        BDPI,
        CODE,
        PAPER,
        ActorMimic,
        BootstrappedDQN,
        Finding,
        HealthWarning,
        Population,
        TabularBDPI,
        configure_logger,
        evaluate_policy,
    )

__all__ = [
    "ABCDQN",
    "BDPI",
    "CODE",
    "PAPER",
    "ActorMimic",
    "BootstrappedDQN",
    "Finding",
    "HealthWarning",
    "Population",
    "TabularBDPI",
    "__version__",
    "configure_logger",
    "evaluate_policy",
]

try:
    __version__ = version("bdpi")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

envs.register()


def __getattr__(name: str) -> Any:
    # Agents bring in PyTorch, which takes seconds to import: only when one is used.
    if name in __all__:
        return getattr(import_module("bdpi.agents"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
