"""Runs that are trained together equal runs that are trained alone, bit for bit."""

import copy
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

from bdpi import ABCDQN, BDPI, Population
from bdpi.agents.journal import Transition
from bdpi.learner import fused, nvrtc
from bdpi.learner.cohort import Cohorts
from bdpi.learner.memory import NAMES

pytestmark = pytest.mark.usefixtures("fused_kernels")
DEVICE = "cuda" if nvrtc.is_available() else "cpu"

SMALL = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 1, "policy_kwargs": {"net_arch": [16]}}
CLASSES = [BDPI, BDPI, ABCDQN, BDPI]  # ABCDQN has no actor, and so a cohort of its own
STEPS = [20, 24, 24, 24]  # the first one leaves early
# Learning rates and alphas are numbers that may differ within a cohort; iterations are another program.
OTHERS = [{}, {"learning_rate": 1e-3, "critic_step_size": 0.5}, {}, {"critic_iterations": 2}]


def make(number: int, env: str = "FrozenLake-v1", **arguments):
    arguments = {**SMALL, **OTHERS[number], **arguments}
    return CLASSES[number]("MlpPolicy", env, seed=number, **arguments)


def state_of(agent) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}


def run_together(cohorts: Cohorts, numbers: list[int], env: str, **arguments) -> dict[int, dict[str, bytes]]:
    lock, found = threading.Lock(), {}

    def run(number: int) -> None:
        with cohorts.run():
            with lock:
                agent = make(number, env, device="cpu", **arguments)
            assert agent.learner_name == "cohort"
            found[number] = state_of(agent.learn(STEPS[number]))

    threads = [threading.Thread(target=run, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return found


def test_together_as_alone():
    alone = [state_of(make(i, learner="fused", device=DEVICE).learn(STEPS[i])) for i in range(4)]
    assert run_together(Cohorts(4, DEVICE), [0, 1, 2, 3], "FrozenLake-v1") == dict(enumerate(alone))


def test_who_else_is_among_many_does_not_matter():
    large = {"policy_kwargs": {"net_arch": [40]}}
    together = run_together(Cohorts(40, DEVICE), [0, 1], "CartPole-v1", **large)
    alone = run_together(Cohorts(2, DEVICE, runs=40), [0], "CartPole-v1", **large)
    assert together[0] == alone[0]
    few = run_together(Cohorts(40, DEVICE, runs=1), [0], "CartPole-v1", **large)
    assert few[0] != together[0], "other kernels round differently"


def test_a_population_of_agents():
    configs = [{"learning_rate": 1e-3}, {}, {"trust_region": 0.2, "buffer_size": 300}, {"n_critics": 3}]
    alone = [
        BDPI("MlpPolicy", Monitor(gym.make("FrozenLake-v1")), learner="fused", device=DEVICE,
             **{**SMALL, "seed": 5 + number, "buffer_size": 200, **config}).learn(30)
        for number, config in enumerate(configs)
    ]  # fmt: skip
    together = Population(BDPI, "FrozenLake-v1", 4, configs, seed=5, device=DEVICE, **{**SMALL, "buffer_size": 200})
    assert [agent.learner_name for agent in together.agents] == ["cohort"] * 4
    together.learn(20)
    together.learn(10, reset_num_timesteps=False)
    assert [state_of(agent) for agent in together.agents] == [state_of(agent) for agent in alone]
    assert together.returns() == [agent.get_env().envs[0].get_episode_rewards() for agent in alone]


def test_populations_say_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="one entry for each of the 3 agents, got 1"):
        Population(BDPI, "FrozenLake-v1", 3, [{}], device=DEVICE)
    with pytest.raises(ValueError, match="at least one"):
        Population(BDPI, "FrozenLake-v1", 0)
    rates = [{}, {"learning_rate": lambda progress: -1.0}]
    several = Population(BDPI, "FrozenLake-v1", 2, rates, device=DEVICE, **SMALL)
    with pytest.raises(RuntimeError, match="1 of 2 agents failed; agent 1: learning_rate"):
        several.learn(30)
    assert several.agents[0].num_timesteps == 30
    several.save(tmp_path, include_buffer=True)
    assert len(BDPI.load(tmp_path / "agent-0").replay_buffer) == 30


def test_a_failure_reaches_all_members(monkeypatch):
    def fail(*arguments):
        raise ValueError("out of memory")

    monkeypatch.setattr(fused.FusedNetworks, "train_critics", fail)
    population, errors = Cohorts(2, DEVICE), []

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
    population = Cohorts(1, DEVICE)
    with population.run():
        make(0, device="cpu")
        with pytest.raises(RuntimeError, match="no place for more than 1 runs"):
            make(0, device="cpu")
    with population.run():
        agent = make(0, device="cpu").learn(20)
    assert np.isfinite(agent.policy.probabilities(np.arange(16))).all()


def check_memory_on_device(agent) -> None:
    """What the kernels learn from is what the agent remembers."""
    assert agent.learner_name == "cohort"
    held, on_device = agent.replay_buffer.transitions(), agent.agent_learner.learner.cohort._memory
    for name in NAMES:
        if (expected := getattr(held, name)) is None:
            continue
        found = getattr(on_device, name)[agent.agent_learner.learner.slot].cpu().numpy()[: len(expected)]
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=name)


