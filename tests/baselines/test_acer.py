"""ACER as an SB3 algorithm: Retrace, trust region, memory, saving, learning."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from bdpi.baselines import ACER
from bdpi.baselines.acer import retrace
from small import Walk

GAMMA = 0.9


def numbers(agent: ACER) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(agent.policy.parameters()).detach().numpy()


def small(n_envs: int = 1, **arguments) -> ACER:
    settings = {"replay_start": 40, "n_steps": 10, "seed": 0, **arguments}
    return ACER("MlpPolicy", make_vec_env(lambda: Walk(None), n_envs), **settings)


def columns(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


def test_retrace_of_the_policys_own_steps_are_discounted_returns():
    """Where the critic knows what the policy gets, and actions were drawn from it."""
    rewards, states = columns(1.0, 2.0, 3.0), columns(0.0, 0.0, 0.0, 10.0)
    found = retrace(rewards, columns(0.0, 0.0, 0.0), states[:-1], states, torch.ones(3, 1), GAMMA)
    last = 3 + GAMMA * 10
    assert torch.allclose(found, columns(1 + GAMMA * (2 + GAMMA * last), 2 + GAMMA * last, last))


def test_retrace_ends_where_episodes_end():
    found = retrace(
        columns(1.0, 2.0), columns(1.0, 0.0), columns(5.0, 5.0), columns(5.0, 5.0, 7.0), torch.ones(2, 1), 1.0
    )
    assert torch.allclose(found, columns(1.0, 9.0))


def test_retrace_trusts_the_critic_where_the_policy_would_act_otherwise():
    """An action that is never taken now says nothing about the states before it."""
    states = columns(4.0, 6.0, 8.0)
    found = retrace(columns(0.0, 100.0), columns(0.0, 0.0), columns(3.0, 3.0), states, columns(1.0, 0.0), 1.0)
    assert torch.allclose(found, columns(6.0, 108.0))


def test_an_update_stays_within_the_trust_region():
    """The divergence from the average policy grows along the update's direction by no more than the limit."""
    agent = small(trust_region=0.01)
    agent.learn(200)
    segment = agent._memory[-1]
    with torch.no_grad():
        probabilities, values = agent._of_both(segment.observations)
        before, _ = agent.average.probabilities_and_values(segment.observations[:-1].flatten(0, 1))
    states = (probabilities * values).sum(-1)
    now = probabilities[:-1]
    bad = states[:-1] - 100  # would take the policy far from what it did
    direction = agent._direction(segment, now, values[:-1], states[:-1], bad, now / segment.behaviour)
    growth = (direction * -before.unflatten(0, now.shape[:2]) / now).sum(-1)
    assert growth.max() <= 0.01 + 1e-3
    free = small(trust_region=1e9)._direction(segment, now, values[:-1], states[:-1], bad, now / segment.behaviour)
    assert (free - direction).abs().max() > 1


@pytest.mark.parametrize("space", [None, spaces.Discrete(5)])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_it_learns_from_memory(space, n_envs):
    agents = [
        ACER(
            "MlpPolicy", make_vec_env(lambda: Walk(space), n_envs), n_steps=10, seed=0, replay_start=40, replay_ratio=k
        )
        for k in (0.01, 4.0)
    ]
    for agent in agents:
        agent.learn(100 * n_envs)
        assert np.isfinite(numbers(agent)).all()
    assert (numbers(agents[0]) != numbers(agents[1])).any()


def test_the_memory_is_as_large_as_it_was_asked_to_be():
    agent = small(buffer_size=50)
    agent.learn(200)
    assert len(agent._memory) == 5


def test_the_same_seed_gives_the_same_agent():
    first, second = (numbers(small(n_envs=2).learn(200)) for _ in range(2))
    assert (first == second).all()


def test_it_is_saved_with_its_average_policy(tmp_path: Path):
    agent = small()
    agent.learn(100)
    agent.save(tmp_path / "agent")
    loaded = ACER.load(tmp_path / "agent", env=agent.get_env())
    assert (numbers(loaded) == numbers(agent)).all()
    for one, other in zip(loaded.average.parameters(), agent.average.parameters(), strict=True):
        assert torch.equal(one, other)
    loaded.learn(50, reset_num_timesteps=False)


def test_it_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="replay_ratio"):
        small(replay_ratio=-1.0)
    with pytest.raises(AssertionError, match="Discrete"):
        ACER("MlpPolicy", "Pendulum-v1")


@pytest.mark.full
def test_it_learns_cart_pole():
    agent = ACER("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=1), seed=1, replay_start=1_000)
    agent.learn(30_000)
    mean, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=10)
    assert mean > 150
