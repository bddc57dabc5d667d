"""Binary Action Search reaches every action, takes no time, and says what it does."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor

from bdpi import BDPI
from bdpi.envs.wrappers import BinaryActionSearch, DiscreteAction, IncrementalAction
from recorder import Recorder


def search(low: Any = -1.0, high: Any = 1.0, bits: int = 6, **box: Any) -> tuple[BinaryActionSearch, Recorder]:
    recorder = Recorder(spaces.Box(low, high, **box), length=10**9)
    return BinaryActionSearch(recorder, bits), recorder


def reached(env: BinaryActionSearch, recorder: Recorder, n_decisions: int) -> list[Any]:
    """What every sequence of decisions leads to, in the order of binary numbers."""
    env.reset()
    for decisions in itertools.product((0, 1), repeat=n_decisions):
        for decision in decisions:
            env.step(decision)
    return recorder.actions


FLOAT64 = float(np.finfo(np.float64).max)


# The actions


@pytest.mark.parametrize("bits", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        *((low, high, np.float32) for low, high in ((-1, 1), (0, 10), (-2, 0.5))),
        (-FLOAT64, FLOAT64, np.float64),
        *((np.iinfo(dtype).min, np.iinfo(dtype).max, dtype) for dtype in (np.int64, np.uint64, np.int8, np.uint8)),
    ],
)
def test_all_evenly_spaced_actions_between_the_bounds_are_reached(bits: int, low: Any, high: Any, dtype: type) -> None:
    env, recorder = search(low, high, bits, shape=(1,), dtype=dtype)
    actions = [action[0].item() for action in reached(env, recorder, bits)]
    assert (actions[0], actions[-1]) == (dtype(low), dtype(high))
    assert actions == sorted(set(actions))
    assert len(actions) == 2**bits
    if dtype is np.float32:
        np.testing.assert_allclose(actions, np.linspace(low, high, 2**bits), atol=1e-6)


def test_each_dimension_has_its_own_bounds_and_the_first_is_decided_first() -> None:
    env, recorder = search(np.array([0, 0]), np.array([3, 30]), bits=2, dtype=np.int64)
    expected = [[first, second] for first in (0, 1, 2, 3) for second in (0, 10, 20, 30)]
    assert np.array(reached(env, recorder, 4)).tolist() == expected


@pytest.mark.parametrize("shape", [(), (1,), (2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_have_the_shape_and_type_of_their_space(shape: tuple[int, ...], dtype: type) -> None:
    env, recorder = search(-1, 1, bits=2, shape=shape, dtype=dtype)
    env.reset()
    for _ in range(env.n_decisions):
        env.step(1)
    (action,) = recorder.actions  # the recorder has checked that the space contains it
    assert action.shape == shape
    assert action.dtype == dtype
    assert (action == 1).all()


# The observations


def test_the_observation_carries_the_action_built_so_far_and_the_step_size() -> None:
    env, _ = search(np.array([-1.0, 0.0]), np.array([1.0, 30.0]), bits=2, dtype=np.float64)
    observation, info = env.reset()
    assert info == {"first": True}
    seen = observation[:2]
    third = 1 / 3  # four actions: -1, -1/3, 1/3, 1
    expected = [
        # decision, position of both dimensions, step size of both dimensions
        (1, [2 * third, 0], [0, 1]),
        (0, [third, 0], [-1, 1]),
        (0, [third, -2 * third], [-1, 0]),
    ]
    np.testing.assert_array_equal(observation[2:], [0, 0, 1, 1])
    for decision, position, step_size in expected:
        observation, *_ = env.step(decision)
        np.testing.assert_array_equal(observation[:2], seen)  # the world stands still
        np.testing.assert_allclose(observation[2:], [*position, *step_size], atol=1e-6)
    observation, *_ = env.step(1)  # the last decision: the next action begins
    assert not np.array_equal(observation[:2], seen)
    np.testing.assert_array_equal(observation[2:], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-np.inf, np.inf, (3,), np.float64), 3),
        (spaces.Box(-0.1, 0.1, (2, 2), np.float64), 4),
        (spaces.Box(0, 255, (4,), np.uint8), 4),
        (spaces.Discrete(5, start=2), 5),
        (spaces.MultiBinary(3), 3),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (2,))}), 4),
    ],
)
def test_any_observation_that_can_be_flattened_becomes_float32(space: spaces.Space[Any], size: int) -> None:
    env = BinaryActionSearch(Recorder(spaces.Box(-1, 1, (1,)), space), bits=2)
    assert env.observation_space.shape == (size + 2,)
    observation, _ = env.reset()
    for decision in (0, 1, 1, 0):
        assert observation.dtype == np.float32
        assert env.observation_space.contains(observation)
        observation, *_ = env.step(decision)


def test_bounds_beyond_float32_become_infinite_and_such_observations_are_named() -> None:
    recorder = Recorder(spaces.Box(-1, 1, (1,)), spaces.Box(-1e300, 1e300, (2,), np.float64))
    env = BinaryActionSearch(recorder)
    np.testing.assert_array_equal(env.observation_space.high, np.float32([np.inf, np.inf, 1, 1]))
    recorder.observation_space.sample = lambda: np.array([0.0, 1e300])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="too large for float32"):
        env.reset()
    check_env(BinaryActionSearch(gym.make("Pendulum-v1")), warn=True)


# Time


def test_inner_decisions_take_no_time() -> None:
    env = BinaryActionSearch(Recorder(spaces.Box(-1, 1, (1,)), length=2), bits=3)
    env.reset()
    for real_step in (1, 2):
        for _ in range(2):
            _, reward, terminated, truncated, info = env.step(1)
            assert (reward, terminated, truncated, info) == (0.0, False, False, {"discount": 1.0})
        _, reward, terminated, truncated, info = env.step(1)
        assert (reward, terminated, truncated) == (real_step, real_step == 2, False)
        assert "discount" not in info  # gamma is for the agent to know
        assert info["last"] == (real_step == 2)
    agent = BDPI("MlpPolicy", env, n_critics=1, fit_steps=1, critic_iterations=1, batch_size=8, seed=0).learn(12)
    np.testing.assert_allclose(agent.replay_buffer.transitions().discounts, [1, 1, 0.99, 1, 1, 0] * 2)


@pytest.mark.parametrize("with_monitor", [True, False])
def test_time_limits_and_statistics_count_real_steps(with_monitor: bool) -> None:
    pendulum = gym.make("Pendulum-v1")
    env = BinaryActionSearch(Monitor(pendulum) if with_monitor else pendulum, bits=4)
    env.reset(seed=1)
    total, n_decisions, over = 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.int64(n_decisions % 2))
        total, n_decisions, over = total + float(reward), n_decisions + 1, terminated or truncated
    assert (n_decisions, terminated, truncated) == (800, False, True)
    assert info["episode"]["l"] == 200
    assert info["episode"]["r"] == pytest.approx(total, abs=1e-5)


def test_there_is_one_monitor_and_it_is_inside() -> None:
    inner = Monitor(gym.make("Pendulum-v1"))
    agent = BDPI("MlpPolicy", BinaryActionSearch(inner), n_critics=1)
    env: Any = agent.get_env()
    assert isinstance(env.envs[0], BinaryActionSearch)  # SB3 has put no other Monitor around it
    assert env.envs[0].env is inner
    vectorized: Any = make_vec_env("Pendulum-v1", n_envs=2, wrapper_class=BinaryActionSearch)
    for env in vectorized.envs:
        assert isinstance(env, BinaryActionSearch)
        assert isinstance(env.env, Monitor)
        assert not isinstance(env.env.env, Monitor)


def test_the_agent_discounts_real_steps_only_and_counts_them() -> None:
    env = BinaryActionSearch(gym.make("Pendulum-v1"), bits=3)
    agent = BDPI("MlpPolicy", env, n_critics=2, fit_steps=1, critic_iterations=1, batch_size=16, gamma=0.9, seed=0)
    agent.learn(3 * 200 + 4)
    transitions = agent.replay_buffer.transitions()
    discounts = transitions.discounts
    is_real = np.arange(len(discounts)) % 3 == 2
    assert (discounts[~is_real] == 1).all()
    np.testing.assert_array_equal(discounts[is_real], np.float32(0.9))  # also at the time limit: it is no end
    assert (transitions.rewards[~is_real] == 0).all()
    assert (transitions.rewards[is_real] < 0).all()
    (episode,) = agent.ep_info_buffer  # type: ignore[union-attr]
    assert episode["l"] == 200
    assert episode["r"] == pytest.approx(transitions.rewards[:600].sum(), abs=0.01)


def test_what_the_decisions_are_good_for_can_be_learned() -> None:
    class Target(gym.Env[Any, Any]):
        """One step: the reward is minus the distance of the action to a target that is observed."""

        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            self.target = self.np_random.choice([-0.6, 0.6])
            return np.array([self.target], np.float32), {}

        def step(self, action: Any) -> Any:
            reward = -abs(float(action[0]) - self.target)
            return np.array([self.target], np.float32), reward, True, False, {}

    agent = BDPI("MlpPolicy", BinaryActionSearch(Target(), bits=2), n_critics=4, learning_rate=1e-3, seed=0)
    agent.learn(800)
    env: Any = agent.get_env()
    returns = []
    observations = env.reset()
    while len(returns) < 20:
        actions, _ = agent.predict(observations, deterministic=True)
        observations, _, _, infos = env.step(actions)
        returns += [info["episode"]["r"] for info in infos if "episode" in info]
    # The best of the four actions (±1/3, ±1) misses by 0.27; one that ignores the target, by 0.6 on average or more.
    assert np.mean(returns) > -0.4


# Bad input


@pytest.mark.parametrize("bits", [0, -1, 25, 1.5, "6", True, None])
def test_bits_must_be_a_sensible_whole_number(bits: Any) -> None:
    with pytest.raises(ValueError, match="bits"):
        BinaryActionSearch(gym.make("Pendulum-v1"), bits)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Box(-np.inf, np.inf, (1,)), "TransformAction"),
        (spaces.Box(np.float32([0, 0]), np.float32([1, np.inf])), "TransformAction"),
        (spaces.Discrete(3), "choose these actions directly"),
        (spaces.MultiDiscrete([2, 2]), "for Box action spaces"),
        (spaces.Box(0, 1, (0,)), "at least one number"),
    ],
)
def test_other_action_spaces_are_refused(space: spaces.Space[Any], says: str) -> None:
    for wrap in (BinaryActionSearch, IncrementalAction, partial(DiscreteAction, n=5)):
        with pytest.raises(ValueError, match=says):
            wrap(Recorder(space))


def test_the_remedy_for_unbounded_actions_works() -> None:
    recorder = Recorder(spaces.Box(-np.inf, np.inf, (1,)))
    bounded = gym.wrappers.TransformAction(recorder, lambda action: action, spaces.Box(-3.0, 3.0, (1,)))
    env = BinaryActionSearch(bounded, bits=1)
    env.reset()
    env.step(1)
    assert recorder.actions[0].tolist() == [3.0]


class Failing(Recorder):
    failures = 1

    def step(self, action: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("the robot is offline")
        return super().step(action)


def test_a_decision_that_could_not_be_carried_out_may_be_made_again() -> None:
    recorder = Failing(spaces.Box(-1, 1, (1,)))
    env = BinaryActionSearch(recorder, bits=2)
    env.reset()
    before = env.step(1)[0]
    with pytest.raises(OSError, match="offline"):
        env.step(0)
    observation, reward, *_ = env.step(1)
    assert recorder.actions[0].tolist() == [1.0]
    assert reward == 1
    assert observation[-2:].tolist() == [0.0, 1.0]
    assert before[-1] == 0.0


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), "destroy pictures"),
        (spaces.Box(0, 255, (8, 8), np.uint8), "destroy pictures"),
        (
            spaces.Dict(camera=spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=spaces.Box(-1, 1, (1,))),
            "destroy pictures",
        ),
        (spaces.Tuple([spaces.Box(0, 255, (8, 8), np.uint8)]), "destroy pictures"),
        (spaces.Sequence(spaces.Discrete(2)), "cannot flatten"),
        (spaces.Box(0, 2, (8, 8), np.uint8), ""),
        (spaces.Box(0, 255, (8,), np.uint8), ""),
    ],
)
def test_observations_that_should_not_be_flattened_are_refused(space: spaces.Space[Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) if says else contextlib.nullcontext():
        BinaryActionSearch(Recorder(spaces.Box(-1, 1, (1,)), space)).reset()


def test_wrong_calls_are_explained() -> None:
    env = BinaryActionSearch(Recorder(spaces.Box(-1, 1, (1,)), length=1), bits=1)
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step(0)
    env.reset()
    with pytest.raises(InvalidAction, match="down"):
        env.step(2)
    assert env.step(0)[2]
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step(0)


def test_what_a_safety_layer_inside_executed_is_not_taken_for_a_decision() -> None:
    class Safe(gym.Wrapper):
        def step(self, action):
            observation, reward, terminated, truncated, info = self.env.step(action * 0.5)
            return observation, reward, terminated, truncated, {**info, "executed_action": action * 0.5}

    env = BinaryActionSearch(Safe(gym.make("Pendulum-v1")), bits=1)
    env.reset(seed=0)
    *_, info = env.step(1)
    assert info["executed_continuous_action"] == pytest.approx(1.0)
    assert "executed_action" not in info
    with pytest.raises(TypeError, match="wraps an environment"):
        BinaryActionSearch("Pendulum-v1")