@pytest.mark.parametrize("steps", [30, 57])  # a memory of 40 that is not full yet, and one that is
def test_a_saved_run_goes_on_with_all_of_its_memory(steps, tmp_path):
    with Cohorts(1, DEVICE).run():
        agent = make(0, buffer_size=40, device="cpu").learn(steps)
        check_memory_on_device(agent)
        agent.save(tmp_path / "agent", include_buffer=True)
    with Cohorts(1, DEVICE).run():
        agent = BDPI.load(tmp_path / "agent", gym.make("FrozenLake-v1"), device="cpu")
        check_memory_on_device(agent.learn(1, reset_num_timesteps=False))


class Noise(gym.Env):
    """Observations without meaning, in any space; from some step on it says which actions are allowed."""

    def __init__(self, space: spaces.Space | None = None, masks_from: int | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32) if space is None else space
        self.action_space = spaces.Discrete(3)
        self._masks_from, self._steps = masks_from, 0

    def _seen(self):
        has_masks = self._masks_from is not None and self._steps >= self._masks_from
        mask = np.roll([True, True, False], self._steps)
        return self.observation_space.sample(), {"action_mask": mask} if has_masks else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self._seen()

    def step(self, action):
        self._steps += 1
        observation, info = self._seen()
        return observation, float(action == 1), self._steps % 9 == 0, False, info


def alone_and_together(makers, steps=40, **arguments) -> None:
    """Agents that learn in a population learn what they learn alone, each in an environment of its own kind."""
    arguments = {**SMALL, "buffer_size": 30, **arguments}
    configs = [{"seed": number} for number in range(len(makers))]
    alone = [
        BDPI("MlpPolicy", Monitor(made()), learner="fused", device=DEVICE, **arguments, **config).learn(steps)
        for made, config in zip(makers, configs, strict=True)
    ]
    environments = iter(makers)
    together = Population(BDPI, lambda: next(environments)(), len(makers), configs, device=DEVICE, **arguments)
    together.learn(steps)
    assert [agent.learner_name for agent in together.agents] == ["cohort"] * len(makers)
    assert [state_of(agent) for agent in together.agents] == [state_of(agent) for agent in alone]


@pytest.mark.filterwarnings("ignore:.*action mask")
@pytest.mark.parametrize("masks", [(25, 25), (None, 0), (30, None)])
def test_masks_that_some_have_and_some_have_late(masks):
    alone_and_together([lambda start=start: Noise(masks_from=start) for start in masks])


@pytest.mark.filterwarnings("ignore:.*action mask")
def test_masks_in_memories_that_grow():
    configs = [{"buffer_size": 25}, {"buffer_size": 35}]
    alone = [
        BDPI("MlpPolicy", Monitor(Noise(masks_from=20)), learner="fused", device=DEVICE, seed=k, **SMALL, **config)
        for k, config in enumerate(configs)
    ]
    together = Population(BDPI, lambda: Noise(masks_from=20), 2, configs, device=DEVICE, **SMALL)
    together.learn(40)
    assert [state_of(agent) for agent in together.agents] == [state_of(agent.learn(40)) for agent in alone]
    for agent in together.agents:
        check_memory_on_device(agent)


# Each of them is four inputs: there is one program to compile for all.
SPACES = [
    spaces.Box(-1, 1, (4,), np.float64),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.MultiDiscrete([2, 2]),
    spaces.MultiBinary(4),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_that_have_to_be_converted(space):
    alone_and_together([lambda: Noise(copy.deepcopy(space))] * 2, steps=25)


def test_who_has_demonstrations_learns_without_the_others():
    demonstrated = make(0, learner="fused", device=DEVICE, buffer_size=40)
    together = Population(BDPI, "FrozenLake-v1", 3, device=DEVICE, **{**SMALL, "buffer_size": 40})
    first, second, third = np.arange(3)[:, None]
    steps = [Transition(first, 1, 0.0, second, False, False), Transition(second, 2, 1.0, third, True, False)]
    for agent in (demonstrated, together.agents[0]):
        agent.replay_buffer.add_demonstrations(steps)
    together.learn(40)
    assert state_of(together.agents[0]) == state_of(demonstrated.learn(40))
    check_memory_on_device(together.agents[1])


def test_parameters_that_are_set_while_acting_are_learned_from():
    agents = [make(0, learner="fused", device=DEVICE)]
    with Cohorts(1, DEVICE).run():
        agents.append(make(0, device="cpu"))
        for agent in agents:
            agent.learn(18)
            state = agent.policy.state_dict()
            policy = {name: 0 * part if name.startswith("actor") else part for name, part in state.items()}
            agent.policy.load_state_dict(policy)
            agent.learn(3, reset_num_timesteps=False)
    assert state_of(agents[0]) == state_of(agents[1])


def test_a_memory_that_is_emptied_is_empty_on_the_device():
    with Cohorts(1, DEVICE).run():
        agent = make(0, device="cpu", buffer_size=40).learn(57)
        agent.replay_buffer.reset()
        assert len(agent.replay_buffer) == 0
        check_memory_on_device(agent.learn(30, reset_num_timesteps=False))


def test_kernels_are_not_given_the_memory_of_another_device():
    other = "cpu" if DEVICE == "cuda" else "meta"
    assert not fused.runs_on(torch.device(other))
    with Cohorts(1, other).run():
        assert make(0, device="cpu").learner_name != "fused"
