"""Bad input gets an error that names the value and the remedy, and nothing collected is lost."""

from typing import Any

import gymnasium as gym
import minigrid  # noqa: F401  # registers its tasks
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn

from bdpi import BDPI, learner
from small import Walk, fingerprint, quick_agent


def faulty(at: int, observation=None, reward=None, executed=None, **arguments) -> Walk:
    """Returns one bad value at a chosen step."""

    def value(bad, good):
        return lambda env, usual: bad if bad is not None and env.steps == at and env.time else good(env, usual)

    return Walk(
        seen=value(observation, lambda env, usual: usual),
        pays=value(reward, lambda env, action: float(action)),
        says=lambda env: {"executed_action": executed} if executed is not None and env.steps == at else {},
        **arguments,
    )


NAN = np.full(3, np.nan, np.float32)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            {"observation": np.array([0, np.nan, 0], np.float32)},
            "observation of environment 0 at step 25 .* nan at index 1",
        ),
        (
            {"observation": np.array([0, 0, np.inf], np.float32)},
            "observation of environment 0 at step 25 .* inf at index 2",
        ),
        ({"observation": NAN, "length": 5}, "last observation of environment 0 at step 25"),  # before a reset hides it
        ({"observation": 6, "space": spaces.Discrete(6)}, r"at step 25 is 6, outside its space 0\.\.5"),
        ({"reward": float("nan")}, "reward of environment 0 at step 25 is not finite: nan"),
        ({"reward": float("-inf")}, "reward of environment 0 at step 25 is not finite: -inf"),
        ({"executed": 2}, "executed_action.* at step 25 is 2, which is not an action"),
        ({"executed": 0.5}, "executed_action.* must be one whole number, got 0.5"),
    ],
)
def test_bad_values_from_the_environment(fault, message):
    agent = quick_agent(faulty(25, **fault))
    with pytest.raises(ValueError, match=message):
        agent.learn(100)
    assert len(agent.replay_buffer) == 24
    assert np.isfinite(agent.replay_buffer.transitions().observations).all()
    agent.learn(20, reset_num_timesteps=False)  # a repaired environment goes on
    assert len(agent.replay_buffer) == 44


def test_the_right_environment_and_the_first_observation_are_named():
    has_fault = iter([False, True, False])
    env = make_vec_env(lambda: faulty(5, reward=np.nan) if next(has_fault) else Walk(), n_envs=3)
    with pytest.raises(ValueError, match="reward of environment 1 at step 15"):
        quick_agent(env).learn(100)
    with pytest.raises(ValueError, match="first observation of environment 0"):
        quick_agent(Walk(seen=lambda env, usual: NAN)).learn(10)


PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


