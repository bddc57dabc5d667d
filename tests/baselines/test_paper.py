"""The paper's parameters of BDPI's peers arrive in the algorithms."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from bdpi.baselines import PARAMETERS, PEERS, make_peer, parameters_of
from small import Walk

PICTURES = spaces.Box(0, 255, (36, 36, 3), np.uint8)
DISCRETE = [name for name in PEERS if name not in ("sac", "td3")]


class SeesPictures(Walk):
    def __init__(self) -> None:
        super().__init__(PICTURES)


gym.register("SeesPictures-v0", entry_point=SeesPictures)


def units(agent) -> list[int]:
    """The widths of the actor's (or the Q-network's) hidden layers, all of which have to be tanh."""
    arch = agent.policy.net_arch
    assert agent.policy.activation_fn is nn.Tanh
    return arch


DQN = {"learning_rate": 1e-4, "buffer_size": 20_000, "batch_size": 256}


@pytest.mark.parametrize(
    ("name", "settings", "arch"),
    [
        ("ppo", {"learning_rate": 1e-3, "n_steps": 256, "batch_size": 256, "n_epochs": 4, "ent_coef": 0.01}, [32, 32]),
        ("acktr", {"learning_rate": 0.25, "n_steps": 20, "ent_coef": 0.01, "vf_coef": 0.5}, [32, 32]),
        ("dqn", DQN, [32]),
        ("prioritized-dueling-dqn", DQN, [32]),
    ],
)
def test_peers_have_the_papers_parameters(name, settings, arch):
    agent = make_peer(name, "FrozenLake8x8-v1", 1)
    assert {key: getattr(agent, key) for key in settings} == settings
    assert units(agent) == arch
    if "dqn" in name:
        assert agent.train_freq.frequency == 1
    assert PEERS.keys() == PARAMETERS.keys()


@pytest.mark.parametrize("name", DISCRETE)
def test_peers_learn_discrete_actions(name):
    agent = make_peer(name, "CartPole-v1", seed=3)
    assert type(agent) is PEERS[name]
    assert agent.seed == 3
    assert agent.gamma == 0.99
    agent.learn(300)


@pytest.mark.parametrize("name", ["sac", "td3", "ppo", "a2c", "acktr"])
def test_peers_learn_continuous_actions(name):
    make_peer(name, "Pendulum-v1", seed=3).learn(110)


def test_lunar_lander_has_larger_networks():
    assert units(make_peer("acktr", "LunarLander-v3", 1)) == [256, 256]
    agent = make_peer("ppo", make_vec_env("LunarLander-v3", 1), 1)
    assert (agent.n_steps, agent.batch_size) == (1024, 1024)
    assert units(agent) == [256, 256]
    assert units(make_peer("dqn", gym.make("LunarLander-v3"), 1)) == [256]


def test_pictures_have_copies_of_the_environment():
    agent = make_peer("ppo", "SeesPictures-v0", 1)
    assert agent.n_envs == 16
    assert (agent.learning_rate, agent.n_steps, agent.batch_size) == (5e-5, 80, 1280)
    acktr = make_peer("acktr", "SeesPictures-v0", 1)
    assert (acktr.n_envs, acktr.n_steps, acktr.learning_rate) == (16, 80, 0.25)
    dqn = make_peer("dqn", "SeesPictures-v0", 1, buffer_size=50)
    assert dqn.n_envs == 1
    for peer in (agent, acktr, dqn):
        assert any(isinstance(module, nn.Conv2d) for module in peer.policy.modules())


def test_what_the_caller_says_counts():
    agent = make_peer("ppo", "CartPole-v1", 1, ent_coef=0.5, policy_kwargs={"net_arch": [7]}, device="cpu")
    assert agent.ent_coef == 0.5
    assert units(agent) == [7]
    assert make_peer("ppo", Walk(PICTURES), 1, "MlpPolicy", batch_size=80).policy_class.__name__ == "ActorCriticPolicy"
    assert PARAMETERS["ppo"].everywhere["ent_coef"] == 0.01
    assert make_peer("ppo", make_vec_env(SeesPictures, 2), 1, batch_size=160).n_envs == 2  # as it is
    assert parameters_of("ppo", "LunarLander-v3", spaces.Box(-1, 1, (8,)))["n_steps"] == 1024
    assert "policy_kwargs" not in parameters_of("sac", "", spaces.Box(-1, 1, (8,)))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="unknown peer 'trpo'"):
        make_peer("trpo", "CartPole-v1")
    with pytest.raises(ValueError, match="sac needs Box actions"):
        make_peer("sac", "CartPole-v1")
    with pytest.raises(ValueError, match="Discrete actions"):
        make_peer("dqn", "Pendulum-v1")


def test_the_package_does_not_import_its_baselines():
    script = "import bdpi, sys; sys.exit('bdpi.baselines' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
