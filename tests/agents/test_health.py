"""A run that does not learn says why, and one that learns says nothing."""

from __future__ import annotations

import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bdpi
from bdpi.agents import health
from bdpi.agents.health import Returns
from small import QUICK, Walk, epochs_of, fingerprint, quick_agent

#: So many transitions, and few epochs: for rules that look at the memory only.
SKIM: dict[str, Any] = {"buffer_size": 10_000, "train_freq": 50}


def codes(agent: bdpi.BDPI) -> set[str]:
    return {finding.code for finding in agent.health()}


def learned(env: gym.Env, steps: int, **arguments: Any) -> bdpi.BDPI:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bdpi.HealthWarning)
        return quick_agent(env, **arguments).learn(steps, log_interval=None)


# -- small worlds, each with one fault


def with_number(place: int, number: Any) -> Any:
    """One of three sensors shows another number."""

    def seen(env: Walk, observation: Any) -> Any:
        observation[place] = number(observation[place])
        return observation

    return seen


STUCK = {"seen": with_number(1, lambda usual: 0.25)}
CLIPPED = {
    "seen": with_number(2, lambda usual: min(1.0, 15 * (usual + 1)))
}  # it measures up to 30, and is cut off at 1
BLIND = {"seen": lambda env, observation: np.zeros(3, np.float32)}
MODELESS = {"seen": lambda env, observation: {**observation, "mode": 1}}
UNPAID = {"pays": lambda env, action: 0.0}
ENDLESS = {"length": 10**9}
TURNING = {"pays": lambda env, action: float(action) if env.episodes <= 60 else -1.0}  # then, nothing pays any more
PARTS = spaces.Dict({"eye": spaces.Box(-1, 1, (2,), np.float32), "mode": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("fault", "steps", "code", "says"),
    [
        (STUCK, 1100, "observations-constant", "dimension 1 .*0.25"),
        (BLIND, 1100, "observations-constant", "sees nothing"),
        (CLIPPED, 1100, "observations-saturated", "dimension 2 "),
        ({"space": PARTS, **MODELESS}, 1100, "observations-constant", "'mode'"),
        (UNPAID, 5100, "rewards-equal", " 0: "),
    ],
)
def test_what_cannot_be_learned_from_is_named(fault, steps, code, says):
    policy = "MultiInputPolicy" if "space" in fault else "MlpPolicy"
    (finding,) = learned(Walk(**fault), steps, policy=policy, **SKIM).health()
    assert finding.code == code
    assert re.search(says, finding.message)
    assert finding.remedy


@pytest.mark.parametrize("space", [None, PARTS])
def test_a_choice_that_is_never_made_is_no_sensor(space):
    env = Walk(space, pays=lambda env, action: 1.0, says=lambda env: {"action_mask": [0, 1, 1, 1, 1]})
    env.action_space = spaces.MultiDiscrete([3, 2])
    assert learned(env, 1100, policy="MultiInputPolicy" if space else "MlpPolicy", **SKIM).health() == []


def test_a_step_of_several_decisions_counts_once():
    env = Walk(**STUCK, pays=lambda env, action: 1.0)
    env.action_space = spaces.MultiDiscrete([2, 2])
    (finding,) = learned(env, 1100, **SKIM).health()
    assert "dimension 1 never changed in 1100 transitions" in finding.message


def test_an_episode_that_never_ends_also_where_learning_waits_for_the_end():
    agent = quick_agent(Walk(**ENDLESS), train_freq=(1, "episode"))
    with pytest.warns(bdpi.HealthWarning, match="10000 steps"):
        agent.learn(10_050, callback=lambda *_: agent.num_timesteps < 10_050, log_interval=None)
    assert codes(agent) == {"episode-endless"}


def test_an_actor_that_is_certain_of_something_bad():
    few = {"n_critics": 4, "buffer_size": 2000, "gradient_steps": 8}
    plain = {"observation_size": None, "return_size": None, "persistence": 1.0}
    agent = learned(Walk(**TURNING), 83 * 7, **few, **plain, learning_rate=1e-3, trust_region=0.05)
    assert codes(agent) == {"certain-but-poor"}


@pytest.fixture(scope="module")
def hardly_learning() -> bdpi.BDPI:
    few = {"n_critics": 8, "fit_steps": 1, "critic_iterations": 1}
    return learned(Walk(), 620, **few, learning_rate=1e-7, buffer_size=2000, gradient_steps=10, seed=1)


def test_q_values_far_from_what_followed(hardly_learning: bdpi.BDPI):
    """Critics that have gone astray."""
    assert "critics-disagree" in codes(hardly_learning)
    before = hardly_learning.agent_learner.state_dict()
    astray = {
        name: 1000 * torch.clone(array) if name == "critics.parameters" else array for name, array in before.items()
    }
    hardly_learning.agent_learner.load_state_dict(astray)
    found = {finding.code: finding.message for finding in hardly_learning.health()}
    hardly_learning.agent_learner.load_state_dict(before)
    assert "far beyond" in found["values-far"]


# -- runs that learn


@pytest.mark.parametrize("environment", ["CartPole-v1", "FrozenLake8x8-v1", "Table-v0"])
def test_a_run_that_learns_says_nothing(environment):
    with warnings.catch_warnings():
        warnings.simplefilter("error", bdpi.HealthWarning)
        agent = bdpi.BDPI(
            "MlpPolicy",
            environment,
            1e-3,
            seed=0,
            gradient_steps=3,
            return_size=100.0,  # few steps at a high rate
            **{**QUICK, "n_critics": 8, "buffer_size": 5000},
        )
        agent.learn(2200, log_interval=None)
    assert epochs_of(agent) > health.ENOUGH_EPOCHS
    assert agent.health() == []


@pytest.mark.full
@pytest.mark.parametrize(("environment", "seed"), [("CartPole-v1", 2), ("FrozenLake-v1", 1), ("Table-v0", 1)])
def test_a_run_that_has_learned_for_long_says_nothing(environment, seed):
    scales = {"observation_size": 1.0, "return_size": 1.0}
    agent = bdpi.BDPI(
        "MlpPolicy", environment, 5e-4, seed=seed, n_critics=8, fit_steps=5, batch_size=64, n_threads=1, **scales
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", bdpi.HealthWarning)
        agent.learn(8000, log_interval=None)
    assert agent.episodes.differ  # there was something to learn
    assert agent.health() == []


def test_steps_that_all_cost_the_same_are_no_finding_where_episodes_end():
    """As in CartPole: longer episodes are worth more."""

    class Short(Walk):
        def step(self, action):
            return super().step(action)[0], 1.0, self.time >= 2 + 3 * action, False, {}

    assert codes(learned(Short(), 5100, **SKIM)) == set()


def test_an_episode_may_be_as_long_as_its_time_limit():
    gym.register("Marathon-v0", entry_point=lambda: Walk(**ENDLESS), max_episode_steps=40_000)
    assert codes(learned(gym.make("Marathon-v0"), 10_050, **SKIM)) == set()


def test_flags_and_pictures_neither_saturate_nor_stand_still():
    flag = np.zeros((2000, 1), np.float32)
    flag[::50] = 1
    space = spaces.Box(0, 1, (1,), np.float32)
    assert health.observation_findings(flag, space, 100) == []
    force = flag * np.linspace(0.1, 0.9, 2000, dtype=np.float32)[:, None]
    assert health.observation_findings(force, space, 100) == []
    picture = np.zeros((1000, 3, 8, 8), np.uint8)
    picture[:, :, 4, 4] = np.arange(1000)[:, None] % 256
    assert health.observation_findings(picture, spaces.Box(0, 255, (3, 8, 8), np.uint8), 100) == []


# -- when and how it is said


class _Looking(BaseCallback):
    def _on_step(self) -> bool:
        self.model.health()
        return True


def test_looking_changes_nothing():
    looked = quick_agent(seed=3).learn(400, callback=_Looking())
    quiet = quick_agent(seed=3).learn(400)
    assert fingerprint(looked) == fingerprint(quiet)
    np.testing.assert_array_equal(looked.replay_buffer.actions, quiet.replay_buffer.actions)
    assert looked._generator.bit_generator.state == quiet._generator.bit_generator.state


def test_each_finding_is_said_once_and_again_only_by_a_new_learn():
    agent = quick_agent(Walk(**BLIND), buffer_size=10_000)

    def said(**arguments: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agent.learn(2300, log_interval=None, **arguments)
        return [str(each.message) for each in caught if each.category is bdpi.HealthWarning]

    assert len(said()) == 1
    assert said(reset_num_timesteps=False) == []
    assert len(said()) == 1
    assert [finding.code for finding in agent.findings] == ["observations-constant"]


def test_what_the_first_episodes_were_worth_is_saved(tmp_path):
    agent = quick_agent().learn(7 * 45 + 3)
    agent.save(tmp_path / "agent")
    loaded = bdpi.BDPI.load(tmp_path / "agent", env=Walk())
    assert loaded.episodes.returns == agent.episodes.returns
    assert len(loaded.episodes.returns.first) == len(loaded.episodes.returns.recent) == 20
    loaded.learn(7, reset_num_timesteps=False)
    assert bdpi.BDPI.load(tmp_path / "agent").health() == []  # also without an environment
    assert loaded.episodes.count == 46  # the episode that was going on was given up


def test_several_environments_normalization_masks_and_background_can_be_looked_at():
    venv = VecNormalize(DummyVecEnv([Walk, lambda: Walk(truncate=True)]))
    assert codes(quick_agent(venv).learn(800)) == set()
    assert codes(learned(Walk(), 400, asynchronous=True)) == set()
    masked = Walk(truncate=True, says=lambda env: {"action_mask": np.array([1, 0], np.int8)})
    assert codes(learned(masked, 400)) == set()


def test_q_values_and_returns_are_in_the_units_of_the_environment():
    from bdpi.agents.checkup import values_and_returns

    venv = VecNormalize(DummyVecEnv([lambda: Walk(pays=lambda env, action: 1000.0 * action)]))
    agent = quick_agent(venv, learning_rate=1e-3, gamma=0.9).learn(800)
    q, returns = values_and_returns(agent)
    assert returns.max() > 1000
    assert 0.2 < q.mean() / returns.mean() < 5


def test_the_agreement_of_random_critics_is_known():
    rng = np.random.default_rng(0)
    for n_critics, n_actions in ((3, 2), (16, 4), (8, 3)):
        votes = rng.integers(0, n_actions, (20_000, n_critics))
        most = np.stack([(votes == action).sum(axis=1) for action in range(n_actions)]).max(axis=0)
        assert health.chance_agreement(n_critics, n_actions) == pytest.approx(most.mean() / n_critics, abs=0.005)


def test_returns_improve_or_not():
    flat = [0.0, 1.0] * 10
    assert Returns(flat, flat, 1.0).have_not_improved
    assert not Returns(flat, [1.0] * 20, 1.0).have_not_improved
    assert not Returns(flat[:5], flat, 1.0).have_not_improved  # too few to tell
    assert not Returns(flat, [1.0] * 20, 1.0).were_better
