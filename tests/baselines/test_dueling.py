"""Prioritized dueling DQN as an SB3 algorithm."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from torch import nn

from bdpi.baselines import PrioritizedDuelingDQN
from bdpi.baselines.dueling import DuelingHead
from small import Walk

QUICK = {"buffer_size": 500, "learning_starts": 20, "batch_size": 16, "train_freq": 1, "seed": 0}


def numbers(agent: PrioritizedDuelingDQN) -> np.ndarray:
    return nn.utils.parameters_to_vector(agent.policy.parameters()).detach().numpy()


def test_the_mean_of_q_values_is_the_value():
    head = DuelingHead(4, 3, [8], nn.Tanh)
    features = torch.randn(6, 4)
    values, advantages = head.value(features), head.advantage(features)
    torch.testing.assert_close(head(features).mean(dim=1, keepdim=True), values)
    centred = head(features) - values
    torch.testing.assert_close(centred - centred[:, :1], advantages - advantages[:, :1])


@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MlpPolicy", None),
        ("MlpPolicy", spaces.Discrete(5)),
        ("CnnPolicy", spaces.Box(0, 255, (36, 36, 1), np.uint8)),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_every_kind_of_observation(policy, space, n_envs):
    small = {"features_extractor_kwargs": {"features_dim": 16}} if policy == "CnnPolicy" else {"net_arch": [16]}
    agent = PrioritizedDuelingDQN(policy, make_vec_env(lambda: Walk(space), n_envs), policy_kwargs=small, **QUICK)
    before = nn.utils.parameters_to_vector(agent.q_net.parameters()).detach()
    agent.learn(60)
    after = nn.utils.parameters_to_vector(agent.q_net.parameters()).detach()
    assert torch.isfinite(after).all()
    assert (after != before).float().mean() > 0.5


@pytest.mark.filterwarnings("error")
def test_targets_of_several_steps(tmp_path):
    """They make another agent, SB3 does not warn that they would not, and they are saved."""
    one, five = (PrioritizedDuelingDQN("MlpPolicy", Walk(), n_steps=n, gamma=0.5, **QUICK).learn(60) for n in (1, 5))
    assert five.n_steps == five.replay_buffer.n_steps == 5
    assert five.replay_buffer.gamma == 0.5
    assert (numbers(one) != numbers(five)).any()
    five.save(tmp_path / "agent")
    loaded = PrioritizedDuelingDQN.load(tmp_path / "agent", env=Walk())
    assert loaded.replay_buffer.n_steps == 5


def test_the_value_after_several_steps_is_discounted_as_often():
    agent = PrioritizedDuelingDQN("MlpPolicy", Walk(), n_steps=3, gamma=0.5, alpha=1.0, **QUICK).learn(60)
    buffer = agent.replay_buffer
    state = buffer.generator.bit_generator.state
    batch = buffer.sample(16)
    with torch.no_grad():
        best = agent.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
        following = agent.q_net_target(batch.next_observations).gather(1, best)
        values = agent.q_net(batch.observations).gather(1, batch.actions.long())
    errors = (batch.rewards + (1 - batch.dones) * batch.discounts * following - values).abs().numpy().ravel()
    assert set(batch.discounts.ravel().tolist()) == {0.5, 0.25, 0.125}
    buffer.generator.bit_generator.state = state
    agent.train(gradient_steps=1, batch_size=16)
    np.testing.assert_allclose(buffer.tree[batch.places], errors + 1e-6, rtol=1e-4)


def test_priorities_are_the_errors():
    agent = PrioritizedDuelingDQN("MlpPolicy", Walk(), alpha=0.6, **QUICK).learn(50)
    buffer = agent.replay_buffer
    held = buffer.tree[np.arange(50)]
    assert len(np.unique(held)) > 20
    assert (buffer.tree[np.arange(50, 500)] == 0).all()
    # Errors before the step are stored; a learning rate of 0 makes them those of now, too.
    agent.lr_schedule = lambda _: 0.0
    agent.train(gradient_steps=30, batch_size=16)
    rows = [torch.as_tensor(a[:50, 0]) for a in (buffer.observations, buffer.next_observations)]
    with torch.no_grad():
        best = agent.q_net(rows[1]).argmax(dim=1, keepdim=True)
        target = (
            buffer.rewards[:50, 0]
            + (1 - buffer.dones[:50, 0]) * 0.99 * agent.q_net_target(rows[1]).gather(1, best).numpy().ravel()
        )
        value = agent.q_net(rows[0]).gather(1, torch.as_tensor(buffer.actions[:50, 0])).numpy().ravel()
    seen = buffer.tree[np.arange(50)] != held
    assert seen.sum() > 10
    np.testing.assert_allclose(
        buffer.tree[np.arange(50)][seen], (np.abs(target - value)[seen] + 1e-6) ** 0.6, rtol=1e-3
    )


def test_weights_count_in_the_loss():
    """A batch of weights 0 changes nothing."""

    def unimportant(batch_size, env=None):
        batch = sample(batch_size, env)
        return batch._replace(weights=torch.zeros_like(batch.weights))

    agent = PrioritizedDuelingDQN("MlpPolicy", Walk(), **QUICK).learn(20)
    sample = agent.replay_buffer.sample
    agent.replay_buffer.sample = unimportant
    before = numbers(agent)
    agent.train(gradient_steps=3, batch_size=16)
    np.testing.assert_array_equal(numbers(agent), before)
    agent.replay_buffer.sample = sample
    agent.train(gradient_steps=1, batch_size=16)
    assert (numbers(agent) != before).any()


def test_beta_grows_to_one():
    agent = PrioritizedDuelingDQN("MlpPolicy", Walk(), beta=0.4, **QUICK)
    assert agent.replay_buffer.beta == 0.4
    betas = []
    agent.learn(101, callback=lambda *_: betas.append(agent.replay_buffer.beta) is None)
    assert betas[49] == pytest.approx(0.7, abs=0.02)
    assert agent.replay_buffer.beta == pytest.approx(1.0)
    assert (np.diff(betas) >= 0).all()


@pytest.mark.parametrize("double_q", [True, False])
def test_targets_of_double_dqn(double_q):
    """The reward is always 0, so the target is the value of the action that the right network prefers."""
    agent = PrioritizedDuelingDQN("MlpPolicy", Walk(), double_q=double_q, gamma=0.5, **QUICK)
    with torch.no_grad():
        for network, advantages in ((agent.q_net, [0.0, 4.0]), (agent.q_net_target, [1.0, -1.0])):
            for parameter in network.parameters():
                parameter.zero_()
            network.q_net.advantage[-1].bias.copy_(torch.tensor(advantages))
    agent.lr_schedule = lambda _: 0.0
    zeros = np.zeros((1, 3), np.float32)
    agent.replay_buffer.add(zeros, zeros, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    agent.learn(1)  # only sets up what training needs
    agent.replay_buffer.reset()
    agent.replay_buffer.add(zeros, zeros, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    agent.train(gradient_steps=1, batch_size=4)
    target = 0.5 * (-1 if double_q else 1)
    error = agent.replay_buffer.tree[0] ** (1 / 0.6)
    assert error == pytest.approx(abs(target - (-2)), rel=1e-3)


def test_same_seed_same_bits():
    one, two = (PrioritizedDuelingDQN("MlpPolicy", "CartPole-v1", **QUICK).learn(100) for _ in range(2))
    np.testing.assert_array_equal(numbers(one), numbers(two))
    for argument in ({"alpha": 3}, {"beta": -1}, {"learning_rate": 0}, {"replay_buffer_class": dict}):
        with pytest.raises(ValueError, match=next(iter(argument))):
            PrioritizedDuelingDQN("MlpPolicy", Walk(), **argument)


def test_a_saved_agent_goes_on(tmp_path):
    agent = PrioritizedDuelingDQN("MlpPolicy", "CartPole-v1", alpha=0.7, beta=0.5, double_q=False, **QUICK).learn(100)
    agent.save(tmp_path / "agent")
    agent.save_replay_buffer(tmp_path / "memory")
    loaded = PrioritizedDuelingDQN.load(tmp_path / "agent", env=gym.make("CartPole-v1"))
    assert (loaded.alpha, loaded.beta, loaded.double_q) == (0.7, 0.5, False)
    assert (loaded.replay_buffer.alpha, loaded.replay_buffer.beta) == (0.7, 0.5)
    loaded.load_replay_buffer(tmp_path / "memory")
    np.testing.assert_array_equal(loaded.replay_buffer.tree.nodes, agent.replay_buffer.tree.nodes)
    loaded.set_logger(agent.logger)
    for same in (agent, loaded):
        same.train(gradient_steps=3, batch_size=16)
    np.testing.assert_array_equal(numbers(loaded), numbers(agent))
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded.num_timesteps == 150


def test_it_learns_a_small_task():
    """The action 'right' is rewarded: 7 for each episode, of which a random policy gets 3.5."""
    agent = PrioritizedDuelingDQN("MlpPolicy", Walk(), 1e-3, target_update_interval=50, **QUICK).learn(600)
    assert evaluate_policy(agent, agent.get_env(), 10)[0] == 7


@pytest.mark.full
def test_cart_pole():
    """A random policy balances for 22 steps on average; no 40 of its 2000 episodes in a row had a mean above 29."""
    env = Monitor(gym.make("CartPole-v1"))
    agent = PrioritizedDuelingDQN(
        "MlpPolicy", env, 1e-3, buffer_size=20_000, batch_size=64, train_freq=1, target_update_interval=500, seed=1
    )
    agent.learn(15_000, log_interval=None)
    assert np.mean(env.get_episode_rewards()[-20:]) >= 100
