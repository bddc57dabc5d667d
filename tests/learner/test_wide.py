"""The native learner on many inputs, of which most say nothing: flat pictures of MiniGrid and MinAtar."""

import copy
import time
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from bdpi import BDPI
from bdpi.learner import Hyperparameters, Transitions, native
from bdpi.learner.native import NativeLearner
from bdpi.learner.rules import Conservative
from bdpi.learner.scales import Scales, scale_to_range
from worlds import assert_same_state, make_learner, random_batches, random_state, random_transitions

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed")

KINDS = {  # share of inputs that change at all, values that they have, how often they have another than the usual one
    "one in ten changes, few values": (0.1, 6, 0.1),
    "bool, mostly false": (0.7, 2, 0.05),
    "bool, mostly true": (0.7, 2, 0.95),
    "whole numbers of all kinds": (0.9, 9, 0.9),
    "nothing changes": (0.0, 2, 0.5),
}


def grid_transitions(kind: str, n_inputs: int, n_actions: int, n: int = 500, seed: int = 0) -> Transitions:
    """Of about a hundred distinct observations."""
    changing, values, often = KINDS[kind]
    rng = np.random.default_rng(seed)
    usual = rng.integers(0, values, n_inputs)
    distinct = np.where(rng.random((100, n_inputs)) < often, rng.integers(0, values, (100, n_inputs)), usual)
    distinct[:, rng.random(n_inputs) >= changing] = 0
    seen = distinct[rng.integers(0, 100, (2, n))].astype(bool if values == 2 else np.uint8)
    base = random_transitions(1, n_actions, False, n=n, seed=seed, masked=True)
    return replace(base, observations=seen[0], next_observations=seen[1])


def floats(transitions: Transitions) -> Transitions:
    seen, following = transitions.observations, transitions.next_observations
    return replace(transitions, observations=seen.astype(np.float32), next_observations=following.astype(np.float32))


@pytest.mark.parametrize("instruction_set", native.info()["supported"])
@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_many_inputs_are_learned_from_as_the_reference_does(kind, is_scaled, instruction_set):
    """Other batches of other transitions in each epoch: inputs that have moments and are zero now move on."""
    actor_sizes, critic_sizes = [300, 20, 4], [300, 40, 9, 4]
    state = random_state(actor_sizes, critic_sizes, 3, priors=True)
    networks = state, actor_sizes, critic_sizes, "tanh", False, 0.5
    reference = make_learner("reference", *networks)
    fast = make_learner("native", *networks, batch_size=90, instruction_set=instruction_set)
    hyper = Hyperparameters(critic_iterations=2, fit_steps=4, actor_rule=Conservative(0.2))
    for epoch in range(3):
        stored = grid_transitions(kind, 300, 4, seed=epoch)
        seen = floats(stored)
        if is_scaled:
            seen.scales = stored.scales = scale_to_range(Scales.none(300), seen.observations, is_first=True)
        batches, critics = random_batches(3, 2, 90, seed=epoch)
        expected = reference.epoch(seen, batches, critics, hyper)
        measured = fast.epoch(stored, batches, critics, hyper)
        assert_same_state(reference, fast)
        np.testing.assert_allclose(list(vars(measured).values()), list(vars(expected).values()), rtol=1e-3, atol=1e-6)


def test_bytes_are_the_same_as_floats_to_the_last_bit():
    sizes = [200, 32, 4]
    stored, state = grid_transitions("one in ten changes, few values", 200, 4), random_state(sizes, sizes, 2)
    learners = [NativeLearner(sizes, sizes, copy.deepcopy(state)) for _ in range(2)]
    for learner, transitions in zip(learners, (stored, floats(stored)), strict=True):
        learner.epoch(transitions, *random_batches(2, 2, 256), Hyperparameters())
    assert_same_state(*learners, tolerance=0)


def test_inputs_that_never_change_cost_next_to_nothing():
    """3,000 inputs of which 300 change, and rows that are equal: 15 to 50 times faster than without looking."""
    sizes, hyper = [3000, 32, 4], Hyperparameters(fit_steps=20)

    def seconds(transitions: Transitions) -> float:
        learner = NativeLearner(sizes, sizes, random_state(sizes, sizes, 1), n_threads=1)
        started = time.thread_time()
        learner.epoch(transitions, *random_batches(1, 1, 256), hyper)
        return time.thread_time() - started

    few = grid_transitions("one in ten changes, few values", 3000, 4)
    assert seconds(few) < 0.25 * seconds(random_transitions(3000, 4, False))


class Grid(gym.Env):
    """A dot that walks along a line of 100 places, seen as bool."""

    observation_space = spaces.Box(0, 1, (10, 10), bool)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 50
        return self._seen(), {}

    def step(self, action):
        self.place += 2 * int(action) - 1
        return self._seen(), float(action), not 45 < self.place < 55, False, {}

    def _seen(self):
        return (np.arange(100) == self.place).reshape(10, 10)


def test_agents_learn_from_bool_as_it_is_stored():
    agent = BDPI("MlpPolicy", Grid(), seed=0, device="cpu", n_critics=2, fit_steps=5, batch_size=32).learn(150)
    batches = np.arange(64).reshape(2, 32)
    transitions, _ = agent.agent_learner.prepare(agent.replay_buffer.transitions(), batches, None)
    assert transitions.observations.dtype == bool
    assert np.shares_memory(transitions.observations, agent.replay_buffer.observations)
    assert agent.predict(Grid().reset()[0], deterministic=True)[0] == 1
