"""Networks that a file names are no larger than what it holds: a few bytes cannot ask for gigabytes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.overrides import TorchFunctionMode

from bdpi.agents.arguments import ALONE
from bdpi.agents.encoding import Arrays
from bdpi.agents.frames import stacked_space
from bdpi.agents.policies import BDPIPolicy

_MOST_LAYERS = 100
_FEW = 1_000_000  # weights that no file need account for: 4 MB
_MOST_SCRATCH = 100 << 20  # numbers that learners have room for, beside what the file holds
_WRITES = {"uniform_", "kaiming_uniform_", "normal_"}  # how PyTorch's layers begin
_LANES = 16  # rows that the native learner handles at once
_TABLE = 32  # a policy is made with networks, which a table replaces: hidden units of those


def check_policy_names(settings: dict[str, Any]) -> None:
    """:raises ValueError: when they are not arguments of the package's policies, in a file that brings no other"""
    known = list(inspect.signature(BDPIPolicy).parameters)[3:]  # after the spaces and the schedule
    for name in settings:
        if name not in known or name in ALONE:
            raise ValueError(f"the file is damaged: policy_kwargs has {name!r:.100}, which no policy takes")
    function = settings.get("activation_fn")  # a layer with weights would be made many times
    if inspect.isclass(function) and function.__module__ != nn.ReLU.__module__:
        raise ValueError(f"the file is damaged: activation_fn is {function.__name__}, not a function of PyTorch's")


def check_layers(net_arch: Any) -> None:
    """:raises ValueError: when they are no hidden layers: a list or a dictionary of lists; None: the default"""
    for layers in net_arch.values() if isinstance(net_arch, dict) else [net_arch or []]:
        if not isinstance(layers, list | tuple) or not all(_is_size(size) for size in layers):
            raise ValueError(f"the file is damaged: net_arch is {str(net_arch)[:100]}, not a list of layer sizes")
        if len(layers) > _MOST_LAYERS:
            raise ValueError(f"the file is damaged: net_arch has {len(layers)} layers, more than {_MOST_LAYERS}")


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) > 0


def check_networks(data: dict[str, Any], arrays: Arrays, has_tables: bool) -> None:
    """Whether the file holds networks, or tables, as many and as large as its settings ask for, before they are made.

    :param data: attributes of the agent
    :param has_tables: its class has tables
    :raises ValueError: if it holds fewer numbers
    """
    settings, n_critics = data["policy_kwargs"] or {}, data["n_critics"]
    held = weights_held({name: each for name, each in arrays.items() if name.startswith(("policy.", "learner."))})
    seen, actions, n_stack = data["observation_space"], data["action_space"], data.get("n_stack") or 1
    check_held(n_stack * spaces.flatdim(seen), held, "numbers in each observation")
    if has_tables and isinstance(seen, spaces.Discrete) and isinstance(actions, spaces.Discrete):
        check_held((2 * n_critics + 1) * int(seen.n) * int(actions.n), held, "numbers in tables")
        held *= _TABLE
        n_critics = 0
    with _Unwritten():
        policy = data["policy_class"](stacked_space(seen, n_stack), actions, None, **settings)
        actor, critic = count_weights(policy), count_weights(policy.make_critic())
    for name, tensor in policy.state_dict().items():
        found = arrays.get(f"policy.{name}")  # a table has no networks, and other agents no actor
        if found is not None and found.shape != tensor.shape:
            shapes = f"shape {found.shape}, where {tuple(tensor.shape)} belongs"
            raise ValueError(f"the file is damaged, or of other networks: {name} has {shapes}")
    if (weights := actor + 2 * n_critics * critic) > _FEW:  # an actor is made, too, where the agent then drops it
        check_held(weights, held, "weights")
    # What learners have room for from the beginning: two batches and some networks for each thread.
    units = 2 * spaces.flatdim(policy.input_space) + 12 * policy.n_actions
    units += sum(max(policy.actor_arch, policy.critic_arch, key=sum))
    scratch = ((data["n_threads"] or 1) + 3) * (max(data["batch_size"], _LANES) * units + 7 * max(actor, critic))
    most = max(_MOST_SCRATCH, 32 * held)
    if scratch > most and not has_tables and policy.native_inputs() is not None:
        raise ValueError(
            f"batch_size={data['batch_size']} and n_threads={data['n_threads']} take room for {scratch} numbers, more "
            f"than {most}: give load n_threads=1, or a smaller batch_size"
        )


class _Unwritten(TorchFunctionMode):
    """Networks are made whose weights are never written: systems give memory when it is written.

    PyTorch's device "meta" would do, but for convolutions it imports, in a second, what PyTorch compiles with.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _WRITES:
            return args[0] if args else next(iter(kwargs.values()))
        return func(*args, **(kwargs or {}))


def count_weights(module: torch.nn.Module) -> int:
    """Numbers in a network."""
    return sum(tensor.numel() for tensor in module.state_dict().values())


def weights_held(arrays: Arrays) -> int:
    """Weights for which there are bytes in these arrays: of floating-point numbers, for others are none."""
    return sum(array.nbytes for array in arrays.values() if array.dtype.kind == "f") // 4


def check_held(needed: int, held: int, what: str) -> None:
    """:raises ValueError: when a file holds fewer numbers than it says"""
    if needed > held:
        raise ValueError(f"the file is damaged: it says that there are {needed} {what}, and holds {held} in all")
