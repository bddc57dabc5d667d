"""Agents whose policies depend on what they see, for the tests of exported policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bdpi import BDPI, TabularBDPI
from small import QUICK, quick_agent

N = 1000
#: Where the best action is not more probable by this much, rounding may decide.
CLOSE = 1e-5


def decisive_agent(env: Any, policy: str = "MlpPolicy", **arguments: Any) -> BDPI:
    """An agent that has seen a little, and whose actor has random parameters, larger than usual."""
    agent = quick_agent(env, policy, batch_size=32, **arguments)
    agent.learn(40)  # more than a batch, so that the agent knows its scales
    actor = agent.policy.actor
    assert actor is not None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in actor.parameters():
            scale = 2 / np.sqrt(parameter[0].numel()) if parameter.ndim > 1 else 0.2
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return agent


def tabular_agent(env: Any) -> TabularBDPI:
    """One whose table is random."""
    agent = TabularBDPI("MlpPolicy", env, seed=0, **QUICK).learn(40)
    table = agent.agent_learner.learner.state_dict()["actor"]
    table[:] = np.random.default_rng(1).dirichlet(np.ones(table.shape[1]), len(table))
    return agent


def assert_alike(agent: BDPI, seen: Any, probabilities: Any, actions: Any) -> None:
    """What was exported does what the agent does.

    :param seen: observations as the agent sees them
    """
    expected = agent.policy.probabilities(seen)
    predicted, _ = agent.predict(seen, deterministic=True)
    assert probabilities.shape == expected.shape == (N, agent.action_space.n)
    assert np.abs(probabilities - expected).max() < CLOSE
    ordered = np.sort(expected, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > CLOSE
    assert clear.sum() > 0.99 * N
    assert np.array_equal(actions[clear], predicted[clear])
    assert np.ptp(expected[:, 0]) > 100 * CLOSE  # a policy that always does the same would be exported too easily
