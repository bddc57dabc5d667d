"""Which learner trains a policy's networks."""

from __future__ import annotations

import copy
import warnings
from typing import Literal, get_args

import numpy as np
import torch
from torch import nn

from bdpi.agents.agent_learner import AgentLearner
from bdpi.agents.policies import BDPIPolicy
from bdpi.agents.spaces import NativeInputs
from bdpi.learner import LearnerState, fused, native, nvrtc
from bdpi.learner.cohort import current_cohorts
from bdpi.learner.functional import bind_parameters, flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks
from bdpi.learner.native import NativeLearner
from bdpi.learner.rules import ActorRule
from bdpi.learner.rules.counterpart import check_counterpart
from bdpi.learner.tabular import TabularLearner
from bdpi.learner.torch import Precision, TorchLearner, dtype_of

LearnerChoice = Literal["auto", "native", "torch", "fused"]
_FUSED = (
    "the fused learner trains small perceptrons with one hidden layer of tanh or ReLU units, by the rules of this "
    f"package, with batches of at most {fused.LARGEST_BATCH}"
)


def tabular_learner(policy: BDPIPolicy, n_critics: int) -> AgentLearner:
    """Tables, for Discrete observations; the policy acts from the actor's table."""
    inputs = NativeInputs(policy.input_space, policy.normalize_images)
    learner = TabularLearner(inputs.size, policy.n_actions, n_critics)
    return _follow(policy, AgentLearner(learner, inputs, policy, has_actor=True))


def network_learner(
    policy: BDPIPolicy,
    rule: ActorRule | None,
    n_critics: int,
    batch_size: int,
    device: torch.device,
    choice: LearnerChoice = "auto",
    n_threads: int | None = None,
    prior_scale: float = 0.0,
    precision: Precision = "float32",
    picture_kernels: bool | None = None,
) -> AgentLearner:
    """Networks: the policy's actor, which shares its memory with the learner from now on, and critics.

    :param policy: one without an actor acts from the critics
    :param rule: how the actor follows a critic; None without an actor
    :param n_critics: number of critics
    :param batch_size: largest batch of an epoch
    :param device: where the PyTorch learner computes
    :param choice: "auto", or the name of a learner
    :param n_threads: threads of the native learner
    :param prior_scale: weight of a fixed random function in each critic
    :param precision: in which the PyTorch learner computes
    :param picture_kernels: see :class:`bdpi.learner.torch.TorchLearner`
    """
    chosen = _choose(policy, rule, choice, device, batch_size, prior_scale)
    if dtype_of(precision) != torch.float32 and chosen != "torch":
        raise ValueError(
            f"precision={precision!r} is for networks that PyTorch trains, such as those of CnnPolicy; the {chosen} "
            'learner, which trains these, computes in float32 (learner="torch" would take it)'
        )
    if rule is not None and chosen != "torch":
        check_counterpart(rule, policy.n_actions)
    critics = [[flatten_parameters(policy.make_critic()) for _ in range(2)] for _ in range(n_critics)]
    priors = [flatten_parameters(policy.make_critic()) for _ in range(n_critics)] if prior_scale else None
    state = LearnerState.fresh(
        None if policy.actor is None else flatten_parameters(policy.actor),
        np.array(critics),
        None if priors is None else np.array(priors),
    )
    learner: NativeLearner | TorchLearner
    inputs = None
    actor_parameters = None
    if chosen == "native":
        inputs = policy.native_inputs()
        assert inputs is not None
        learner = NativeLearner(
            actor_sizes=[inputs.size, *policy.actor_arch, policy.n_actions],
            critic_sizes=[inputs.size, *policy.critic_arch, policy.n_actions],
            state=state,
            activation="tanh" if policy.activation_fn is nn.Tanh else "relu",
            one_hot=inputs.one_hot,
            batch_size=batch_size,
            n_threads=n_threads,
            prior_scale=prior_scale,
        )
        if state.actor is not None:
            actor_parameters = torch.from_numpy(state.actor.parameters)
    else:
        # a copy of the actor, because a functional call swaps a module's parameters for a moment
        actor = copy.deepcopy(policy.actor)
        if chosen == "fused":
            inputs = policy.native_inputs()
            assert inputs is not None
            networks = FusedNetworks(
                (inputs.size, *policy.actor_arch, policy.n_actions),
                (inputs.size, *policy.critic_arch, policy.n_actions),
                inputs.one_hot,
                relu=policy.activation_fn is nn.ReLU,
            )
            cohorts = current_cohorts()
            if cohorts is None:
                learner = FusedLearner(actor, policy.make_critic(), state, networks, device)
            else:
                learner = member = cohorts.member(actor, policy.make_critic(), state, networks)
                actor_parameters = member.acting_parameters
                policy.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
                    lambda *_: member.take_over_acting()
                )
        else:
            learner = TorchLearner(
                actor,
                policy.make_critic(),
                state,
                device,
                policy.preprocess,
                prior_scale,
                precision,
                picture_kernels=picture_kernels,
            )
        if learner.actor is not None and actor_parameters is None:
            actor_parameters = learner.actor.parameters
    agent_learner = AgentLearner(learner, inputs, policy, has_actor=policy.actor is not None)
    if policy.actor is None or actor_parameters is None:
        return _follow(policy, agent_learner)
    bind_parameters(policy.actor, actor_parameters)
    agent_learner.actor_parameters = actor_parameters
    return agent_learner


