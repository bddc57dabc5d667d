"""Transitions from elsewhere: Minari datasets, journals, SB3's replay buffers, trajectories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from bdpi.agents.journal import Journal, Step


def steps_of(dataset: Any) -> Iterator[Step]:
    """The transitions of a dataset.

    :param dataset: a :class:`~bdpi.agents.journal.Journal` or the path of one, a Minari dataset, a replay buffer of
        SB3, or anything that gives :class:`~bdpi.agents.journal.Step` or tuples ``(observation, action, reward,
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
            yield item if isinstance(item, Step) else _of_tuple(item, number)
    else:
        raise ValueError(
            f"demonstrations must be a journal, a Minari dataset, a replay buffer, or transitions; got {dataset!r}"
        )


def _of_tuple(item: Any, number: int) -> Step:
    try:
        observation, action, reward, next_observation, terminated, truncated = item
    except (TypeError, ValueError):
        raise ValueError(
            f"transition {number} must be (observation, action, reward, next_observation, terminated, truncated), "
            f"got {str(item)[:200]}"
        ) from None
    return Step(observation, action, reward, next_observation, bool(terminated), bool(truncated))


def _of_episode(episode: Any) -> Iterator[Step]:
    """Minari's: one observation more than actions."""
    for t in range(len(episode.actions)):
        yield Step(
            _at(episode.observations, t),
            episode.actions[t],
            float(episode.rewards[t]),
            _at(episode.observations, t + 1),
            bool(episode.terminations[t]),
            bool(episode.truncations[t]),
        )


def _of_buffer(buffer: ReplayBuffer) -> Iterator[Step]:
    """Oldest first, where the buffer knows; SB3's end episodes at a time limit only if told to."""
    # Ours count actions from zero.
    offset = int(getattr(buffer.action_space, "start", 0)) if hasattr(buffer, "discounts") else 0
    for row in range(buffer.size()):
        for env in range(buffer.n_envs):
            done, timeout = bool(buffer.dones[row, env]), bool(buffer.timeouts[row, env])
            yield Step(
                _at(buffer.observations, (row, env)),
                int(np.asarray(buffer.actions[row, env]).reshape(())) + offset,
                float(buffer.rewards[row, env]),
                _next(buffer, row, env),
                terminated=done and not timeout,
                truncated=timeout,
                environment=env,
            )


def _next(buffer: ReplayBuffer, row: int, env: int) -> Any:
    if buffer.optimize_memory_usage:
        return _at(buffer.observations, ((row + 1) % buffer.buffer_size, env))
    return _at(buffer.next_observations, (row, env))


def _at(values: Any, index: Any) -> Any:
    return {key: part[index] for key, part in values.items()} if isinstance(values, dict) else values[index]
