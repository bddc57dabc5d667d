"""Which learner trains a policy's networks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from bdpi.agents.agent_learner import AgentLearner
from bdpi.agents.policies import BDPIPolicy
from bdpi.agents.spaces import NativeInputs
from bdpi.learner import LearnerState, native
from bdpi.learner.adam import AdamSettings
from bdpi.learner.arrangement import Precision, dtype_of
from bdpi.learner.functional import bind_parameters, flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks
from bdpi.learner.joint import JointLearner, Trainer
from bdpi.learner.native import NativeLearner
from bdpi.learner.registry import LearnerChoice, Task, can_learn_together, choose
from bdpi.learner.rules import ActorRule, ClippedDouble, CriticRule, check_rule
from bdpi.learner.tabular import TabularLearner
from bdpi.learner.torch import TorchLearner
from bdpi.learner.twins import check_twins

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble


def make_learner(agent: Ensemble) -> AgentLearner:
    """What an agent learns with.

    :raises ValueError: for rules with mistakes in them, and for a learner that cannot train its networks
    """
    policy, rule, critic_rule = agent.policy, agent.actor_rule(), agent.critic_rule()
    check_rule(critic_rule, policy.n_actions, "critic")
    if rule is None:
        policy.actor = None
    else:
        check_rule(rule, policy.n_actions, "actor")
    if agent.has_tables:
        return tabular_learner(policy, agent.n_critics)
    threads = agent.n_threads
    if threads is None and agent.asynchronous:
        threads = max(1, native.default_threads() - 1)  # acting needs a core, too
    return network_learner(
        policy,
        rule,
        agent.n_critics,
        agent.batch_size,
        agent.device,
        agent.learner_choice,
        threads,
        agent.prior_scale,
        agent.precision,
        critic_rule=critic_rule,
        max_grad_norm=agent.max_grad_norm,
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
    critic_rule: CriticRule | None = None,
    max_grad_norm: float | None = None,
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
    :param critic_rule: how critics move towards their new estimates; None: BDPI's
    :param max_grad_norm: longer gradients of a network are shortened to it
    """
    critic_rule = critic_rule or ClippedDouble()
    policy.prior_scale = prior_scale
    inputs, networks = policy.native_inputs(), _sizes(policy)
    rules = (critic_rule,) if rule is None else (critic_rule, rule)
    one_hot = inputs is not None and inputs.one_hot
    adam = AdamSettings(**policy.optimizer_kwargs, max_norm=max_grad_norm)
    chosen = choose(Task(networks, one_hot, batch_size, device, rules, prior_scale, adam), choice)
    if dtype_of(precision) != torch.float32 and chosen != "torch":
        raise ValueError(
            f"precision={precision!r} is for networks that PyTorch trains, such as those of CnnPolicy; the {chosen} "
            'learner, which trains these, computes in float32 (learner="torch" would take it)'
        )
    if chosen != "torch":
        check_twins(rule, policy.n_actions, critic_rule)
    critics = [[flatten_parameters(policy.make_critic()) for _ in range(2)] for _ in range(n_critics)]
    priors = [flatten_parameters(policy.make_critic()) for _ in range(n_critics)] if prior_scale else None
    state = LearnerState.fresh(
        None if policy.actor is None else flatten_parameters(policy.actor),
        np.array(critics),
        None if priors is None else np.array(priors),
    )
    learner: NativeLearner | TorchLearner
    if chosen == "native":
        assert inputs is not None
        learner = NativeLearner(
            actor_sizes=networks[-1],
            critic_sizes=networks[0],
            state=state,
            activation="tanh" if policy.activation_fn is nn.Tanh else "relu",
            one_hot=inputs.one_hot,
            batch_size=batch_size,
            n_threads=n_threads,
            prior_scale=prior_scale,
        )
    else:
        # a copy of the actor, because a functional call swaps a module's parameters for a moment
        actor = copy.deepcopy(policy.actor)
        if chosen == "fused":
            assert inputs is not None
            learner = FusedLearner(actor, policy.make_critic(), state, _fused_networks(policy, inputs), device)
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
                adam=adam,
            )
    agent_learner = AgentLearner(
        learner, None if chosen == "torch" else inputs, policy, has_actor=policy.actor is not None
    )
    if policy.actor is None:
        return _follow(policy, agent_learner)
    share_actor(policy, agent_learner)
    return agent_learner


def share_actor(policy: BDPIPolicy, made: AgentLearner) -> None:
    """Have the policy's actor, if it has one, share its memory with the learner, which changes it."""
    learner, shared = made.learner, None
    if isinstance(learner, NativeLearner) and learner.state.actor is not None:
        shared = torch.from_numpy(learner.state.actor.parameters)
    elif isinstance(learner, TorchLearner) and learner.actor is not None:
        shared = learner.actor.parameters
    if policy.actor is not None and shared is not None:
        bind_parameters(policy.actor, shared)
        made.actor_parameters = shared


def learn_together(agent: Ensemble, trainer: Trainer) -> JointLearner | None:
    """Have an agent trained together with others from now on, if it left the choice of its learner to us.

    :return: its learner; None if it goes on by itself, because the kernels do not know such networks or rules
    """
    policy, made, inputs = agent.policy, agent.agent_learner, agent.policy.native_inputs()
    if agent.learner_choice not in ("auto", "fused") or isinstance(made.learner, TabularLearner):
        return None
    rule, critic_rule = agent.actor_rule(), agent.critic_rule()
    rules = (critic_rule,) if rule is None else (critic_rule, rule)
    one_hot = inputs is not None and inputs.one_hot
    adam = AdamSettings(**policy.optimizer_kwargs, max_norm=agent.max_grad_norm)
    task = Task(_sizes(policy), one_hot, agent.batch_size, agent.device, rules, agent.prior_scale, adam)
    if inputs is None or not can_learn_together(task):
        return None
    learner = JointLearner(trainer, _fused_networks(policy, inputs), made.learner.state_dict())
    agent.agent_learner = AgentLearner(learner, inputs, policy, made.has_actor)
    if policy.actor is None:
        _follow(policy, agent.agent_learner)
    else:
        acting = agent.agent_learner.actor_parameters = torch.from_numpy(learner.acting)
        agent.agent_learner.act_with(acting)
        hook = policy.register_load_state_dict_post_hook
        hook(lambda *_: learner.take_over_acting())  # type: ignore[no-untyped-call]
    return learner


def _sizes(policy: BDPIPolicy) -> tuple[tuple[int, ...], ...]:
    """Of critics, and of the actor if there is one; empty if they are not perceptrons."""
    inputs = policy.native_inputs()
    if inputs is None:
        return ()
    archs = [policy.critic_arch, *([] if policy.actor is None else [policy.actor_arch])]
    return tuple((inputs.size, *arch, policy.n_actions) for arch in archs)


def _fused_networks(policy: BDPIPolicy, inputs: NativeInputs) -> FusedNetworks:
    sizes = _sizes(policy)
    return FusedNetworks(sizes[-1], sizes[0], inputs.one_hot, relu=policy.activation_fn is nn.ReLU)


def _follow(policy: BDPIPolicy, learner: AgentLearner) -> AgentLearner:
    """Without an actor network of its own, a policy asks the learner."""
    policy.follow(learner)
    return learner
