"""The agent is an SB3 algorithm: everything around SB3 works with it."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize
from torch import nn

from bdpi import BDPI, PAPER
from small import QUICK, Walk, fingerprint, quick_agent

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
PRECISIONS = ("float32", "bfloat16")
POLICIES = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}


@pytest.mark.parametrize("learner", ["auto", "torch"])
@pytest.mark.parametrize("kind", SPACES)
def test_every_observation_space(kind, learner, tmp_path):
    env = Walk(SPACES[kind])
    agent = quick_agent(env, POLICIES.get(kind, "MlpPolicy"), learner=learner, fit_steps=None if kind == "image" else 2)
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
    assert agent._n_updates == 120 * per_transition


def test_learning_starts_with_the_first_full_batch_and_again_at_once():
    agent = quick_agent(batch_size=16).learn(20)
    assert agent._n_updates == 5
    agent.learn(10)  # with the counter set back: SB3 would repeat a warm-up without learning
    assert agent._n_updates == 15


def test_episodes_as_training_frequency():
    assert quick_agent(train_freq=(2, "episode"), batch_size=8).learn(70)._n_updates == 5


def test_vec_normalize_sees_original_values_in_the_buffer_and_normalised_ones_in_the_networks():
    env = VecNormalize(make_vec_env(lambda: Walk(spaces.Box(90, 110, (3,), np.float32)), n_envs=2))
    agent = quick_agent(env).learn(80)
    assert agent.replay_buffer.transitions().observations.min() > 80
    prepared, _ = agent.agent_learner.prepare(
        agent.replay_buffer.transitions(), np.arange(32).reshape(2, 16), agent._vec_normalize_env
    )
    assert np.abs(prepared.observations).max() < 10
    expected = env.normalize_obs(agent.replay_buffer.transitions().observations[:32])
    np.testing.assert_allclose(prepared.observations, expected, rtol=1e-5)
    np.testing.assert_allclose(
        prepared.rewards, env.normalize_reward(agent.replay_buffer.transitions().rewards[:32]), rtol=1e-5
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fault", ["observation", "reward", "last observation"])
def test_vec_normalize_hides_no_infinity(training, fault):
    """It clips what it normalises; the check looks before it does, and its statistics are not spoilt either."""

    class Faulty(Walk):
        broken = True

        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            at_end = fault == "last observation"
            if self.broken and self.time == (7 if at_end else 3) and agent.num_timesteps > 20:
                type(self).broken = False
                if fault == "reward":
                    reward = np.inf
                else:
                    observation = np.full(3, -np.inf, np.float32)
            return observation, reward, terminated, truncated, info

    agent = None
    env = VecNormalize(make_vec_env(Faulty, n_envs=2), training=training)
    agent = quick_agent(env)
    with pytest.raises(ValueError, match=f"the {fault} of environment 0 at step .* is not finite: -?inf"):
        agent.learn(200)
    held = len(agent.replay_buffer)
    agent.learn(20, reset_num_timesteps=False)
    assert len(agent.replay_buffer) == held + 20
    assert np.isfinite(agent.replay_buffer.transitions().next_observations).all()
    assert np.isfinite(env.obs_rms.mean).all()


def test_an_evaluation_environment_takes_over_the_normalisation():
    """SB3 walks through the wrappers of both environments side by side."""
    env, evaluation_env = (VecNormalize(make_vec_env(lambda: Walk(SPACES["box"]), n_envs=1)) for _ in range(2))
    callback = EvalCallback(evaluation_env, eval_freq=15, n_eval_episodes=1, verbose=0)
    quick_agent(env).learn(40, callback=callback)
    np.testing.assert_array_equal(callback.eval_env.obs_rms.mean.shape, (3,))
    assert callback.eval_env.obs_rms.count > 10


def test_frame_stacking():
    quick_agent(VecFrameStack(make_vec_env(Walk, n_envs=1), 3)).learn(30)


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
    lines = [dict(zip(*pair, strict=True)) for pair in _csv_rows(tmp_path / "progress.csv")]
    last = lines[-1]
    for name in ("critic_loss", "actor_loss", "entropy", "mean_q", "disagreement", "kl", "milliseconds_per_epoch"):
        assert f"train/{name}" in last
    entropies = [float(line["train/entropy"]) for line in lines if line["train/entropy"]]
    assert all(0 <= value <= 1 for value in entropies)  # two actions: at most one bit
    assert all(0 <= float(line["train/disagreement"]) <= 1 for line in lines if line["train/disagreement"])
    divergences = [float(line["train/kl"]) for line in lines if line["train/kl"]]
    assert all(0 <= value <= 3 * 0.2 for value in divergences)  # three critics, each within its trust region
    assert max(divergences) > 0


def _csv_rows(path):
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    return [(header, row) for row in rows]


def test_the_executed_action_is_the_one_that_is_remembered():
    class Overridden(Walk):
        def step(self, action):
            result = super().step(action)
            result[4]["executed_action"] = 1
            return result

    agent = quick_agent(make_vec_env(Overridden, n_envs=2)).learn(40)
    assert np.all(agent.replay_buffer.transitions().actions == 1)


def test_truncated_episodes_bootstrap_and_terminated_ones_do_not():
    for truncate in (False, True):
        agent = quick_agent(Walk(length=5, truncate=truncate), gamma=0.9).learn(20)
        ends = agent.replay_buffer.transitions().discounts[4::5]
        np.testing.assert_allclose(ends, 0.9 if truncate else 0.0)
        np.testing.assert_allclose(agent.replay_buffer.transitions().discounts[:4], 0.9)


def test_the_last_observation_of_an_episode_is_remembered_not_the_first_of_the_next():
    class Clock(Walk):
        def _observation(self):
            return np.full(3, getattr(self, "time", 0) / 10, np.float32)

    agent = quick_agent(Clock(length=5)).learn(20)
    data = agent.replay_buffer.transitions()
    np.testing.assert_allclose(data.next_observations[4, 0], 0.5)
    np.testing.assert_allclose(data.observations[5, 0], 0.0)


def test_a_callback_that_stops_training_loses_no_transition():
    class StopAt(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < 23

    agent = quick_agent().learn(100, callback=StopAt())
    assert agent.num_timesteps == 23
    assert len(agent.replay_buffer) == 23


def test_a_callback_that_raises_loses_no_transition():
    class Break(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 23:
                raise KeyboardInterrupt
            return True

    agent = quick_agent()
    with pytest.raises(KeyboardInterrupt):
        agent.learn(100, callback=Break())
    assert len(agent.replay_buffer) == 23


@pytest.mark.parametrize(
    "policy_kwargs", [{"net_arch": {"pi": [8], "qf": [24, 16]}, "activation_fn": nn.ReLU}, {"net_arch": []}]
)
def test_network_architectures(policy_kwargs):
    agent = quick_agent(policy_kwargs=policy_kwargs).learn(40)
    assert agent.learner_name == "native"


def test_very_deep_networks_fall_back_to_torch():
    shallow = {"batch_size": 4, "n_critics": 1, "fit_steps": 1, "critic_iterations": 1}
    assert quick_agent(policy_kwargs={"net_arch": [4] * 20}, **shallow).learn(8).learner_name == "native"
    assert quick_agent(policy_kwargs={"net_arch": [4] * 64}, **shallow).learn(8).learner_name == "torch"


def test_other_activation_functions_fall_back_to_torch():
    assert quick_agent(policy_kwargs={"activation_fn": nn.ELU}).learn(30).learner_name == "torch"


def test_pixels_are_fitted_with_one_step_by_default():
    image = BDPI("CnnPolicy", Walk(SPACES["image"]), **{**QUICK, "fit_steps": None})
    assert image.hyperparameters().fit_steps == 1
    assert sum(isinstance(module, nn.Conv2d) for module in image.policy.actor.modules()) == 3
    linear = [module for module in image.policy.actor.modules() if isinstance(module, nn.Linear)]
    assert [layer.out_features for layer in linear] == [256, 2]
    assert BDPI("MlpPolicy", Walk()).hyperparameters().fit_steps == 20


@pytest.mark.parametrize(
    ("kwargs", "units", "last"),
    [
        ({}, [256, 2], nn.Tanh),  # as on every task of the paper: with rectified units, critics can diverge on Hallway
        ({"net_arch": [20, 10], "activation_fn": nn.ELU}, [20, 10, 2], nn.ELU),
        ({"net_arch": {"pi": [5], "qf": [7]}}, [7, 2], nn.Tanh),
        ({"features_extractor_class": NatureCNN, "features_extractor_kwargs": {"features_dim": 12}}, [12, 2], nn.ReLU),
        ({"features_extractor_class": NatureCNN, "net_arch": [9]}, [512, 9, 2], nn.Tanh),
    ],
)
def test_hidden_units_behind_the_convolutions(kwargs, units, last):
    agent = quick_agent(Walk(SPACES["image"]), "CnnPolicy", policy_kwargs=kwargs)
    leaves = [part for part in agent.policy.make_critic().modules() if not list(part.children())]
    assert [part.out_features for part in leaves if isinstance(part, nn.Linear)] == units
    assert type([part for part in leaves if not isinstance(part, nn.Identity)][-2]) is last
    agent.learn(20)


def test_the_size_of_the_hidden_layer_behind_the_convolutions_has_one_name():
    kwargs = {"features_extractor_kwargs": {"features_dim": 64}}
    with pytest.raises(ValueError, match=r"give net_arch=\[256\], not features_dim"):
        quick_agent(Walk(SPACES["image"]), "CnnPolicy", policy_kwargs=kwargs)


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


def test_set_env_and_ids():
    agent = BDPI("MlpPolicy", "CartPole-v1", **QUICK, seed=0)
    agent.learn(20)
    agent.set_env(gym.make("CartPole-v1"))
    agent.learn(20, reset_num_timesteps=False)
    assert agent.num_timesteps == 40
