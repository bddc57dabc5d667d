"""The agent is an SB3 algorithm: everything around SB3 works with it."""

import csv

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize
from torch import nn

from bdpi import BDPI, PAPER
from bdpi.agents.spaces import shift_to_zero
from small import QUICK, Walk, epochs_of, fingerprint, quick_agent

SPACES = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "box-float64": spaces.Box(-5, 5, (3,), np.float64),
    "box-matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "box-integers": spaces.Box(0, 9, (4,), np.int64),
    "discrete": spaces.Discrete(6),
    "discrete-start": spaces.Discrete(6, start=-3),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multidiscrete-start": spaces.MultiDiscrete([3, 4], start=[5, -2]),
    "multibinary": spaces.MultiBinary(5),
    "image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "dict": spaces.Dict(
        {
            "vector": spaces.Box(-1, 1, (3,), np.float32),
            "room": spaces.Discrete(4, start=1),
            "camera": spaces.Box(0, 255, (36, 36, 3), np.uint8),
        }
    ),
}
VECTORS = spaces.Dict(
    {
        "arm": spaces.Box(-3, 3, (2, 2), np.float64),
        "counts": spaces.MultiDiscrete([3, 4], start=[1, -2]),
        "eye": spaces.Box(-1, 1, (3,), np.float32),
        "room": spaces.Discrete(4, start=1),
        "switches": spaces.MultiBinary(2),
    }
)
PRECISIONS = ("float32", "bfloat16")
POLICIES = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_dict_of_vectors_is_trained_by_the_native_learner(n_envs, tmp_path):
    """As PyTorch would, up to rounding, and it is saved and predicts as such."""
    env = make_vec_env(lambda: Walk(VECTORS), n_envs=n_envs)
    agents = [quick_agent(env, "MultiInputPolicy", learner=learner).learn(40) for learner in ("auto", "torch")]
    assert [agent.learner_name for agent in agents] == ["native", "torch"]
    assert len(agents[0].policy.scales.shift) == 4 + 3  # numbers are scaled, and what is one-hot is not
    first, second = (agent.agent_learner.state_dict() for agent in agents)
    for name, tensor in first.items():
        np.testing.assert_allclose(tensor, second[name], atol=2e-4, err_msg=name)
    seen = {key: np.stack([VECTORS[key].sample() for _ in range(9)]) for key in VECTORS}
    chances = [agents[0].agent_learner.probabilities(seen), agents[0].policy.probabilities(seen)]
    np.testing.assert_allclose(*chances, atol=1e-6)
    q = [agent.agent_learner.q_values(shift_to_zero(seen, VECTORS)) for agent in agents]
    np.testing.assert_allclose(*q, atol=1e-3)
    agents[0].save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent", env=env)
    np.testing.assert_array_equal(loaded.predict(seen, deterministic=True)[0], chances[1].argmax(axis=1))


def test_a_dict_learns_as_the_box_of_its_numbers_does():
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Box(-1, 1, (1,), np.float32)})
    seen = np.random.default_rng(0).uniform(-1, 1, (500, 3)).astype(np.float32)
    box = Walk(seen=lambda env, _: seen[env.steps])
    parts = Walk(space, seen=lambda env, _: {"a": seen[env.steps, :2], "b": seen[env.steps, 2:]})
    as_box, as_dict = quick_agent(box), quick_agent(parts, "MultiInputPolicy")
    assert fingerprint(as_box.learn(60)) == fingerprint(as_dict.learn(60))


@pytest.mark.parametrize("learner", ["auto", "torch"])
@pytest.mark.parametrize("kind", SPACES)
def test_every_observation_space(kind, learner, tmp_path):
    env = Walk(SPACES[kind])
    fewer = {"train_freq": 10, "fit_steps": None} if kind in POLICIES else {}
    agent = quick_agent(env, POLICIES.get(kind, "MlpPolicy"), learner=learner, **fewer)
    before = fingerprint(agent)
    agent.learn(40)
    assert fingerprint(agent) != before
    expected = "torch" if learner == "torch" or kind in POLICIES else "native"
    assert agent.learner_name == expected
    observation, _ = env.reset()
    action, _ = agent.predict(observation, deterministic=True)
    assert env.action_space.contains(int(action))
    agent.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent", env=env)
    assert loaded.predict(observation, deterministic=True)[0] == action
    loaded.learn(20)


