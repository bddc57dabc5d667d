"""Hindsight Experience Replay (Andrychowicz et al., 2017): in some transitions of a batch, what was reached becomes the
goal that was meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY

from bdpi.agents.buffers import DictTransitionBuffer
from bdpi.agents.checks import check_integer
from bdpi.learner import Transitions
from bdpi.learner.interface import IntArray, Observations

_KEYS = {"achieved_goal", "desired_goal"}
_KNOWN = {"n_sampled_goal": 4, "goal_selection_strategy": "future", "copy_info_dict": False}


def hindsight_settings(given: dict[str, Any], space: spaces.Space[Any]) -> dict[str, Any]:
    """Arguments of SB3's ``HerReplayBuffer`` as those of :class:`HindsightBuffer`.

    :raises ValueError: for those that are not known, and for environments without goals
    """
    if not isinstance(space, spaces.Dict) or not space.spaces.keys() >= _KEYS:
        raise ValueError(f"HerReplayBuffer is for observations with the keys {', '.join(sorted(_KEYS))}, got {space}")
    if strange := given.keys() - _KNOWN.keys() - {"handle_timeout_termination"}:
        raise ValueError(f"HerReplayBuffer takes {', '.join(_KNOWN)} here, not {', '.join(sorted(strange))}")
    used = {**_KNOWN, **given}
    if used["copy_info_dict"]:
        raise ValueError("copy_info_dict=True is not supported: infos are not kept, and compute_reward gets empty ones")
    check_integer("n_sampled_goal", used["n_sampled_goal"], 0)
    strategy = used["goal_selection_strategy"]
    name = strategy.lower() if isinstance(strategy, str) else strategy.name.lower()
    if name not in KEY_TO_GOAL_STRATEGY:
        raise ValueError(f"goal_selection_strategy must be one of {', '.join(KEY_TO_GOAL_STRATEGY)}, got {strategy!r}")
    return {"n_sampled_goal": int(used["n_sampled_goal"]), "goal_selection_strategy": name}


class HindsightBuffer(DictTransitionBuffer):
    """The replay buffer of observations with goals.

    :param n_sampled_goal: transitions with another goal, for each one with its own
    :param goal_selection_strategy: the other goal was reached at the end of the episode ("final"), at any of its steps
        ("episode"), or at one of those still to come ("future")
    """

    looks_ahead = True

    def __init__(
        self, *args: Any, n_sampled_goal: int = 4, goal_selection_strategy: str = "future", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.n_sampled_goal, self.goal_selection_strategy = n_sampled_goal, goal_selection_strategy

    def batches(
        self, rng: np.random.Generator, size: tuple[int, int], share: float, env: VecEnv | None = None
    ) -> tuple[Transitions, IntArray]:
        """Some transitions of each batch have another goal, and the reward that the environment gives for it."""
        drawn = self.draw(rng, size, share)
        taken = self._several_steps(self.transitions(), drawn.reshape(-1))
        n_changed = int(size[1] * self.n_sampled_goal / (self.n_sampled_goal + 1))
        changed = np.arange(drawn.size).reshape(size)[:, size[1] - n_changed :].reshape(-1)
        if len(changed):
            self._change_goals(taken, changed, drawn.reshape(-1)[changed], rng, env)
        return taken, np.arange(drawn.size).reshape(size)

    def _change_goals(
        self, taken: Transitions, changed: IntArray, drawn: IntArray, rng: np.random.Generator, env: VecEnv | None
    ) -> None:
        """
        :param taken: a copy of transitions
        :param changed: which of them get another goal
        :param drawn: where these are in the memory
        """
        if env is None:
            raise ValueError("hindsight needs an environment that computes rewards: give load env=, or set_env(env)")
        seen, following, held = taken.observations, taken.next_observations, self.transitions().next_observations
        assert isinstance(seen, dict)
        assert isinstance(following, dict)
        assert isinstance(held, dict)
        goals = held["achieved_goal"][self._others(drawn, rng)]
        for part in (seen, following):
            part["desired_goal"][changed] = goals
        reached = following["achieved_goal"][changed]
        infos: list[dict[str, Any]] = [{} for _ in changed]
        (rewards,) = env.env_method("compute_reward", reached, goals, infos, indices=[0])
        taken.rewards[changed] = np.asarray(rewards, np.float32).reshape(-1)

    # Networks see as goals what was reached, too: their scales are for both.

    def newest_observations(self) -> Observations:
        """That the last step of each environment led to, and again with what was reached as the goal."""
        return _with_reached(super().newest_observations())

    def next_observations_held(self) -> Observations:
        """The next observations of all transitions held, and again with what was reached as the goal."""
        return _with_reached(super().next_observations_held())

    def next_observations_in_pieces(self) -> Iterator[Observations]:
        """The same, some at a time."""
        return map(_with_reached, super().next_observations_in_pieces())

    def _others(self, drawn: IntArray, rng: np.random.Generator) -> IntArray:
        """Where the other goals were reached, in the episodes of these transitions."""
        rows, age = len(self.actions), np.arange(self.size())
        order = np.roll(age, -self.pos if self.full else 0)  # oldest first
        order = np.concatenate([order, np.arange(self.buffer_size, rows)])
        assert self.begins is not None
        when = np.zeros(rows, dtype=np.int64)
        when[order] = np.arange(len(order))
        begins = self.begins[order]
        begins[0] = True
        times = np.broadcast_to(np.arange(len(order))[:, None], begins.shape)
        first = np.maximum.accumulate(np.where(begins, times, 0), axis=0)
        ends = np.concatenate([begins[1:], np.ones((1, self.n_envs), bool)])
        last = np.minimum.accumulate(np.where(ends, times, len(order))[::-1], axis=0)[::-1]
        env, now = drawn % self.n_envs, when[drawn // self.n_envs]
        low = {"final": last[now, env], "future": now, "episode": first[now, env]}[self.goal_selection_strategy]
        other: IntArray = order[rng.integers(low, last[now, env] + 1)] * self.n_envs + env
        return other


def _with_reached(seen: Observations) -> Observations:
    assert isinstance(seen, dict)
    reached = {**seen, "desired_goal": seen["achieved_goal"]}
    return {key: np.concatenate([part, reached[key]]) for key, part in seen.items()}
