"""Uncertainty is calibrated, and a person is asked when it is high."""

from __future__ import annotations

import time

import numpy as np
import pytest
from gymnasium import spaces
from serving import TASK

import bdpi
from bdpi.serve.person import Person
from bdpi.serve.task import RobotTask
from bdpi.serve.uncertainty import Ranks, Uncertainty


def test_ranks_are_uniform_whatever_the_values_are() -> None:
    ranks, generator = Ranks(), np.random.default_rng(0)
    found = [ranks.rank(float(value)) for value in generator.lognormal(0, 3, 3000)][500:]
    counts, _ = np.histogram(found, 5, (0, 1))
    assert counts == pytest.approx(np.full(5, len(found) / 5), rel=0.15)


def test_old_values_do_not_count() -> None:
    ranks = Ranks(seconds=60)
    for second in range(50):
        ranks.rank(100.0, float(second))
    assert ranks.rank(1.0, 55.0) == 0
    assert ranks.rank(1.0, 1000.0) == 0.5  # the first of its hour
    assert len(ranks) == 1


def test_a_state_that_was_learned_is_less_uncertain_than_one_that_was_not() -> None:
    robot = bdpi.envs.ControlLoop(spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2))
    agent = bdpi.BDPI("MlpPolicy", robot, seed=0, n_critics=8, batch_size=32, policy_kwargs={"net_arch": [16]})
    known, unknown = np.array([0.1, 0.1], np.float32), np.array([1, 1], np.float32)
    generator = np.random.default_rng(0)
    for step in range(200):
        seen = (0.2 * generator.random(2)).astype(np.float32)
        agent.observe(seen, step % 2, float(step % 2), seen, terminated=True, truncated=False)
        agent.learn_once()
    uncertainty = Uncertainty(agent)
    disagreements = []
    for state in (known, unknown):
        uncertainty(state, np.array([0.5, 0.5], np.float32))
        disagreements.append(uncertainty.disagreement)
    assert disagreements[0] < disagreements[1]
    q = agent.agent_learner.q_values(np.stack([known, unknown]))
    assert disagreements == pytest.approx(q.std(axis=0).mean(axis=1), rel=1e-4)  # of the agent's own critics


def test_a_person_is_asked_for_a_while_and_then_not_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    person = Person(RobotTask.model_validate({**TASK, "ask_above": 0.8, "ask_seconds": 10}))
    assert person.ask(0.7) == "policy"
    assert person.ask(0.9) == "ask"
    assert person.ask(0.1) == "ask"  # the question stands until it is settled
    person.answered()
    assert person.ask(0.1) == "policy"
    assert person.ask(0.9) == "ask"
    clock[0] += 9
    assert person.ask(0.9) == "ask"
    clock[0] += 2
    assert person.ask(0.9) == "fallback"
    clock[0] += 99
    assert person.ask(0.9) == "policy"
    clock[0] += 2
    assert person.ask(0.9) == "ask"