def _follow(policy: BDPIPolicy, learner: AgentLearner) -> AgentLearner:
    """Without an actor network of its own, a policy asks the learner."""
    policy.actor = None
    policy.behaviour = learner.behaviour
    return learner


def check_choice(choice: LearnerChoice) -> None:
    """:raises ValueError: for a learner that there is not"""
    if choice not in get_args(LearnerChoice):
        raise ValueError(f'learner must be "auto", "native", "torch" or "fused", got {choice!r}')


def _choose(
    policy: BDPIPolicy,
    rule: ActorRule | None,
    choice: LearnerChoice,
    device: torch.device,
    batch_size: int,
    prior_scale: float,
) -> Literal["native", "torch", "fused"]:
    """The native learner wherever it can do the work; it is the fastest for small networks."""
    check_choice(choice)
    inputs = policy.native_inputs()
    sizes = [] if inputs is None else [inputs.size, *policy.critic_arch, policy.n_actions]
    actor_sizes = sizes if policy.actor is None or inputs is None else [inputs.size, *policy.actor_arch, sizes[-1]]
    one_hot = inputs is not None and inputs.one_hot
    can_fuse = all(fused.is_suitable(each, one_hot, batch_size, rule, prior_scale) for each in (sizes, actor_sizes))
    cohorts = current_cohorts()
    if choice == "auto" and cohorts is not None and can_fuse and fused.runs_on(cohorts.device):
        return "fused"
    if choice == "auto" and cohorts is not None and not can_fuse and fused.runs_on(cohorts.device):
        warnings.warn(
            f"these agents learn each by itself, not together, which is slower: {_FUSED}.",
            RuntimeWarning,
            stacklevel=2,
        )
    if choice == "fused":
        if not can_fuse:
            raise ValueError(f'{_FUSED}; for everything else use learner="auto"')
        if not fused.is_available():
            raise ValueError(f"the fused learner needs {nvrtc.REMEDY}")
        if not fused.runs_on(device if cohorts is None else cohorts.device):
            raise ValueError(f'the fused learner learns on a GPU, got device="{device}": give device="cuda"')
        return "fused"
    if choice == "torch":
        return "torch"
    knows_rule = rule is None or rule.native is not None
    suitable = inputs is not None and device.type == "cpu" and knows_rule
    if choice == "native":
        if not suitable:
            raise ValueError(
                "the native learner trains multi-layer perceptrons with tanh or ReLU units on the CPU, by actor rules "
                'that have a C++ counterpart; for everything else use learner="auto"'
            )
        if not native.is_available():
            raise ValueError(f"the native learner is not available: {native.info()['reason']}")
        return "native"
    if suitable and not native.is_available():
        warnings.warn(
            "bdpi was installed without its compiled learner and falls back to PyTorch: the same algorithm, but "
            f"18 to 140 times slower. {native.REMEDY}",
            RuntimeWarning,
            stacklevel=2,
        )
    return "native" if suitable and native.is_available() else "torch"
