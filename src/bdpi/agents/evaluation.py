"""Evaluate an agent, with the action masks that its environment reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.type_aliases import GymEnv

from bdpi.agents.checks import check_integer
from bdpi.agents.environments import make_if_id
from bdpi.agents.masks import MaskSource, reset_infos

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble


def evaluate_policy(
    model: Ensemble,
    env: GymEnv | str,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    return_episode_rewards: bool = False,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Play episodes, and say what they returned: mean and standard deviation.

    Stable-Baselines3's function of that name knows no action masks; of its arguments, this one has those listed here.

    :param model: an agent of this package
    :param env: an id, an environment or a ``VecEnv``
    :param n_eval_episodes: how many, at least 1
    :param deterministic: the most probable actions instead of drawn ones
    :param return_episode_rewards: return each episode's return and length, not mean and standard deviation of returns
    """
    check_integer("n_eval_episodes", n_eval_episodes, 1)
    environments = model._wrap_env(make_if_id(env), verbose=0)
    observations: Any = environments.reset()
    infos, ask = reset_infos(environments), MaskSource(environments, model.action_space)
    n = environments.num_envs
    # Each environment plays its share, else quick episodes would count more than slow ones.
    shares = [(n_eval_episodes + index) // n for index in range(n)]
    returns: list[float] = []
    lengths: list[int] = []
    total, length, played = np.zeros(n), np.zeros(n, dtype=int), np.zeros(n, dtype=int)
    state, begins = None, np.ones(n, dtype=bool)
    while any(played < shares):
        masks = ask(infos, int(length.sum()))
        actions, state = model.predict(observations, state, begins, deterministic, masks)
        observations, rewards, begins, infos = environments.step(actions)
        total += rewards
        length += 1
        infos = list(infos)
        for index in np.flatnonzero(begins):
            if played[index] < shares[index]:
                episode = infos[index].get("episode")  # Monitor's, which knows of real steps and real rewards
                returns.append(float(total[index] if episode is None else episode["r"]))
                lengths.append(int(length[index] if episode is None else episode["l"]))
                played[index] += 1
            total[index], length[index] = 0, 0
            infos[index] = reset_infos(environments)[index]
    if return_episode_rewards:
        return returns, lengths
    return float(np.mean(returns)), float(np.std(returns))
