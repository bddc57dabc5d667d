"""What has to be settled before ``gymnasium.make`` of an id."""

from __future__ import annotations

import importlib.util

import gymnasium as gym
from gymnasium.error import DependencyNotInstalled

from bdpi.envs.drawing import prepare_drawing


def prepare_environment(environment: str) -> None:
    """Check that Box2D is there for an environment that needs it, and prepare drawing for one that may need OpenGL.

    Environments of Gymnasium draw without OpenGL, and ours take care themselves.

    :param environment: as Gymnasium takes it
    :raises DependencyNotInstalled: without Box2D, naming the extra; Gymnasium's own error names a compiler, too
    """
    spec = gym.registry.get(environment)
    entry_point = "" if spec is None else str(spec.entry_point)
    if entry_point.startswith("gymnasium.envs.box2d") and importlib.util.find_spec("Box2D") is None:
        raise DependencyNotInstalled(f'{environment} needs Box2D: install it with `pip install "bdpi[box2d]"`.')
    if not entry_point.startswith(("gymnasium.", "bdpi.")):
        prepare_drawing()