def unusual(actions: spaces.Space, observations: spaces.Space | None = None) -> Walk:
    env = Walk(observations)
    env.action_space = actions
    return env


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_critics": 0}, "n_critics must be a whole number from 1 to 10000, got 0"),
        ({"n_critics": 2.5}, "n_critics"),
        ({"n_critics": 4, "critics_per_step": 5}, "critics_per_step"),
        ({"critic_iterations": 0}, "critic_iterations"),
        ({"fit_steps": 0}, "fit_steps"),
        ({"critic_step_size": 0}, "critic_step_size"),
        ({"critic_step_size": 1.5}, "critic_step_size"),
        ({"trust_region": -0.1}, "trust_region must be a number more than 0, got -0.1"),
        ({"trust_region": float("nan")}, "trust_region"),
        ({"gamma": 1.1}, "gamma"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"actor_learning_rate": -1}, "actor_learning_rate"),
        ({"batch_size": 0}, "batch_size"),
        ({"buffer_size": 10, "batch_size": 20}, "buffer_size"),
        ({"env": make_vec_env(Walk, n_envs=3), "buffer_size": 16, "batch_size": 16}, "15 in 3 environments"),
        ({"train_freq": 0}, "train_freq"),
        ({"train_freq": (1, "day")}, "unit of train_freq"),
        ({"train_freq": (1,)}, "train_freq"),
        (
            {"env": make_vec_env(Walk, n_envs=2), "train_freq": (1, "episode")},
            "needs a single environment",
        ),
        ({"stats_window_size": 0}, "stats_window_size"),
        ({"policy": 5}, "policy must be one of"),
        ({"policy": "LstmPolicy"}, "policy must be one of MlpPolicy, CnnPolicy, MultiInputPolicy"),
        ({"policy": DQNPolicy}, "subclass of BDPIPolicy"),
        ({"policy": "MultiInputPolicy"}, "MultiInputPolicy is for Dict observations"),
        ({"env": 5}, "env must be a Gymnasium environment"),
        ({"env": None}, "env must be a Gymnasium environment"),
        ({"env": unusual(spaces.Box(-np.inf, np.inf, (1,)))}, "Binary Action Search.*TransformAction"),
        ({"env": unusual(spaces.MultiDiscrete([[2, 3]]))}, "have 2 axes"),
        ({"env": unusual(spaces.Tuple([spaces.Discrete(2), spaces.Text(5)]))}, "use Discrete, MultiDiscrete"),
        ({"policy_kwargs": "dict(net_arch=[64])"}, "policy_kwargs must be a dictionary"),
        ({"replay_buffer_kwargs": "dict()"}, "replay_buffer_kwargs must be a dictionary"),
        ({"optimize_memory_usage": "yes"}, "optimize_memory_usage must be True or False"),
        ({"env": "Pendulum-v1", "policy_kwargs": {"action_bits": 0}}, "action_bits must be a whole number"),
        ({"env": unusual(spaces.Discrete(2), spaces.Text(5))}, "not supported"),
        ({"env": unusual(spaces.Discrete(2), spaces.Box(-1, 1, ()))}, "not supported"),
        ({"env": unusual(spaces.Discrete(2), spaces.MultiDiscrete([[2, 3], [4, 5]]))}, "not supported"),
        ({"env": gym.make_vec("CartPole-v1", num_envs=2)}, r"CartPoleVectorEnv, many environments.*make_vec_env\("),
        (
            {"env": gym.make("MiniGrid-Empty-5x5-v0")},
            r"'mission' is text.*FilterObservation\(env, \['direction', 'image'",
        ),
        ({"env": Walk(spaces.Dict({"arm.left": PICTURE})), "policy": "MultiInputPolicy"}, "without dots"),
        ({"gradient_steps": -2}, "gradient_steps"),
        ({"n_threads": 0}, "n_threads"),
        ({"learner": "magic"}, "learner must be"),
        ({"env": Walk(PICTURE), "policy": "CnnPolicy", "learner": "native"}, "multi-layer perceptrons"),
        ({"precision": "half"}, "precision must be"),
        ({"precision": "bfloat16"}, "is for networks that PyTorch trains"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        BDPI(**{"policy": "MlpPolicy", "env": Walk(), **arguments})
    with pytest.raises(TypeError, match="positional"):
        BDPI("MlpPolicy", Walk(), 1e-3, 5000)  # only the first three go without their names


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy", "MultiInputPolicy"])
def test_a_misspelled_argument_of_the_policy_is_named(policy):
    space = {"MlpPolicy": None, "CnnPolicy": spaces.Box(0, 255, (3, 36, 36), np.uint8)}.get(
        policy, spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32)})
    )
    with pytest.raises(TypeError, match=rf"{policy} has no argument 'net_arc': did you mean net_arch\?"):
        BDPI(policy, Walk(space), policy_kwargs={"net_arc": [8]})


@pytest.mark.parametrize("schedule", [lambda progress: float("nan"), lambda progress: -1e-4])
def test_a_senseless_schedule_is_named(schedule):
    with pytest.raises(ValueError, match="learning_rate"):
        quick_agent(learning_rate=schedule).learn(40)


def test_what_diverges_is_named():
    with pytest.raises(ValueError, match=r"learning diverged at step 16: .*rewards up to 1e\+38"):
        quick_agent(Walk(pays=lambda env, action: 1e38), return_size=None).learn(60)
    rectified = {"net_arch": [32, 32], "activation_fn": nn.ReLU}
    with pytest.raises(ValueError, match=r"learning diverged .*, with rewards up to 1\."):
        quick_agent(learning_rate=100.0, policy_kwargs=rectified).learn(400)


