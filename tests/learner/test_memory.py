"""The copy of the replay memory that a learner on a GPU keeps; here on the CPU, where it can be looked at."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from bdpi.agents.buffers import TransitionBuffer
from bdpi.learner import Transitions
from bdpi.learner.memory import DeviceMemory


def fill(buffer: TransitionBuffer, rng: np.random.Generator, steps: int, masks: Any = None) -> None:
    for _ in range(steps):
        shape = (buffer.n_envs, 3)
        observations = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)
        numbers = rng.integers(0, 4, (buffer.n_envs, 1)), rng.normal(size=buffer.n_envs)
        buffer.add(*observations, *numbers, np.zeros(buffer.n_envs), [{}] * buffer.n_envs, masks)


def new_buffer(n_envs: int) -> TransitionBuffer:
    box = spaces.Box(-1, 1, (3,), np.float32)
    return TransitionBuffer(10 * n_envs, box, spaces.Discrete(4), "cpu", n_envs, handle_timeout_termination=False)


def check_same(memory: DeviceMemory, transitions: Transitions) -> None:
    batches = np.arange(len(transitions.actions)).reshape(1, -1)
    tensors, at = memory.fetch(transitions, batches)
    for name in ("observations", "actions", "rewards", "discounts", "next_observations"):
        copied = getattr(tensors, name)
        assert copied.data_ptr() != torch.as_tensor(getattr(transitions, name)).data_ptr()
        np.testing.assert_array_equal(copied[torch.as_tensor(at)][0], getattr(transitions, name))
    if transitions.masks is not None:
        np.testing.assert_array_equal(tensors.next_masks[torch.as_tensor(at)][0], transitions.next_masks)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_ring_is_followed(n_envs):
    rng = np.random.default_rng(0)
    buffer, memory = new_buffer(n_envs), DeviceMemory(torch.device("cpu"), mirror=True)
    for steps in (1, 3, 0, 5, 1, 1, 4, 9, 10, 23, 0, 2):
        fill(buffer, rng, steps)
        check_same(memory, buffer.transitions())
    assert memory.generation == 1


def test_only_what_is_new_travels():
    rng = np.random.default_rng(0)
    buffer, memory = new_buffer(1), DeviceMemory(torch.device("cpu"), mirror=True)
    fill(buffer, rng, 6)
    check_same(memory, buffer.transitions())
    old = buffer.rewards[2].copy()
    buffer.rewards[2] = 99  # nobody does so; it shows that the row is not read again
    fill(buffer, rng, 6)
    tensors, _ = memory.fetch(buffer.transitions(), np.zeros((1, 1), int))
    assert tensors.rewards[2] == old
    np.testing.assert_array_equal(np.delete(tensors.rewards, 2), np.delete(buffer.rewards[:, 0], 2))


def test_loaded_contents_and_the_first_mask_are_noticed(tmp_path):
    rng = np.random.default_rng(0)
    buffer, memory = new_buffer(2), DeviceMemory(torch.device("cpu"), mirror=True)
    fill(buffer, rng, 4)
    check_same(memory, buffer.transitions())
    other = new_buffer(2)
    fill(other, rng, 14)
    other.save_npz(tmp_path / "other.npz")
    buffer.load_npz(tmp_path / "other.npz")
    check_same(memory, buffer.transitions())
    fill(buffer, rng, 1, (np.ones((2, 4), bool), np.eye(4, dtype=bool)[:2]))
    check_same(memory, buffer.transitions())
    assert memory.generation == 2


def test_without_a_ring_the_batches_travel():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (50, 2, 3), dtype=np.uint8)
    actions = rng.integers(0, 3, 50)
    transitions = Transitions({"a": images}, actions, np.zeros(50, np.float32), np.ones(50, np.float32), {"a": images})
    memory = DeviceMemory(torch.device("cpu"), mirror=True)
    addresses = set()
    for _ in range(3):
        batches = rng.integers(0, 50, (2, 4))
        tensors, at = memory.fetch(transitions, batches)
        assert tensors.observations["a"].shape == (8, 2, 3)
        assert tensors.observations["a"].dtype == torch.uint8
        np.testing.assert_array_equal(tensors.observations["a"][torch.as_tensor(at)], images[batches])
        np.testing.assert_array_equal(tensors.actions[torch.as_tensor(at)], actions[batches])
        addresses.add(tensors.rewards.data_ptr())
    assert len(addresses) == 1
