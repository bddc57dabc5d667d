"""Runs that are trained together equal runs that are trained alone, bit for bit."""

import threading

import numpy as np
import pytest

from bdpi import ABCDQN, BDPI
from bdpi.learner import fused, nvrtc
from bdpi.learner.cohort import Population

pytestmark = pytest.mark.usefixtures("fused_kernels")
DEVICE = "cuda" if nvrtc.is_available() else "cpu"

SMALL = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 1, "policy_kwargs": {"net_arch": [16]}}
CLASSES = [BDPI, BDPI, ABCDQN, BDPI]  # ABCDQN has no actor, and so a cohort of its own
STEPS = [20, 24, 24, 24]  # the first one leaves early
# Learning rates and alphas are numbers that may differ within a cohort; iterations are another program.
OTHERS = [{}, {"learning_rate": 1e-3, "critic_step_size": 0.5}, {}, {"critic_iterations": 2}]


def make(number: int, **arguments):
    arguments = {**SMALL, **OTHERS[number], **arguments}
    return CLASSES[number]("MlpPolicy", "FrozenLake-v1", seed=number, **arguments)


def state_of(agent) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}


def test_together_as_alone():
    alone = [state_of(make(i, learner="fused", device=DEVICE).learn(STEPS[i])) for i in range(4)]
    population, lock, found = Population(4, DEVICE), threading.Lock(), {}

    def run(number: int) -> None:
        with population.run():
            with lock:
                agent = make(number, device="cpu")
            assert agent.learner_name == "cohort"
            found[number] = state_of(agent.learn(STEPS[number]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == dict(enumerate(alone))


def test_a_failure_reaches_all_members(monkeypatch):
    def fail(*arguments):
        raise ValueError("out of memory")

    monkeypatch.setattr(fused.FusedNetworks, "epoch", fail)
    population, errors = Population(2, DEVICE), []

    def run(number: int) -> None:
        with population.run():
            agent = make(number, device="cpu")
            try:
                agent.learn(30)
            except RuntimeError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=run, args=(0,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(errors) == 2
    assert "out of memory" in errors[0]


def test_there_are_as_many_places_as_were_made():
    population = Population(1, DEVICE)
    with population.run():
        make(0, device="cpu")
        with pytest.raises(RuntimeError, match="no place for more than 1 runs"):
            make(0, device="cpu")
    with population.run():
        agent = make(0, device="cpu").learn(20)
    assert np.isfinite(agent.policy.probabilities(np.arange(16))).all()
