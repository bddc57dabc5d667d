"""Environments by their ids, and what is put around them."""

from __future__ import annotations

import gymnasium as gym
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.env_util import is_wrapped, unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv

from bdpi.envs.preparing import prepare_environment
from bdpi.envs.wrappers.checked import Checked


def make_if_id(env: GymEnv | str, verbose: int = 0) -> GymEnv:
    """The environment, made as Stable-Baselines3 does where only its id is given."""
    if isinstance(env, str):
        prepare_environment(env)
    return maybe_make_env(env, verbose)


def checked(env: GymEnv) -> GymEnv:
    """A single environment with a wrapper that says which step was wrong, and why."""
    if not isinstance(env, gym.Env) or is_wrapped(env, Checked):
        return env
    monitor = unwrap_wrapper(env, Monitor)
    if monitor is None:
        return Checked(env)
    monitor.env = Checked(monitor.env)  # inside, where SB3 would have put the Monitor
    return env
