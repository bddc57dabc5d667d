"""Actions of several parts: learned, predicted, masked, saved, and stepped as one action of the environment."""

import copy
import sqlite3
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib.common.maskable.evaluation import evaluate_policy as maskable_evaluate_policy
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy as sb3_evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, TabularBDPI, evaluate_policy
from bdpi.agents.decisions import Decisions
from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.envs.factors import factors_of
from small import QUICK, Walk, epochs_of, fingerprint, quick_agent

HYBRID = spaces.Dict(gear=spaces.Discrete(3, start=1), wheel=spaces.Box(-2.0, 2.0, (2,)))
KINDS = {
    "MultiDiscrete": spaces.MultiDiscrete([2, 3], start=[5, 0]),
    "MultiBinary": spaces.MultiBinary((2, 2)),
    "Box": spaces.Box(np.float32([-1, 0]), np.float32([1, 30])),
    "Tuple": spaces.Tuple([spaces.Discrete(2), HYBRID, spaces.MultiBinary(2)]),
    "Dict": HYBRID,
}


def walk(actions: spaces.Space[Any], observations: Any = None, **changes: Any) -> Walk:
    env = Walk(observations, **{"pays": lambda env, action: 1.0, **changes})
    env.action_space = copy.deepcopy(actions)
    return env


class Pushed(gym.ActionWrapper):
    """CartPole, pushed left or right, with one of five strengths."""

    def __init__(self, actions: spaces.Space[Any] | None = None) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.action_space = actions or spaces.MultiDiscrete([2, 5])

    def action(self, action: Any) -> int:
        direction, strength = action
        if isinstance(self.action_space, spaces.Tuple):
            self.env.unwrapped.force_mag = float(strength[0])
        else:
            self.env.unwrapped.force_mag = (1.0, 2.5, 5.0, 10.0, 20.0)[strength]
        return int(direction)


class Doors(Walk):
    """Of two factors, one choice each is not allowed, another one at each step, and ``action_masks`` says so."""

    def __init__(self) -> None:
        super().__init__(length=5, pays=lambda env, action: 0.0)
        self.action_space, self.broken = spaces.MultiDiscrete([3, 2]), 0

    def action_masks(self) -> np.ndarray:
        return np.concatenate([np.arange(3) != self.time % 3, np.arange(2) != self.time % 2])

    def step(self, action: Any) -> Any:
        mask = self.action_masks()
        self.broken += not (mask[action[0]] and mask[3 + action[1]])
        return super().step(action)


# -- the sequence


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_lead_to_every_action_and_back(kind):
    space = KINDS[kind]
    factors = factors_of(space, bits=3)
    generator = np.random.default_rng(0)
    for _ in range(50):
        made = np.array([generator.integers(size) for size in factors.sizes])
        action = factors.value(made)
        assert space.contains(action)
        np.testing.assert_array_equal(factors.decisions(action), made)


