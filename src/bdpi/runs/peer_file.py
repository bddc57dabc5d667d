"""The file of a peer: networks and optimizers as arrays, so that reading it runs nothing.

Stable-Baselines3's own files are pickles. The arguments that a peer was made with are in its run's ``config.json``.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from torch.utils._pytree import tree_map_only

from bdpi.agents.checks import LARGEST, check_integer
from bdpi.agents.encoding import Arrays, decode, encode
from bdpi.agents.files import File, read_agent, write_agent
from bdpi.agents.sizes import check_held, check_layers, weights_held
from bdpi.baselines.paper import PEERS, make_peer
from bdpi.runs.config import BaseConfig
from bdpi.runs.errors import named, one_line
from bdpi.runs.settings import check_names, check_policy_settings, policy_arguments

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm


def save_peer(agent: BaseAlgorithm, file: File) -> None:
    """Write what ``get_parameters`` returns, optimizers included, and the tensors that are not in it."""
    arrays: Arrays = {}
    others = {name: getattr(agent, name) for name in _other_tensors(agent)}
    parameters = {
        name: encode(_as_arrays(value), arrays, name) for name, value in {**agent.get_parameters(), **others}.items()
    }
    write_agent(file, {"class": type(agent).__name__, "parameters": parameters}, arrays)


def load_peer(config: BaseConfig, file: File, environment: Any) -> BaseAlgorithm:
    """A peer as it was saved.

    :param config: of its run
    :raises ValueError: for a file that is damaged, foreign, or does not fit the configuration
    """
    cls = PEERS[config.agent]
    check_names(config.hyperparameters, cls)
    check_policy_settings(config.policy_kwargs)
    document, arrays = read_agent(file, [cls.__name__])
    _check_layers(config.policy_kwargs.get("net_arch"), environment.observation_space, arrays)
    if wrong := next((name for name, array in arrays.items() if not np.isfinite(array).all()), None):
        raise ValueError(f"{file} is damaged: {wrong} holds numbers that are not finite")
    _check_numbers(config.hyperparameters)
    name = "" if environment.spec is None else environment.spec.id
    arguments = {**config.hyperparameters, "policy_kwargs": policy_arguments(config), "tensorboard_log": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about batches, which were of more environments
            agent = make_peer(config.agent, environment, config.seed, environment_id=name, **arguments)
        parameters = {name: _as_tensors(decode(value, arrays)) for name, value in document["parameters"].items()}
        for other in _other_tensors(agent):
            with torch.no_grad():
                getattr(agent, other).copy_(parameters.pop(other))
        agent.set_parameters(parameters)
    except Exception as error:  # of Stable-Baselines3 and PyTorch, which expect neither other settings nor other arrays
        said = one_line(named(error))[:200]  # PyTorch says it in many lines
        remedy = "take another copy of both, or train again"
        raise ValueError(f"{file} is damaged, or does not fit its config.json: {said}; {remedy}") from error
    return agent


def _check_numbers(hyperparameters: dict[str, Any]) -> None:
    """:raises ValueError: for a batch or a memory that is larger than an agent's may be"""
    for name, most in LARGEST.items():
        if (value := hyperparameters.get(name)) is not None:
            check_integer(name, value, 1, most)


def _check_layers(net_arch: Any, observations: spaces.Space[Any], arrays: Arrays) -> None:
    """:raises ValueError: when the file holds fewer weights than networks with such hidden layers have"""
    check_layers(net_arch)
    parts = observations.spaces.values() if isinstance(observations, spaces.Dict) else [observations]
    inputs = sum(1 if is_image_space(part) else spaces.flatdim(part) for part in parts)  # of pictures, a feature
    needed = 0
    for layers in net_arch.values() if isinstance(net_arch, dict) else [net_arch or []]:
        needed += sum(first * second for first, second in pairwise([inputs, *layers]))
    check_held(needed, weights_held(arrays), "weights")


def _other_tensors(agent: BaseAlgorithm) -> list[str]:
    """SAC's temperature, for one."""
    return [name for name in agent._get_torch_save_params()[1] if getattr(agent, name, None) is not None]


def _as_arrays(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu().numpy().copy(order="C"), value)


def _as_tensors(value: Any) -> Any:
    return tree_map_only(np.ndarray, lambda array: torch.from_numpy(array.copy()), value)
