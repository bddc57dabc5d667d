"""Runs that are trained together equal runs that are trained alone, bit for bit."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

from bdpi import ABCDQN, BDPI, Population
from bdpi.agents.journal import Transition
from bdpi.agents.learners import learn_together
from bdpi.learner import fused, nvrtc
from bdpi.learner.fused import FusedNetworks
from bdpi.learner.memory import NAMES
from bdpi.learner.stack import Stacks

pytestmark = pytest.mark.usefixtures("fused_kernels")
DEVICE = "cuda" if nvrtc.is_available() else "cpu"

SMALL = {"n_critics": 2, "batch_size": 8, "critic_iterations": 1, "fit_steps": 1, "policy_kwargs": {"net_arch": [16]}}
CLASSES = [BDPI, BDPI, ABCDQN, BDPI]  # ABCDQN has no actor, and so a stack of its own
# Learning rates and alphas are numbers that may differ within a stack; iterations are another program.
OTHERS = [{}, {"learning_rate": 1e-3, "critic_step_size": 0.5}, {}, {"critic_iterations": 2}]


def make(number: int, env: str = "FrozenLake-v1", **arguments):
    arguments = {**SMALL, **OTHERS[number], **arguments}
    return CLASSES[number]("MlpPolicy", env, **{"seed": number, **arguments})


def state_of(agent) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}


def joined(agent, stacks: Stacks):
    assert learn_together(agent, stacks) is not None
    assert agent.learner_name == "population"
    return agent


def test_who_else_is_among_many_does_not_matter():
    def learned(n: int, runs: int) -> dict[str, bytes]:
        several = Population(BDPI, "CartPole-v1", 1, device=DEVICE, **SMALL)
        stacks, large = Stacks(n, DEVICE, runs), {"policy_kwargs": {"net_arch": [40]}}
        several.agents = [joined(make(0, "CartPole-v1", **large, seed=seed), stacks) for seed in range(n)]
        return state_of(several.learn(12).agents[0])

    assert learned(1, 40) == learned(3, 40)
    assert learned(1, 1) != learned(1, 40), "other kernels round differently"


def test_agents_of_several_kinds_learn_as_alone():
    stacks, agents = Stacks(4, DEVICE), [make(number) for number in range(4)]
    alone = [state_of(make(number, learner="fused", device=DEVICE).learn(14)) for number in range(4)]
    several = Population(BDPI, "FrozenLake-v1", 1, device=DEVICE, **SMALL)
    several.agents = [joined(agent, stacks) for agent in agents]
    several.learn(14)
    assert [state_of(agent) for agent in several.agents] == alone
    assert len(stacks.stacks) == 3


def test_a_population_of_agents():
    configs = [{"learning_rate": 1e-3}, {}, {"trust_region": 0.2, "buffer_size": 14}, {"n_critics": 3}]
    alone = [
        BDPI("MlpPolicy", Monitor(gym.make("FrozenLake-v1")), learner="fused", device=DEVICE,
             **{**SMALL, "seed": 5 + number, "buffer_size": 12, **config}).learn(16)
        for number, config in enumerate(configs)
    ]  # fmt: skip
    together = Population(BDPI, "FrozenLake-v1", 4, configs, seed=5, device=DEVICE, **{**SMALL, "buffer_size": 12})
    assert [agent.learner_name for agent in together.agents] == ["population"] * 4
    together.learn(10)
    together.learn(6, reset_num_timesteps=False)
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
        several.learn(12)
    assert several.agents[0].num_timesteps == 12
    several.save(tmp_path, include_buffer=True)
    assert len(BDPI.load(tmp_path / "agent-0").replay_buffer) == 12


def test_a_failure_reaches_those_who_are_trained_together(monkeypatch):
    configs = [{"n_critics": 3}, {}, {}]
    several = Population(BDPI, "FrozenLake-v1", 3, configs, device=DEVICE, **SMALL)
    train = FusedNetworks.train_critics

    def train_or_fail(networks, critics, *others):
        if critics.parameters.shape[1] == 2:
            raise ValueError("out of memory")
        train(networks, critics, *others)

    with monkeypatch.context() as patch:
        patch.setattr(FusedNetworks, "train_critics", train_or_fail)
        with pytest.raises(RuntimeError, match="2 of 3 agents failed; agent 1: out of memory"):
            several.learn(10)
    assert [agent.num_timesteps for agent in several.agents] == [10, 8, 8]
    several.learn(3, reset_num_timesteps=False)
    for agent in several.agents:
        check_memory_on_device(agent)


def test_there_are_as_many_places_as_were_made():
    stacks = Stacks(1, DEVICE)
    first, second = (joined(make(0), stacks) for _ in range(2))
    first.learn(10)
    with pytest.raises(RuntimeError, match="no place for more than 1 runs"):
        second.learn(10)
    before, seen = state_of(first), np.arange(16)
    acted = first.policy.probabilities(seen)
    first.agent_learner.learner.leave()
    assert not stacks.stacks
    assert state_of(first) == before
    np.testing.assert_array_equal(first.policy.probabilities(seen), acted)
    second.learn(10)


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
def test_agents_act_with_what_they_have_learned(agent_class):
    agent = joined(agent_class("MlpPolicy", "CartPole-v1", seed=1, **SMALL), Stacks(1, DEVICE)).learn(12)
    alone = agent_class("MlpPolicy", "CartPole-v1", seed=1, learner="fused", device=DEVICE, **SMALL).learn(12)
    seen = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for predict in ("q_values", "behaviour"):
        found, expected = (getattr(each.agent_learner, predict)(seen) for each in (agent, alone))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def check_memory_on_device(agent) -> None:
    """What the kernels learn from is what the agent remembers."""
    held, place = agent.replay_buffer.transitions(), agent.agent_learner.learner.place
    for name in NAMES:
        if (expected := getattr(held, name)) is not None:
            found = getattr(place.stack._memory, name)[place.row].cpu().numpy()[: len(expected)]
            np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=name)


# A memory that is not full yet, one that is, and one that arrives in parts.
@pytest.mark.parametrize(("steps", "settings"), [(10, {}), (20, {}), (600, {"buffer_size": 500, "train_freq": 300})])
def test_a_saved_run_goes_on_with_all_of_its_memory(steps, settings, tmp_path):
    agent = joined(make(0, **{"buffer_size": 14, **settings}), Stacks(1, DEVICE)).learn(steps)
    check_memory_on_device(agent)
    agent.save(tmp_path / "agent", include_buffer=True)
    agent = joined(BDPI.load(tmp_path / "agent", gym.make("FrozenLake-v1"), device="cpu"), Stacks(1, DEVICE))
    check_memory_on_device(agent.learn(agent.train_freq.frequency, reset_num_timesteps=False))


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


def alone_and_together(makers, steps=16, **arguments) -> None:
    """Agents that learn in a population learn what they learn alone, each in an environment of its own kind."""
    arguments = {**SMALL, "buffer_size": 12, **arguments}
    configs = [{"seed": number} for number in range(len(makers))]
    alone = [
        BDPI("MlpPolicy", Monitor(made()), learner="fused", device=DEVICE, **arguments, **config).learn(steps)
        for made, config in zip(makers, configs, strict=True)
    ]
    environments = iter(makers)
    together = Population(BDPI, lambda: next(environments)(), len(makers), configs, device=DEVICE, **arguments)
    together.learn(steps)
    assert [agent.learner_name for agent in together.agents] == ["population"] * len(makers)
    assert [state_of(agent) for agent in together.agents] == [state_of(agent) for agent in alone]


@pytest.mark.filterwarnings("ignore:.*action mask")
@pytest.mark.parametrize("masks", [(11, 11), (None, 0), (13, None)])
def test_masks_that_some_have_and_some_have_late(masks):
    alone_and_together([lambda start=start: Noise(masks_from=start) for start in masks])


@pytest.mark.filterwarnings("ignore:.*action mask")
def test_masks_in_memories_of_several_sizes():
    configs = [{"buffer_size": 10}, {"buffer_size": 14}]
    alone = [
        BDPI("MlpPolicy", Monitor(Noise(masks_from=9)), learner="fused", device=DEVICE, seed=k, **SMALL, **config)
        for k, config in enumerate(configs)
    ]
    together = Population(BDPI, lambda: Noise(masks_from=9), 2, configs, device=DEVICE, **SMALL)
    together.learn(16)
    assert [state_of(agent) for agent in together.agents] == [state_of(agent.learn(16)) for agent in alone]
    for agent in together.agents:
        check_memory_on_device(agent)


# Each of them is four inputs: there is one program to compile for all.
SPACES = [
    spaces.Box(-1, 1, (4,), np.float64),
    spaces.MultiDiscrete([2, 2]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_that_have_to_be_converted(space):
    alone_and_together([lambda: Noise(copy.deepcopy(space))] * 2, steps=12)


def test_demonstrations_are_learned_from():
    demonstrated = make(0, learner="fused", device=DEVICE, buffer_size=12)
    together = Population(BDPI, "FrozenLake-v1", 3, device=DEVICE, **{**SMALL, "buffer_size": 12})
    first, second, third = np.arange(3)[:, None]
    steps = [Transition(first, 1, 0.0, second, False, False), Transition(second, 2, 1.0, third, True, False)]
    for agent in (demonstrated, together.agents[0]):
        agent.replay_buffer.add_demonstrations(steps)
    together.learn(14)
    assert state_of(together.agents[0]) == state_of(demonstrated.learn(14))
    check_memory_on_device(together.agents[1])


def test_parameters_that_are_set_while_acting_are_learned_from():
    agents = [make(0, learner="fused", device=DEVICE), joined(make(0), Stacks(1, DEVICE))]
    for agent in agents:
        agent.learn(10)
        state = agent.policy.state_dict()
        policy = {name: 0 * part if name.startswith("actor") else part for name, part in state.items()}
        agent.policy.load_state_dict(policy)
        agent.learn(3, reset_num_timesteps=False)
    assert state_of(agents[0]) == state_of(agents[1])


def test_a_memory_that_is_emptied_is_empty_on_the_device():
    agent = joined(make(0, buffer_size=14), Stacks(1, DEVICE)).learn(20)
    agent.replay_buffer.reset()
    assert len(agent.replay_buffer) == 0
    check_memory_on_device(agent.learn(12, reset_num_timesteps=False))


def test_a_run_that_becomes_another_kind_goes_on():
    agents = [make(0, learner="fused", device=DEVICE), joined(make(0), Stacks(1, DEVICE))]
    for agent in agents:
        agent.learn(10)
        agent.critic_iterations = 3
        agent.learn(3, reset_num_timesteps=False)
    assert state_of(agents[0]) == state_of(agents[1])


def test_kernels_are_not_given_the_memory_of_another_device():
    assert not fused.runs_on(torch.device("cpu" if DEVICE == "cuda" else "meta"))
