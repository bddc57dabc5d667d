"""Pictures that are too small for the DeepMind convolutions: MiniGrid's, and MinAtar's maps of true and false."""

import warnings

import gymnasium as gym
import minigrid  # noqa: F401  # registers environments
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FilterObservation
from minigrid.wrappers import ImgObsWrapper

from bdpi import BDPI
from bdpi.agents.checkup import Checkup
from bdpi.agents.extractors import CombinedConvolutions
from bdpi.agents.policies import CnnPolicy

QUICK = {"seed": 0, "device": "cpu", "n_critics": 2, "critic_iterations": 1, "batch_size": 16}


class Maps(gym.Env):
    """As MinAtar's: a dot on the left or on the right of four maps; choose that side."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape=(10, 10, 4), as_dict=False):
        self.shape, self.as_dict, self.steps = shape, as_dict, 0
        maps = spaces.Box(0, 1, shape, bool)
        self.observation_space = spaces.Dict({"maps": maps}) if as_dict else maps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        reward = float(action == self.side)
        return self._seen(), reward, False, self.steps % 20 == 0, {}

    def _seen(self):
        self.side = int(self.np_random.integers(2))
        maps = np.zeros(self.shape, bool)
        maps[self.np_random.integers(10), 1 + 7 * self.side, 2] = True
        return {"maps": maps} if self.as_dict else maps


@pytest.mark.parametrize("as_dict", [False, True])
def test_maps_of_true_and_false_are_learned_from(as_dict, tmp_path):
    policy, kwargs = "CnnPolicy", {}
    if as_dict:
        policy, kwargs = "MultiInputPolicy", {"features_extractor_class": CombinedConvolutions}
    env = Maps(as_dict=as_dict)
    rates = {"learning_rate": 1e-3, "actor_learning_rate": 1e-3, "trust_region": 0.3, "gamma": 0.5}
    settings = {**QUICK, **rates, "batch_size": 32, "critic_iterations": 2, "fit_steps": 4}
    agent = BDPI(policy, env, policy_kwargs=kwargs, **settings).learn(90)
    right = 0
    for _ in range(40):
        seen = env._seen()
        right += agent.predict(seen, deterministic=True)[0] == env.side
    assert right >= 36, "chance is 20 of 40"
    agent.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent", env=env, device="cpu")
    assert loaded.predict(seen, deterministic=True)[0] == agent.predict(seen, deterministic=True)[0]


@pytest.mark.parametrize("as_dict", [False, True])
def test_minigrids_pictures_are_learned_from(as_dict):
    env = gym.make("MiniGrid-Empty-5x5-v0")
    env = FilterObservation(env, ["image", "direction"]) if as_dict else ImgObsWrapper(env)
    agent = BDPI("MultiInputPolicy" if as_dict else "CnnPolicy", env, **QUICK)
    before = agent.agent_learner.learner.state_dict()["critics.parameters"].copy()
    agent.learn(25)
    assert not np.array_equal(before, agent.agent_learner.learner.state_dict()["critics.parameters"])
    extractor = agent.policy.actor[0]
    if as_dict:
        extractor = extractor.extractors["image"]
    assert extractor.features_dim == 288
    assert extractor.gain * 10 / 255 == pytest.approx(1), "numbers of kinds, up to 10, become 1 and not 0.04"


@pytest.mark.parametrize(
    ("shape", "dtype", "channels"),
    [((3, 7, 7), np.uint8, 3), ((7, 7, 20), np.uint8, 20), ((10, 10, 10), bool, 10), ((4, 10, 10), bool, 4)],
)
def test_channels_are_found(shape, dtype, channels):
    policy = CnnPolicy(spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype), spaces.Discrete(2))
    assert policy.actor[0].cnn[0].in_channels == channels


def test_light_in_small_pictures_is_divided_by_255_where_that_is_said():
    space, kwargs = spaces.Box(0, 255, (3, 9, 9), np.uint8), {"largest": 255}
    assert CnnPolicy(space, spaces.Discrete(2)).actor[0].gain == 25.5
    assert CnnPolicy(space, spaces.Discrete(2), features_extractor_kwargs=kwargs).actor[0].gain == 1
    assert CnnPolicy(space, spaces.Discrete(2), normalize_images=False).actor[0].gain == 1


def test_an_agent_says_after_its_first_epoch_what_a_step_will_cost():
    """Large networks for many numbers: more than a second for each epoch on any processor of today."""
    env = gym.make("CartPole-v1")
    settings = {**QUICK, "n_critics": 1, "critic_iterations": 4, "batch_size": 64, "train_freq": 2}
    agent = BDPI("MlpPolicy", env, policy_kwargs={"net_arch": [2048, 2048]}, n_threads=1, **settings)
    with pytest.warns(RuntimeWarning, match=r"epoch takes .* s: expect .* s per step. Faster: fewer critics") as said:
        agent.learn(64)
    assert sum("learning epoch takes" in str(each.message) for each in said) == 1


@pytest.mark.parametrize(("seconds", "is_said"), [((2.0, 0.01), False), ((2.0, 2.0, 2.0), True), ((20.0, 0.01), True)])
def test_what_pytorch_prepares_in_its_first_epoch_is_no_cost_of_a_step(seconds, is_said):
    agent, checkup = BDPI("MlpPolicy", "CartPole-v1", learner="torch", **QUICK), Checkup()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for each in seconds:
            checkup.learned(agent, each)
    assert ["learning epoch takes" in str(each.message) for each in said] == [True] * is_said


def test_steps_that_are_not_learned_from_cost_nothing():
    agent = BDPI("MlpPolicy", "CartPole-v1", gradient_steps=0, **QUICK)
    with pytest.warns(RuntimeWarning, match=r"epoch takes 20 s\. Faster"):
        Checkup().learned(agent, 20.0)
