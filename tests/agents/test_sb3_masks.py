"""Action masks as users of sb3-contrib have them: ``ActionMasker``, ``get_action_masks``, maskable evaluation."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as maskable_evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, evaluate_policy
from small import QUICK, Walk


class Corridor(Walk):
    """One of three actions is not allowed, another one at each step; that one is what pays."""

    def __init__(self, truncate: bool = False) -> None:
        super().__init__(length=5, truncate=truncate)
        self.action_space = spaces.Discrete(3)
        self.broken = 0

    def allowed(self) -> np.ndarray:
        return np.arange(3) != self.time % 3

    def step(self, action: Any) -> Any:
        is_allowed = self.allowed()[action]
        self.broken += not is_allowed
        seen, _, *rest = super().step(action)
        return seen, 0.0 if is_allowed else 1.0, *rest


class OwnMasks(Corridor):
    def action_masks(self) -> np.ndarray:
        return self.allowed()


def masked(truncate: bool = False) -> ActionMasker:
    return ActionMasker(Corridor(truncate), lambda env: env.unwrapped.allowed())


def make(env: Any, agent_class: Any = BDPI, **arguments: Any) -> Any:
    return agent_class("MlpPolicy", env, seed=0, **{**QUICK, **arguments})


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
@pytest.mark.parametrize("learner", ["native", "torch"])
def test_an_action_masker_is_honoured_in_training(agent_class, learner):
    env = masked()
    model = make(env, agent_class, learner=learner).learn(40)
    assert env.unwrapped.broken == 0
    held = model.replay_buffer
    times = np.arange(40) % 5
    np.testing.assert_array_equal(held.masks[:40, 0], np.arange(3) != (times % 3)[:, None])
    following = np.arange(3) != ((times + 1) % 3)[:, None]
    following[times == 4] = True  # whatever was allowed after the end
    np.testing.assert_array_equal(held.next_masks[:40, 0], following)


@pytest.mark.parametrize("vectorize", [DummyVecEnv, pytest.param(SubprocVecEnv, marks=pytest.mark.full)])
def test_in_several_environments_and_with_normalised_observations(vectorize):
    env = make_vec_env(masked, n_envs=2, vec_env_cls=vectorize)
    model = make(VecNormalize(env)).learn(40)
    assert env.get_attr("broken") == [0, 0]
    assert not model.replay_buffer.masks[:20].all(axis=2).any()
    env.close()


def test_predictions_and_evaluations_are_masked(tmp_path):
    env = masked()
    model = make(env, learning_rate=0.01).learn(60)
    observation, _ = env.reset(seed=0)
    for deterministic in (True, False):
        for _ in range(5):
            masks = get_action_masks(env)
            action, _ = model.predict(observation, action_masks=masks, deterministic=deterministic)
            assert masks[action]
            observation, *_ = env.step(action)
    assert evaluate_policy(model, env, 3) == (0.0, 0.0)
    assert maskable_evaluate_policy(model, Monitor(env), 3) == (0.0, 0.0)
    assert maskable_evaluate_policy(model, make_vec_env(masked, 2), 4, deterministic=False) == (0.0, 0.0)
    callback = MaskableEvalCallback(Monitor(masked()), eval_freq=10, n_eval_episodes=1, verbose=0)
    model.learn(30, callback=callback)
    assert callback.best_mean_reward == 0.0
    assert env.unwrapped.broken == 0


def test_what_infos_say_counts_more_than_the_method():
    """As of an environment that knows the mask of its last state."""

    class Both(Corridor):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {"action_mask": self.allowed()}

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"action_mask": self.allowed()}

    env = ActionMasker(Both(truncate=True), lambda env: np.ones(3))
    model = make(env).learn(20)
    assert env.unwrapped.broken == 0
    np.testing.assert_array_equal(model.replay_buffer.next_masks[4, 0], np.arange(3) != 5 % 3)


@pytest.mark.parametrize("env", [OwnMasks(), DummyVecEnv([OwnMasks])])
def test_an_environments_own_method_is_asked(env):
    model = make(env).learn(40)
    assert model.get_env().get_attr("broken") == [0]
    assert not model.replay_buffer.masks[:40].all(axis=2).any()
    assert evaluate_policy(model, env, 3) == (0.0, 0.0)
    assert model.get_env().get_attr("broken") == [0]


def test_a_mask_that_allows_nothing_names_the_step():
    with pytest.raises(ValueError, match=r"^action_masks\(\) of environment 0 at step 0 allows no action"):
        make(ActionMasker(Corridor(), lambda env: np.zeros(3))).learn(20)
