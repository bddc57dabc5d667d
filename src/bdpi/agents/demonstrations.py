"""Transitions from elsewhere: Minari datasets, journals, SB3's replay buffers, trajectories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from bdpi.agents.checks import check_truth
from bdpi.agents.journal import Journal, Transition


def transitions_of(dataset: Any) -> Iterator[Transition]:
    """The transitions of a dataset.

    :param dataset: a :class:`~bdpi.agents.journal.Journal` or the path of one, a Minari dataset, a replay buffer of
        SB3, or anything that gives :class:`~bdpi.agents.journal.Transition` or tuples ``(observation, action, reward,
        next_observation, terminated, truncated)``
    :raises ValueError: when it is none of these
    """
    if isinstance(dataset, str | os.PathLike):
        with Journal(dataset, read_only=True) as journal:
            yield from journal.steps()
    elif isinstance(dataset, Journal):
        yield from dataset.steps()
    elif hasattr(dataset, "iterate_episodes"):
        for episode in dataset.iterate_episodes():
            yield from _of_episode(episode)
    elif isinstance(dataset, ReplayBuffer):
        yield from _of_buffer(dataset)
    elif isinstance(dataset, Iterable):
        for number, item in enumerate(dataset):
            yield item if isinstance(item, Transition) else _of_tuple(item, number)
    else:
        raise ValueError(
            f"demonstrations must be a journal, a Minari dataset, a replay buffer, or transitions; got {dataset!r}"
        )


def _of_tuple(item: Any, number: int) -> Transition:
    try:
        observation, action, reward, next_observation, terminated, truncated = item
    except (TypeError, ValueError):
        raise ValueError(
            f"transition {number} must be (observation, action, reward, next_observation, terminated, truncated), "
            f"got {str(item)[:200]}"
        ) from None
    ends = check_truth("terminated", terminated), check_truth("truncated", truncated)
    return Transition(observation, action, reward, next_observation, *ends)


def _of_episode(episode: Any) -> Iterator[Transition]:
    """Minari's: one observation more than actions."""
    for t in range(len(episode.actions)):
        yield Transition(
            _at(episode.observations, t),
            episode.actions[t],
            float(episode.rewards[t]),
            _at(episode.observations, t + 1),
            bool(episode.terminations[t]),
            bool(episode.truncations[t]),
        )


def _of_buffer(buffer: ReplayBuffer) -> Iterator[Transition]:
    """Oldest first; SB3's end episodes at a time limit only if told to."""
    oldest = buffer.pos if buffer.full else 0
    # With optimize_memory_usage, the newest observation is where the oldest was, which SB3 does not sample either.
    first = 1 if buffer.full and buffer.optimize_memory_usage else 0
    for age in range(first, buffer.size()):
        row = (oldest + age) % buffer.buffer_size
        for env in range(buffer.n_envs):
            done, timeout = bool(buffer.dones[row, env]), bool(buffer.timeouts[row, env])
            yield Transition(
                _seen(buffer, _at(buffer.observations, (row, env))),
                _given(buffer, buffer.actions[row, env], buffer.action_space),
                float(buffer.rewards[row, env]),
                _seen(buffer, _next(buffer, row, env)),
                terminated=done and not timeout,
                truncated=timeout,
                environment=env,
            )


def _next(buffer: ReplayBuffer, row: int, env: int) -> Any:
    if buffer.optimize_memory_usage:
        return _at(buffer.observations, ((row + 1) % buffer.buffer_size, env))
    return _at(buffer.next_observations, (row, env))


def _seen(buffer: ReplayBuffer, observation: Any) -> Any:
    space = buffer.observation_space
    if isinstance(space, spaces.Dict):
        return {key: _given(buffer, observation[key], part) for key, part in space.spaces.items()}
    return _given(buffer, observation, space)


def _given(buffer: ReplayBuffer, value: Any, space: spaces.Space[Any]) -> Any:
    """What a buffer keeps, as the environment gave it: buffers have an axis more for numbers, and ours count from 0."""
    value = np.asarray(value).reshape(space.shape or ())
    is_ours = hasattr(buffer, "discounts")
    return value + space.start if is_ours and isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else value


def _at(values: Any, index: Any) -> Any:
    return {key: part[index] for key, part in values.items()} if isinstance(values, dict) else values[index]
