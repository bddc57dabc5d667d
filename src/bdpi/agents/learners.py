"""Which learner trains a policy's networks, and how it is fed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from bdpi.agents.buffers import gather
from bdpi.agents.policies import BDPIPolicy, mask_probabilities
from bdpi.agents.spaces import NativeInputs, scaled
from bdpi.learner import Learner, LearnerState, Transitions
from bdpi.learner.arrangement import Precision, dtype_of
from bdpi.learner.cohort import current_cohorts
from bdpi.learner.functional import bind_parameters, flatten_parameters
from bdpi.learner.fused import FusedLearner, FusedNetworks
from bdpi.learner.interface import BoolArray, FloatArray, IntArray, Observations
from bdpi.learner.native import NativeLearner
from bdpi.learner.registry import LearnerChoice, Task, choose
from bdpi.learner.rules import ActorRule, ClippedDouble, CriticRule
from bdpi.learner.scales import Scales, rescale_critics, scale_to_range
from bdpi.learner.tabular import TabularLearner, allowed
from bdpi.learner.torch import TorchLearner
from bdpi.learner.twins import check_twins


class AgentLearner:
    """A learner, and the way from an agent's observations to its inputs.

    :param learner: any learner
    :param inputs: from replay arrays to the learner's arrays; None where it takes the replay arrays themselves
    :param policy: whose networks are trained; has their scales
    :param has_actor: the agent follows an actor; else it follows its critics
    """

    def __init__(self, learner: Learner, inputs: NativeInputs | None, policy: BDPIPolicy, has_actor: bool) -> None:
        self.learner = learner
        self.has_actor = has_actor
        self._policy = policy
        #: networks do; tables learn as well in any
        self.learns_in_units = not isinstance(learner, TabularLearner)
        #: that the policy's network shares with the learner, which changes them
        self.actor_parameters: torch.Tensor | None = None
        self._inputs = inputs

    def prepare(
        self, transitions: Transitions, batches: IntArray, normalizer: VecNormalize | None
    ) -> tuple[Transitions, IntArray]:
        """The learner's arrays for these batches: the replay memory itself where possible, else a converted copy."""
        inputs = self._inputs
        if normalizer is not None or (inputs is not None and not inputs.direct):
            transitions = gather(transitions, batches, normalizer)
            batches = np.arange(batches.size).reshape(batches.shape)
        if inputs is not None:
            transitions = dataclasses.replace(
                transitions,
                observations=inputs(transitions.observations),
                next_observations=inputs(transitions.next_observations),
            )
        return dataclasses.replace(transitions, scales=self._scales_of_inputs()), batches

    def _scales_of_inputs(self) -> Scales:
        """The policy's scales, for all inputs of a native learner's networks; those that are one-hot have none."""
        scales = self._policy.scales
        if self._inputs is None or len(scales.shift):
            return scales
        unscaled = Scales.none(self._inputs.size)
        return dataclasses.replace(scales, shift=unscaled.shift, factor=unscaled.factor)

    def scaled_to_range(self, observations: Observations, is_first: bool) -> Scales:
        """The policy's scales, those of inputs made for these observations, too.

        :param is_first: they were not made for any before
        """
        before = self._policy.scales
        flat = self.flat(observations)
        return before if flat is None else scale_to_range(before, flat, is_first)

    def is_far(self, observations: Observations) -> bool:
        """Whether one of these is far from all that the policy's scales were made for."""
        flat = self.flat(observations)
        return flat is not None and self._policy.scales.is_far(flat)

    def flat(self, observations: Observations) -> NDArray[Any] | None:
        """All numbers of observations that are scaled, side by side; None: there are none."""
        keys = [key for key in self._policy.scaled_parts if key is not None]
        parts = [observations[key] for key in keys] if isinstance(observations, dict) else [observations]
        if not self._policy.scaled_parts:
            return None
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def set_scales(self, scales: Scales) -> None:
        """Have networks see the world by other scales; Q-values in the user's units stay what they are."""
        before = self._policy.scales
        if before.knows_returns:
            state = {name: array.copy() for name, array in self.learner.state_dict().items()}
            rescale_critics(state, before, scales, self._policy.last_layer_size, self._policy.n_actions)
            self.learner.load_state_dict(state)
        self._policy.scales = scales

    def _seen(self, observations: Observations) -> Observations:
        """Zero-based observations as the learner predicts from them."""
        return observations if self._inputs is None else scaled(self._inputs, observations, self._policy.scales)

    def q_values(self, observations: Observations) -> FloatArray:
        """Q_A(s, .) of every critic for zero-based observations, (n_critics, n, n_actions), in the user's units."""
        return self._policy.scales.q_values(self.learner.q_values(self._seen(observations)))

    def behaviour(self, observations: Observations, masks: BoolArray | None = None) -> FloatArray:
        """What the agent does in zero-based observations: probabilities, (n, n_actions).

        :param masks: which actions are allowed; an actor's probabilities are for the caller to mask
        """
        return self._behaviour(self._seen(observations), masks)

    def _behaviour(self, inputs: Observations, masks: BoolArray | None) -> FloatArray:
        if self.has_actor:
            return self.learner.policy(inputs)
        # Whoever picks a critic at random and follows it takes each action as often as critics prefer it.
        q = self.learner.q_values(inputs)
        return np.eye(q.shape[2], dtype=np.float32)[allowed(q, masks).argmax(axis=2)].mean(axis=0)

    def opinions(self, transitions: Transitions, batch: IntArray) -> tuple[FloatArray, IntArray]:
        """For the states of a prepared batch: what the agent does, and each critic's greedy action (n_critics, n)."""
        stored = transitions.observations
        states = {key: part[batch] for key, part in stored.items()} if isinstance(stored, dict) else stored[batch]
        if self._inputs is not None and transitions.scales is not None and not self._inputs.one_hot:
            states = transitions.scales.inputs(np.asarray(states))
        masks = None if transitions.masks is None else transitions.masks[batch]
        behaviour = mask_probabilities(self._behaviour(states, masks), masks)
        return behaviour, allowed(self.learner.q_values(states), masks).argmax(axis=2)

    # What SB3's save and load ask of anything that they store.

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that learning changes."""
        return {name: torch.from_numpy(array.copy()) for name, array in self.learner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Take over a state; a state of other networks is refused."""
        self.learner.load_state_dict({name: np.asarray(tensor.cpu()) for name, tensor in state.items()})


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
    """
    critic_rule = critic_rule or ClippedDouble()
    cohorts, inputs = current_cohorts(), policy.native_inputs()
    networks: tuple[tuple[int, ...], ...] = ()
    if inputs is not None:
        archs = [policy.critic_arch, *([] if policy.actor is None else [policy.actor_arch])]
        networks = tuple((inputs.size, *arch, policy.n_actions) for arch in archs)
    task = Task(
        networks,
        inputs is not None and inputs.one_hot,
        batch_size,
        device,
        (critic_rule,) if rule is None else (critic_rule, rule),
        prior_scale,
        None if cohorts is None else cohorts.device,
    )
    chosen = choose(task, choice)
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
    actor_parameters = None
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
        if state.actor is not None:
            actor_parameters = torch.from_numpy(state.actor.parameters)
    else:
        # a copy of the actor, because a functional call swaps a module's parameters for a moment
        actor = copy.deepcopy(policy.actor)
        if chosen == "fused":
            assert inputs is not None
            sizes = FusedNetworks(networks[-1], networks[0], inputs.one_hot, relu=policy.activation_fn is nn.ReLU)
            if cohorts is None:
                learner = FusedLearner(actor, policy.make_critic(), state, sizes, device)
            else:
                learner = member = cohorts.member(actor, policy.make_critic(), state, sizes)
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
    agent_learner = AgentLearner(
        learner, None if chosen == "torch" else inputs, policy, has_actor=policy.actor is not None
    )
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