def test_bfloat16_is_a_choice_that_is_saved(tmp_path):
    env = Walk(SPACES["image"])
    exact, rounded = (quick_agent(env, "CnnPolicy", precision=precision).learn(18) for precision in PRECISIONS)
    assert fingerprint(exact) != fingerprint(rounded)
    rounded.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent", env=env)
    assert loaded.precision == "bfloat16"
    assert {parameter.dtype for parameter in loaded.policy.actor.parameters()} == {torch.float32}
    assert BDPI.load(tmp_path / "agent", precision="float32").precision == "float32"


@pytest.mark.parametrize("kind", ["box", "box-float64", "box-integers", "discrete-start", "multidiscrete-start"])
def test_native_and_torch_agents_are_the_same_agent(kind):
    """Same seed, same actions, same parameters up to rounding, whatever trains them."""
    agents = [quick_agent(Walk(SPACES[kind]), learner=learner).learn(60) for learner in ("native", "torch")]
    first, second = (agent.agent_learner.state_dict() for agent in agents)
    for name, tensor in first.items():
        np.testing.assert_allclose(tensor, second[name], atol=2e-4, err_msg=name)


@pytest.mark.parametrize("start", [0, 3, -2])
def test_actions_may_start_anywhere(start):
    env = Walk(start=start)
    agent = quick_agent(env).learn(60)
    assert set(np.unique(agent.replay_buffer.transitions().actions)) <= {0, 1}
    actions = {int(agent.predict(np.zeros(3, np.float32))[0]) for _ in range(50)}
    assert actions <= {start, start + 1}


@pytest.mark.parametrize("vectorize", [DummyVecEnv, SubprocVecEnv])
def test_several_environments(vectorize):
    env = make_vec_env(Walk, n_envs=3, vec_env_cls=vectorize, seed=1)
    agent = quick_agent(env).learn(60)
    assert agent.num_timesteps == 60
    assert len(agent.replay_buffer) == 60
    returns, lengths = evaluate_policy(agent, env, n_eval_episodes=3, return_episode_rewards=True)
    assert lengths == [7, 7, 7]
    assert all(0 <= value <= 7 for value in returns)
    env.close()


@pytest.mark.parametrize(
    ("n_envs", "train_freq", "gradient_steps"), [(1, 1, 1), (4, 1, 1), (2, 5, 1), (3, 2, 2), (4, 2, -1)]
)
def test_epochs_per_transition_do_not_depend_on_the_number_of_environments(n_envs, train_freq, gradient_steps):
    env = make_vec_env(Walk, n_envs=n_envs)
    agent = quick_agent(env, train_freq=train_freq, gradient_steps=gradient_steps, batch_size=1)
    agent.learn(120)
    per_transition = 1 if gradient_steps == -1 else gradient_steps / train_freq
    assert epochs_of(agent) == 120 * per_transition


def test_learning_starts_with_the_first_full_batch_and_again_at_once():
    agent = quick_agent(batch_size=16).learn(20)
    assert epochs_of(agent) == 5
    agent.learn(10)  # with the counter set back: SB3 would repeat a warm-up without learning
    assert epochs_of(agent) == 15
    assert epochs_of(quick_agent(train_freq=(2, "episode"), batch_size=8).learn(70)) == 5


def test_very_deep_networks_and_other_activation_functions_fall_back_to_torch():
    shallow = {"batch_size": 4, "n_critics": 1, "fit_steps": 1, "critic_iterations": 1}
    for kwargs, learner in (
        ({"net_arch": [4] * 20}, "native"),
        ({"net_arch": [4] * 64}, "torch"),
        ({"activation_fn": nn.ELU}, "torch"),
    ):
        assert quick_agent(policy_kwargs=kwargs, **shallow).learn(8).learner_name == learner