def test_what_is_decided_is_seen_and_the_last_decision_has_the_reward():
    decisions = Decisions(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3, 2]))
    mask, next_mask = np.array([1, 1, 1, 0, 1, 1, 1], bool), np.array([0, 1, 1, 1, 1, 1, 1], bool)
    before, after = np.float32([0.1, 0.2]), np.float32([0.3, 0.4])
    step = Transition(before, np.array([1, 2, 0]), 5.0, after, False, True, mask=mask, next_mask=next_mask)
    first, second, third = decisions.transitions(step)
    none = [0] * 5
    np.testing.assert_array_equal(first.observation, np.float32([0.1, 0.2, *none]))
    np.testing.assert_array_equal(second.observation, np.float32([0.1, 0.2, 0, 1, 0, 0, 0]))
    np.testing.assert_array_equal(third.observation, np.float32([0.1, 0.2, 0, 1, 0, 0, 1]))
    np.testing.assert_array_equal(third.next_observation, np.float32([0.3, 0.4, *none]))
    assert [each.action for each in (first, second, third)] == [1, 2 + 2, 5 + 0]
    assert [(each.reward, each.discount, each.truncated) for each in (first, second, third)] == [
        (0.0, 1.0, False),
        (0.0, 1.0, False),
        (5.0, None, True),
    ]
    np.testing.assert_array_equal(first.mask, [1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(second.mask, [0, 0, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(first.next_mask, second.mask)
    np.testing.assert_array_equal(third.next_mask, [0, 1, 0, 0, 0, 0, 0])


# -- an SB3 algorithm


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_learns_predicts_and_goes_on_after_loading(kind, agent_class, tmp_path):
    env = walk(KINDS[kind])
    model = agent_class("MlpPolicy", env, seed=0, policy_kwargs={"action_bits": 2}, **QUICK).learn(30)
    n = len(factors_of(KINDS[kind], 2).sizes)
    assert (model.num_timesteps, model.action_space) == (30, KINDS[kind])
    assert len(model.replay_buffer) == min(30 * n, 200)
    assert epochs_of(model) > 10 * n
    assert {episode["l"] for episode in model.ep_info_buffer} == {7}
    observation = env.observation_space.sample()
    action, _ = model.predict(observation, deterministic=True)
    assert env.action_space.contains(action)
    batch, _ = model.predict(np.stack([observation] * 3), deterministic=True)
    assert len(batch) == 3
    assert sb3_evaluate_policy(model, Monitor(env), 2) == (7.0, 0.0)
    model.save(tmp_path / "agent", include_buffer=True)
    loaded = agent_class.load(tmp_path / "agent", env=env)
    assert str(loaded.predict(observation, deterministic=True)[0]) == str(action)
    twin = copy.deepcopy(model)
    for each in (loaded, twin):
        assert each.learn(10, reset_num_timesteps=False).num_timesteps == 40


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (spaces.Discrete(4, start=2), "MlpPolicy"),
        (spaces.MultiDiscrete([2, 3]), "MlpPolicy"),
        (spaces.Box(-1, 1, (2, 2), np.float64), "MlpPolicy"),
        (spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Box(-1, 1, (2,))), "MultiInputPolicy"),
    ],
)
def test_observations_of_all_kinds(space, policy):
    for actions in (KINDS["MultiDiscrete"], spaces.MultiDiscrete([3])):
        model = quick_agent(walk(actions, space), policy).learn(20)
        assert actions.contains(model.predict(space.sample())[0])
    assert model.learner_name == "native"


def test_several_environments_normalised_observations_and_callbacks():
    env = VecNormalize(make_vec_env(lambda: walk(KINDS["Dict"]), n_envs=2))
    model = quick_agent(env, n_steps=2, policy_kwargs={"action_bits": 2})
    tests = EvalCallback(
        VecNormalize(DummyVecEnv([lambda: Monitor(walk(KINDS["Dict"]))]), training=False, norm_reward=False),
        eval_freq=10,
        n_eval_episodes=1,
        verbose=0,
    )
    model.learn(40, callback=tests)
    assert (model.num_timesteps, tests.n_calls, tests.last_mean_reward) == (40, 20, 7.0)


def test_the_same_seed_gives_the_same_bits():
    first, second = (quick_agent(walk(KINDS["Tuple"]), policy_kwargs={"action_bits": 1}).learn(30) for _ in range(2))
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_masks_are_honoured_for_each_factor(n_envs):
    env = make_vec_env(Doors, n_envs)
    model = quick_agent(env).learn(60)
    assert env.get_attr("broken") == [0] * n_envs
    lone = Doors()
    evaluate_policy(model, lone, 2)
    maskable_evaluate_policy(model, Monitor(lone), 2, deterministic=False)
    assert lone.broken == 0
    with pytest.raises(ValueError, match="for one of the 2 numbers"):
        model.predict(lone.reset()[0], action_masks=[0, 0, 0, 1, 1])
    with pytest.warns(RuntimeWarning, match="learned with action masks"):
        model.predict(lone.reset()[0])


def test_agents_without_masks_do_not_ask_for_them(recwarn):
    model = quick_agent(walk(KINDS["MultiDiscrete"])).learn(20)
    model.predict(model.observation_space.sample())
    assert not [each for each in recwarn if "mask" in str(each.message)]


# -- step by step, and journals


def test_steps_from_outside_are_journaled_and_found_again(tmp_path):
    env = walk(KINDS["Dict"])
    model = quick_agent(env, journal=tmp_path / "journal", policy_kwargs={"action_bits": 2})
    seen, _ = env.reset(seed=0)
    for _ in range(8):
        action = model.act(seen)
        assert env.action_space.contains(action)
        after, reward, terminated, truncated, _ = env.step(action)
        model.observe(seen, action, reward, after, terminated, truncated)
        seen = after if not terminated else env.reset()[0]
    model.close_journal()
    assert (model.num_timesteps, len(model.replay_buffer)) == (8, 8 * 5)
    again = quick_agent(env, journal=tmp_path / "journal", policy_kwargs={"action_bits": 2})
    assert (again.num_timesteps, len(again.replay_buffer)) == (8, 40)
    again.close_journal()
    with Journal(tmp_path / "journal", read_only=True) as journal:
        assert [step.reward for step in journal.steps()][:10] == [0, 0, 0, 0, 1] * 2
    with pytest.raises(ValueError, match="not an action of the environment"):
        model.observe(seen, {"gear": 0, "wheel": [0.0, 0.0]}, 1.0, seen, False, False)


BROKEN = {
    "a missing decision": "DELETE FROM transitions WHERE id = 8",
    "a missing last decision": "DELETE FROM transitions WHERE id = 20",
    "equal decisions": "UPDATE transitions SET action = 1",
    "an inner reward": "UPDATE transitions SET reward = 1 WHERE id = 7",
    "an inner end": "UPDATE transitions SET terminated = 1 WHERE id = 7",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_journal_of_incomplete_steps_is_refused(what, tmp_path):
    env = walk(KINDS["Dict"])
    settings = {"journal": tmp_path / "journal", "policy_kwargs": {"action_bits": 2}}
    model = quick_agent(env, **settings)
    seen, _ = env.reset(seed=0)
    for _ in range(4):
        model.observe(seen, model.act(seen), 0.0, seen, False, False)
    model.close_journal()
    with sqlite3.connect(tmp_path / "journal") as database:
        database.execute(BROKEN[what])
    database.close()
    with pytest.raises(JournalError, match=r"is damaged: (one of its|its last) step"):
        quick_agent(env, **settings)


def test_demonstrations_are_taken_in_the_environments_own_actions():
    model = quick_agent(walk(KINDS["MultiDiscrete"]))
    seen = model.observation_space.sample()
    assert model.add_demonstrations([(seen, [6, 2], 1.0, seen, False, False)]) == 2
    held = model.replay_buffer.transitions()
    assert held.actions[held.actions > 0].tolist() == [1, 2 + 2]


# -- learning


def test_two_factors_of_a_real_simulation_are_learned():
    env = Monitor(Pushed())
    BDPI("MlpPolicy", env, seed=0, n_critics=4, n_threads=1).learn(500)
    # Random pushes fall after 20 steps or so.
    assert np.mean(env.get_episode_rewards()[-3:]) > 50


@pytest.mark.full
def test_a_direction_and_a_continuous_strength_are_learned():
    env = Monitor(Pushed(spaces.Tuple([spaces.Discrete(2), spaces.Box(1.0, 20.0, (1,))])))
    BDPI("MlpPolicy", env, seed=0, n_critics=4, policy_kwargs={"action_bits": 2}, n_threads=1).learn(600)
    assert np.mean(env.get_episode_rewards()[-3:]) > 50


# -- what is not possible


def test_what_is_not_possible_is_said():
    with pytest.raises(ValueError, match="tables need Discrete actions"):
        TabularBDPI("MlpPolicy", walk(KINDS["MultiDiscrete"], spaces.Discrete(3)))
    with pytest.raises(ValueError, match="destroy pictures"):
        quick_agent(walk(KINDS["MultiDiscrete"], spaces.Box(0, 255, (36, 36, 3), np.uint8)), "CnnPolicy")
    with pytest.raises(ValueError, match="'decided'"):
        quick_agent(walk(KINDS["Box"], spaces.Dict(decided=spaces.Discrete(2))), "MultiInputPolicy")