@pytest.mark.parametrize("discount", [float("nan"), 5.0, "much"])
def test_a_senseless_discount_is_named(discount):
    with pytest.raises(ValueError, match=r'info."discount". of environment 0 at step 1 must be a number'):
        quick_agent(Walk(says=lambda env: {"discount": discount} if env.time else {})).learn(60)


def test_a_refused_step_leaves_no_gap_in_the_memory():
    """What was refused is not counted, and the memory goes on with the first step of a new episode."""

    clock = faulty(10, executed=7)
    clock.seen = lambda env, usual: np.float32([env.time, env.steps, 0]) / 100
    agent = quick_agent(clock)
    with pytest.raises(ValueError, match="executed_action"):
        agent.learn(40)
    assert agent.num_timesteps == 9
    agent.learn(5, reset_num_timesteps=False)
    data = agent.replay_buffer.transitions()
    times, next_times = data.observations[:, 0] * 100, data.next_observations[:, 0] * 100
    np.testing.assert_allclose(next_times - times, 1, atol=1e-4)
    assert times[9] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed(tmp_path):
    with pytest.warns(RuntimeWarning, match='device="cuda" is not there, so that the CPU is used: bdpi doctor'):
        agent = quick_agent(device="cuda")
    agent.save(tmp_path / "agent")
    with pytest.warns(RuntimeWarning, match='device="cuda:0" is not there'):
        BDPI.load(tmp_path / "agent", device="cuda:0")


@pytest.mark.parametrize(
    ("size", "kwargs", "message"),
    [
        (4, {}, "pictures of 4 by 4 pixels are too small for convolutions, which need 5"),
        (36, {"activation_fn": "tanh"}, "activation_fn must be a class derived from Module.*got 'tanh'"),
        (36, {"features_extractor_class": None}, "features_extractor_class must be a class.*got None"),
    ],
)
def test_networks_that_cannot_be_made_say_why(size, kwargs, message):
    env = Walk(spaces.Box(0, 255, (size, size, 3), np.uint8))
    with pytest.raises(ValueError, match=message):
        quick_agent(env, "CnnPolicy", policy_kwargs=kwargs)


def test_without_the_compiled_learner_torch_is_used_and_says_what_is_lost(monkeypatch):
    expected = fingerprint(quick_agent(learner="torch").learn(30))
    monkeypatch.setattr(learner.native, "_native", None)
    monkeypatch.setattr(learner.native, "_reason", "no compiler")
    with pytest.warns(RuntimeWarning, match="times slower"):
        agent = quick_agent()
    assert agent.learner_name == "torch"
    assert fingerprint(agent.learn(30)) == expected
    with pytest.raises(ValueError, match="no compiler"):
        quick_agent(learner="native")


def test_normalization_inside_of_what_changes_observations():
    """What is remembered is what was there before it, and has to be what the agent sees."""

    def carts(outside: Any) -> VecEnv:
        return outside(VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")])))

    def stacked(env: VecEnv) -> VecEnv:
        return VecFrameStack(env, 3)

    for inside in (stacked, lambda env: VecMonitor(stacked(env))):
        with pytest.raises(ValueError, match="inside VecFrameStack"):
            quick_agent(carts(inside))
    agent = quick_agent(VecNormalize(stacked(DummyVecEnv([lambda: gym.make("CartPole-v1")]))))
    with pytest.raises(ValueError, match="inside VecFrameStack"):
        agent.set_env(carts(stacked))
    quick_agent(carts(VecMonitor)).learn(20)
    eye = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    world = DummyVecEnv([lambda: Walk(spaces.Dict({"eye": eye, "arm": spaces.Box(-1, 1, (2,), np.float32)}))])
    with pytest.raises(ValueError, match="inside VecTransposeImage"):
        quick_agent(VecNormalize(world, norm_obs_keys=["arm"]), "MultiInputPolicy")
    outside = VecNormalize(VecTransposeImage(world), norm_obs_keys=["arm"])
    quick_agent(outside, "MultiInputPolicy", fit_steps=1, train_freq=10).learn(20)