def test_vec_normalize_sees_original_values_in_the_buffer_and_normalised_ones_in_the_networks():
    env = VecNormalize(make_vec_env(lambda: Walk(spaces.Box(90, 110, (3,), np.float32)), n_envs=2))
    agent = quick_agent(env).learn(80)
    assert agent.replay_buffer.transitions().observations.min() > 80
    data = agent.replay_buffer.transitions()
    prepared, _ = agent.agent_learner.prepare(data, np.arange(32).reshape(2, 16), agent.get_vec_normalize_env())
    assert np.abs(prepared.observations).max() < 10
    np.testing.assert_allclose(prepared.observations, env.normalize_obs(data.observations[:32]), rtol=1e-5)
    np.testing.assert_allclose(prepared.rewards, env.normalize_reward(data.rewards[:32]), rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fault", ["observation", "reward", "last observation"])
def test_vec_normalize_hides_no_infinity(training, fault):
    """It clips what it normalises; the check looks before it does, and its statistics are not spoilt either."""

    broken = []

    def breaks(env: Walk) -> bool:
        """Once, in one of the environments."""
        if broken or env.steps < 12 or env.time != (7 if fault == "last observation" else 3):
            return False
        broken.append(True)
        return True

    faults = {"seen": lambda env, usual: np.full(3, -np.inf, np.float32) if breaks(env) else usual}
    if fault == "reward":
        faults = {"pays": lambda env, action: np.inf if breaks(env) else float(action)}
    env = VecNormalize(make_vec_env(lambda: Walk(**faults), n_envs=2), training=training)
    agent = quick_agent(env)
    with pytest.raises(ValueError, match=f"the {fault} of environment 0"):
        agent.learn(200)
    held = len(agent.replay_buffer)
    agent.learn(20, reset_num_timesteps=False)
    assert len(agent.replay_buffer) == held + 20
    assert np.isfinite(agent.replay_buffer.transitions().next_observations).all()
    assert np.isfinite(env.obs_rms.mean).all()


def test_an_evaluation_environment_takes_over_the_normalisation():
    """SB3 walks through the wrappers of both environments side by side."""
    env, evaluation_env = (VecNormalize(VecFrameStack(make_vec_env(Walk, n_envs=1), 3)) for _ in range(2))
    callback = EvalCallback(evaluation_env, eval_freq=15, n_eval_episodes=1, verbose=0)
    quick_agent(env).learn(40, callback=callback)
    assert callback.eval_env.obs_rms.mean.shape == (9,)
    assert callback.eval_env.obs_rms.count > 10


def test_callbacks_loggers_and_progress_bar(tmp_path):
    agent = quick_agent(tensorboard_log=str(tmp_path / "board"))
    evaluation = EvalCallback(Monitor(Walk()), eval_freq=20, n_eval_episodes=1, log_path=str(tmp_path), verbose=0)
    checkpoints = CheckpointCallback(20, str(tmp_path), name_prefix="agent", save_replay_buffer=True)
    agent.learn(50, callback=[evaluation, checkpoints], progress_bar=True)
    assert len(evaluation.evaluations_timesteps) == 2
    assert BDPI.load(tmp_path / "agent_40_steps").num_timesteps == 40
    assert list((tmp_path / "board").glob("BDPI_1/events*"))


def test_training_metrics_are_logged(tmp_path):
    agent = quick_agent(fit_steps=5, trust_region=0.2)
    agent.set_logger(configure(str(tmp_path), ["csv"]))
    agent.learn(100, log_interval=1)
    lines = list(csv.DictReader((tmp_path / "progress.csv").open()))
    names = ("critic_loss", "actor_loss", "entropy", "mean_q", "disagreement", "kl", "milliseconds_per_epoch")
    found = {name: [float(line[f"train/{name}"]) for line in lines if line[f"train/{name}"]] for name in names}
    assert all(0 <= value <= 1 for value in found["entropy"] + found["disagreement"])  # two actions: at most one bit
    assert all(0 <= value <= 3 * 0.2 for value in found["kl"])  # three critics, each within its trust region
    assert max(found["kl"]) > 0


def test_truncated_episodes_bootstrap_from_their_last_observation_and_terminated_ones_do_not():
    for truncate in (False, True):
        clock = Walk(length=5, truncate=truncate, seen=lambda env, usual: np.full(3, env.time / 10, np.float32))
        data = quick_agent(clock, gamma=0.9).learn(20).replay_buffer.transitions()
        np.testing.assert_allclose(data.discounts[4::5], 0.9 if truncate else 0.0)
        np.testing.assert_allclose(data.discounts[:4], 0.9)
        np.testing.assert_allclose(data.next_observations[4, 0], 0.5)
        np.testing.assert_allclose(data.observations[5, 0], 0.0)


@pytest.mark.parametrize(
    "policy_kwargs", [{"net_arch": {"pi": [8], "qf": [24, 16]}, "activation_fn": nn.ReLU}, {"net_arch": []}]
)
def test_network_architectures(policy_kwargs):
    agent = quick_agent(policy_kwargs=policy_kwargs).learn(40)
    assert agent.learner_name == "native"


@pytest.mark.parametrize(
    ("kwargs", "units", "last"),
    [
        ({}, [256, 2], nn.Tanh),  # as on every task of the paper: with rectified units, critics can diverge on Hallway
        ({"net_arch": [20, 10], "activation_fn": nn.ELU}, [20, 10, 2], nn.ELU),
        ({"net_arch": {"pi": [5], "qf": [7]}}, [7, 2], nn.Tanh),
        ({"features_extractor_class": NatureCNN, "features_extractor_kwargs": {"features_dim": 12}}, [12, 2], nn.ReLU),
        ({"features_extractor_class": NatureCNN, "net_arch": [9]}, [512, 9, 2], nn.Tanh),
        ({"features_extractor_kwargs": {"features_dim": 64}}, [64, 2], nn.Tanh),
        ({"features_extractor_kwargs": {"features_dim": 64}, "net_arch": [9]}, [64, 9, 2], nn.Tanh),
    ],
)
def test_hidden_units_behind_the_convolutions(kwargs, units, last):
    agent = quick_agent(Walk(SPACES["image"]), "CnnPolicy", policy_kwargs=kwargs)
    leaves = [part for part in agent.policy.make_critic().modules() if not list(part.children())]
    assert [part.out_features for part in leaves if isinstance(part, nn.Linear)] == units
    assert type([part for part in leaves if not isinstance(part, nn.Identity)][-2]) is last
    agent.learn(20)


def test_the_papers_configuration_is_one_word_away():
    agent = BDPI("MlpPolicy", "FrozenLake8x8-v1", **PAPER)
    assert (agent.gamma, agent.buffer_size, agent.batch_size) == (0.99, 20_000, 256)
    assert (agent.n_critics, agent.critics_per_step, agent.critic_iterations) == (16, None, 4)
    hyper = agent.hyperparameters()
    assert (hyper.critic_rule.step_size, agent.trust_region) == (0.2, 0.05)
    assert (agent.observation_size, agent.return_size) == (None, None)
    assert (hyper.learning_rate, hyper.actor_learning_rate) == (1e-4, 1e-4)
    linear = [module for module in agent.policy.actor.modules() if isinstance(module, nn.Linear)]
    assert [layer.out_features for layer in linear] == [32, 4]
    assert any(isinstance(module, nn.Tanh) for module in agent.policy.actor.modules())


def test_learning_rates_follow_their_schedules():
    agent = quick_agent(learning_rate=lambda progress: 1e-3 * progress, actor_learning_rate=5e-4)
    agent.learn(50)
    assert agent.hyperparameters().learning_rate == pytest.approx(0, abs=1e-9)
    assert agent.hyperparameters().actor_learning_rate == 5e-4


@pytest.mark.parametrize("beyond", [{"env": 4}, {"train_freq": 64}, {"train_freq": (1, "episode")}])
def test_schedules_end_at_zero_where_steps_go_beyond_the_end(beyond):
    env = make_vec_env("CartPole-v1", beyond.pop("env", 1))
    agent = BDPI("MlpPolicy", env, learning_rate=lambda progress: 1e-3 * progress, seed=0, **{**QUICK, **beyond})
    agent.learn(51)
    assert agent.num_timesteps > 51
    assert agent.hyperparameters().learning_rate == 0


def test_set_env_and_ids():
    agent = BDPI("MlpPolicy", "CartPole-v1", **QUICK, seed=0)
    agent.learn(20)
    agent.set_env(gym.make("CartPole-v1"))
    agent.learn(20, reset_num_timesteps=False)
    assert agent.num_timesteps == 40
