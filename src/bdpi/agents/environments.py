"""Environments by their ids."""

from __future__ import annotations

from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.type_aliases import GymEnv

from bdpi.envs.preparing import prepare_environment


def make_if_id(env: GymEnv | str, verbose: int = 0) -> GymEnv:
    """The environment, made as Stable-Baselines3 does where only its id is given."""
    if isinstance(env, str):
        prepare_environment(env)
    return maybe_make_env(env, verbose)
