"""The algorithms that BDPI is compared with, with the parameters that the paper gives them.

Where the paper says nothing, they are SB3's (or, for ACKTR, those of its own paper):

- PPO and ACKTR have a column in the paper's table of hyper-parameters (appendix "Experimental Setup"). The paper does
  not give the clipping, the GAE parameter and the value loss coefficient of PPO, nor the trust region of ACKTR.
- A2C, DQN, and prioritized dueling DQN are only in the study of robustness, in which the paper gives ranges, and no
  best value. A2C has the networks of ACKTR. DQN has what the table gives Bootstrapped DQN, except for its 20 gradient
  steps per batch: memory, batch, a training epoch at each time-step, learning rate, network. SB3's 10 000 time-steps
  between two updates of the target network are outside the paper's range, whose largest value, 1000, is taken.
- ACER was tried, and left out of the plots; the paper says nothing about its parameters. It has those of OpenAI
  Baselines, with the networks of ACKTR.
- SAC and TD3 are in the paper's Figure 3, Pendulum, which says nothing about their parameters: everything is SB3's.

Networks and the batches of PPO are larger on LunarLander, as in the table. From pixels (Hallway), PPO and ACKTR learn
from 16 copies of the environment, every 80 time-steps of each, and PPO has a learning rate of 0.00005. The paper gives
that learning rate to ACKTR, too; but the implementation that it used has no way to give a learning rate to ACKTR, and
the table says "dynamic". So it stays 0.25, within the trust region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

import bdpi.envs
from bdpi.baselines.acer import ACER
from bdpi.baselines.acktr import ACKTR
from bdpi.baselines.dueling import PrioritizedDuelingDQN
from bdpi.envs.preparing import prepare_environment

#: By the name they have in :func:`make_peer`.
PEERS: dict[str, type[BaseAlgorithm]] = {
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
    "sac": SAC,
    "td3": TD3,
    "acktr": ACKTR,
    "acer": ACER,
    "prioritized-dueling-dqn": PrioritizedDuelingDQN,
}


@dataclass(frozen=True)
class Peer:
    """The parameters of one algorithm, as arguments of its constructor.

    :param everywhere: in all environments
    :param hidden_layers: of tanh units, 32 in each (256 on LunarLander), unless observations are pictures; ``None``:
        SB3's network
    :param lunar_lander: what is different on LunarLander
    :param pixels: what is different where observations are pictures
    :param pixel_copies: how many copies of the environment it learns from there
    """

    everywhere: Mapping[str, Any] = field(default_factory=dict)
    hidden_layers: int | None = None
    lunar_lander: Mapping[str, Any] = field(default_factory=dict)
    pixels: Mapping[str, Any] = field(default_factory=dict)
    pixel_copies: int = 1


_Q_LEARNING = Peer(
    {
        "gamma": 0.99,
        "learning_rate": 1e-4,
        "buffer_size": 20_000,
        "batch_size": 256,
        "train_freq": 1,
        "target_update_interval": 1000,
    },
    hidden_layers=1,
)

#: By the names of :data:`PEERS`.
PARAMETERS: dict[str, Peer] = {
    "ppo": Peer(
        {
            "gamma": 0.99,
            "learning_rate": 1e-3,
            "n_steps": 256,
            "batch_size": 256,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
        hidden_layers=2,
        lunar_lander={"n_steps": 1024, "batch_size": 1024},
        pixels={"learning_rate": 5e-5, "n_steps": 80, "batch_size": 1280},
        pixel_copies=16,
    ),
    "acktr": Peer(
        {"gamma": 0.99, "learning_rate": 0.25, "n_steps": 20, "ent_coef": 0.01, "vf_coef": 0.5},
        hidden_layers=2,
        pixels={"n_steps": 80},
        pixel_copies=16,
    ),
    "a2c": Peer({"gamma": 0.99}, hidden_layers=2),
    "acer": Peer({"gamma": 0.99}, hidden_layers=2),
    "dqn": _Q_LEARNING,
    "prioritized-dueling-dqn": _Q_LEARNING,
    "sac": Peer({"gamma": 0.99}),
    "td3": Peer({"gamma": 0.99}),
}


def parameters_of(name: str, environment_id: str, observation_space: spaces.Space[Any]) -> dict[str, Any]:
    """The arguments that the paper gives an algorithm in one environment.

    :param name: one of :data:`PEERS`
    :param environment_id: Gymnasium's id; an empty one is no environment in particular
    :param observation_space: pictures are learned from in another way
    """
    if name not in PARAMETERS:
        raise ValueError(f"unknown peer {name!r}: choose from {', '.join(PARAMETERS)}")
    peer = PARAMETERS[name]
    if is_image_space(observation_space):
        return {**peer.everywhere, **peer.pixels}
    is_lander = environment_id.startswith("LunarLander")
    arguments = {**peer.everywhere, **(peer.lunar_lander if is_lander else {})}
    if peer.hidden_layers is not None:
        hidden = [256 if is_lander else 32] * peer.hidden_layers
        arguments["policy_kwargs"] = {"net_arch": hidden, "activation_fn": nn.Tanh}
    return arguments


def make_peer(
    name: str,
    env: GymEnv | str,
    seed: int | None = None,
    policy: str | None = None,
    *,
    environment_id: str | None = None,
    **overrides: Any,
) -> BaseAlgorithm:
    """An algorithm with the paper's parameters, ready to learn.

    Give ``learn`` the number of time-steps that there will be, even if a callback stops it earlier: DQN explores less
    and less over a tenth of them.

    :param name: one of :data:`PEERS`
    :param env: an id, an environment or a ``VecEnv``. Of an id, as many copies are made as the paper has of it; else
        that is up to the caller (16, for PPO and ACKTR from pixels).
    :param seed: of the algorithm and the environment
    :param policy: SB3's name of the network; ``None``: the one that fits the observations
    :param environment_id: Gymnasium's id of ``env``, by which parameters are chosen; ``None``: it is asked for it
    :param overrides: arguments of the algorithm that are to be different; ``policy_kwargs`` are merged
    """
    if name not in PEERS:
        raise ValueError(f"unknown peer {name!r}: choose from {', '.join(PEERS)}")
    environment = _make(env) if isinstance(env, str) else env
    observations, actions = environment.observation_space, environment.action_space
    _check_actions(name, actions)
    arguments = parameters_of(name, _id_of(environment) if environment_id is None else environment_id, observations)
    arguments |= overrides | {"policy_kwargs": arguments.get("policy_kwargs", {}) | overrides.get("policy_kwargs", {})}
    copies = PARAMETERS[name].pixel_copies if is_image_space(observations) else 1
    if isinstance(env, str) and copies > 1:
        environment.close()
        environment = make_vec_env(env, copies, seed)
    return PEERS[name](_policy_for(observations) if policy is None else policy, environment, seed=seed, **arguments)


def _make(environment_id: str) -> gym.Env[Any, Any]:
    bdpi.envs.register()
    prepare_environment(environment_id)
    return gym.make(environment_id)


def _id_of(environment: GymEnv) -> str:
    try:
        spec = environment.get_attr("spec", 0)[0] if isinstance(environment, VecEnv) else environment.spec
    except (EOFError, ConnectionError):  # it was registered with a lambda, for one
        raise ValueError(
            f"the processes of {environment} cannot send the spec of their environments: give make_peer its id, "
            'environment_id="my_module:MyEnv-v0", and new processes'
        ) from None
    return "" if spec is None else spec.id


def _policy_for(observations: spaces.Space[Any]) -> str:
    if isinstance(observations, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(observations) else "MlpPolicy"


def _check_actions(name: str, actions: spaces.Space[Any]) -> None:
    wanted = {"dqn": spaces.Discrete, "prioritized-dueling-dqn": spaces.Discrete, "sac": spaces.Box, "td3": spaces.Box}
    if name in wanted and not isinstance(actions, wanted[name]):
        raise ValueError(f"{name} needs {wanted[name].__name__} actions, those of the environment are {actions}")
