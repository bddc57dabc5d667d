"""Which actions environments allow: by ``info["action_mask"]``, or by ``action_masks()``, as in sb3-contrib."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from bdpi.agents.checks import masks_of
from bdpi.learner.interface import BoolArray

METHOD = "action_masks"


def reset_infos(env: VecEnv) -> list[dict[str, Any]]:
    """What the last resets said; nothing, where a ``VecEnv`` does not keep it."""
    return getattr(env.unwrapped, "reset_infos", None) or [{} for _ in range(env.num_envs)]


class MaskSource:
    """Asks environments for their masks.

    :param env: the environments
    :param space: of their actions
    """

    def __init__(self, env: VecEnv, space: spaces.Space[Any]) -> None:
        self._space = space
        #: whose method is asked; None: infos say it, or nothing does
        self.asked = env if _has_method(env) else None

    def __call__(self, infos: list[dict[str, Any]], step: int) -> BoolArray | None:
        """Which actions are allowed in the states that the environments are in, (n_envs, n_actions); None: all.

        :param infos: of the step, or of the reset, that led there
        :param step: its number, for messages
        """
        masks = masks_of(infos, self._space, step)
        if masks is None and self.asked is not None:
            given = [{"action_mask": np.asarray(mask)} for mask in self.asked.env_method(METHOD)]
            masks = masks_of(given, self._space, step, source=f"{METHOD}()")
        return masks


def _has_method(env: VecEnv) -> bool:
    with contextlib.suppress(Exception):  # not every VecEnv can be asked
        return bool(env.has_attr(METHOD))
    return False
