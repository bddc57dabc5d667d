"""``VecNormalize`` in saved agents: its statistics are part of what an agent has learned."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from bdpi.agents.encoding import Arrays
from bdpi.agents.journal import Transition

_SETTINGS = {
    **dict.fromkeys(("training", "norm_obs", "norm_reward"), bool),
    **dict.fromkeys(("clip_obs", "clip_reward", "gamma", "epsilon"), int | float),
    "norm_obs_keys": list | None,
}


def describe_normalizer(normalizer: VecNormalize) -> tuple[dict[str, Any], Arrays]:
    """Settings as JSON, and statistics."""
    arrays: Arrays = {"returns": np.asarray(normalizer.returns, np.float64)}
    for name, statistics in _statistics(normalizer).items():
        arrays[f"{name}.mean"] = np.asarray(statistics.mean, np.float64)
        arrays[f"{name}.var"] = np.asarray(statistics.var, np.float64)
        arrays[f"{name}.count"] = np.asarray(statistics.count, np.float64)
    return {name: getattr(normalizer, name) for name in _SETTINGS}, arrays


def restore_normalizer(env: VecEnv, settings: dict[str, Any], arrays: Arrays) -> VecEnv:
    """The environment with the normaliser of a saved agent.

    An environment that has one gets its statistics and what has to fit them. Whether they are to change (``training``),
    and whether rewards are normalised, stays as it is there, for evaluations.

    :raises ValueError: when they do not fit
    """
    if not isinstance(settings, dict) or settings.keys() != set(_SETTINGS):
        raise ValueError("the file is damaged: the settings of VecNormalize make no sense")
    if wrong := next((name for name, kind in _SETTINGS.items() if not isinstance(settings[name], kind)), None):
        raise ValueError(f"the file is damaged: {wrong} of VecNormalize is {settings[wrong]!r:.80}")
    normalizer = unwrap_vec_normalize(env)
    if normalizer is None:
        env = normalizer = VecNormalize(env, **settings)
    else:
        for name in _SETTINGS.keys() - {"training", "norm_reward"}:
            setattr(normalizer, name, settings[name])
    for name, statistics in _statistics(normalizer).items():
        for part in ("mean", "var", "count"):
            found = arrays.get(f"{name}.{part}", np.zeros(0))
            if found.shape != np.shape(getattr(statistics, part)) or not np.isfinite(found).all():
                raise ValueError(f"the file does not fit: VecNormalize's {name}.{part} has shape {found.shape}")
            setattr(statistics, part, found.copy() if part != "count" else float(found))
    if arrays["returns"].shape == normalizer.returns.shape:  # else there are more or fewer environments now
        normalizer.returns = arrays["returns"].copy()
    return env


def update_normalizer(normalizer: VecNormalize, step: Transition) -> None:
    """Let ``VecNormalize`` see a transition that did not come through it, as if it had."""
    if not normalizer.training:
        return
    if normalizer.norm_obs:
        if isinstance(normalizer.obs_rms, dict):
            for key, statistics in normalizer.obs_rms.items():
                statistics.update(np.asarray(step.next_observation[key])[None])
        else:
            normalizer.obs_rms.update(np.asarray(step.next_observation)[None])
    where = step.environment % normalizer.num_envs  # there may have been more
    normalizer.returns[where] = normalizer.returns[where] * normalizer.gamma + step.reward
    normalizer.ret_rms.update(normalizer.returns[where : where + 1])
    if step.terminated or step.truncated:
        normalizer.returns[where] = 0


def is_fresh(normalizer: VecNormalize) -> bool:
    """Whether it has seen nothing yet, not even the first observations."""
    return all(statistics.count < 1 for statistics in _statistics(normalizer).values())


def _statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    found = {"ret_rms": normalizer.ret_rms}
    if normalizer.norm_obs:
        of_observations = normalizer.obs_rms
        if isinstance(of_observations, dict):
            found |= {f"obs_rms.{key}": statistics for key, statistics in of_observations.items()}
        else:
            found["obs_rms"] = of_observations
    return found
