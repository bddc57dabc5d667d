"""ACER: an actor-critic that also learns from what it remembers."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule
from stable_baselines3.common.utils import obs_as_tensor, polyak_update
from torch import Tensor, nn

from bdpi.agents import checks

_TINY = 1e-6


class ACERPolicy(ActorCriticPolicy):
    """An actor, and a critic that has a value for each action; the value of a state is the actor's mean of them."""

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        assert isinstance(self.action_space, spaces.Discrete)
        self.value_net = nn.Linear(self.mlp_extractor.latent_dim_vf, int(self.action_space.n))
        if self.ortho_init:
            self.init_weights(self.value_net)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def probabilities_and_values(self, observations: PyTorchObs) -> tuple[Tensor, Tensor]:
        """Of each action, (observations, actions)."""
        latent_pi, latent_vf = self.mlp_extractor(self.extract_features(observations))
        return torch.softmax(self.action_net(latent_pi), dim=-1), self.value_net(latent_vf)

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """See SB3's policy."""
        probabilities, values = self.probabilities_and_values(obs)
        distribution = self.get_distribution(obs)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, (probabilities * values).sum(-1, keepdim=True), distribution.log_prob(actions)

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """See SB3's policy."""
        probabilities, values = self.probabilities_and_values(obs)
        return (probabilities * values).sum(-1, keepdim=True)


@dataclass(frozen=True)
class Segment:
    """A few steps of all environments; arrays are (steps, environments, ...).

    :param observations: with one step more than there are actions
    :param dones: whether the step ended an episode
    :param behaviour: probabilities of all actions when these were drawn
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    behaviour: Tensor


class ACER(OnPolicyAlgorithm):
    """Actor-critic with experience replay (ACER), for discrete actions. The paper tried it, and does not show it.

    What is remembered is corrected by truncated importance weights, values by Retrace, and the policy stays within a
    trust region around a running average of itself. Defaults are those of OpenAI Baselines. Neither SB3 nor its contrib
    package has ACER.

    Paper: Wang et al., "Sample efficient actor-critic with experience replay", https://arxiv.org/abs/1611.01224

    :param policy: "MlpPolicy", or a subclass of :class:`ACERPolicy`
    :param env: the environment to learn from
    :param learning_rate: of RMSprop
    :param n_steps: steps in each environment between two updates from new steps
    :param gamma: discount factor
    :param replay_ratio: how many updates from memory follow on average. Higher learns more from each step.
    :param buffer_size: steps that are remembered
    :param replay_start: steps before the first update from memory
    :param truncation: largest importance weight; what is cut off is corrected for
    :param trust_region: how far an update may go, as a divergence from the average policy
    :param average_decay: of that average. Higher is slower.
    :param q_coef: weight of the critic's squared error in the loss
    :param ent_coef: weight of the policy's entropy. Higher explores longer.
    :param max_grad_norm: gradients are shortened to this length
    :param common: what all of SB3's on-policy algorithms have in common: ``policy_kwargs``, ``seed``, ``verbose``, …
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": ACERPolicy}
    policy: ACERPolicy

    def __init__(
        self,
        policy: str | type[ACERPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 7e-4,
        n_steps: int = 20,
        gamma: float = 0.99,
        *,
        replay_ratio: float = 4.0,
        buffer_size: int = 50_000,
        replay_start: int = 10_000,
        truncation: float = 10.0,
        trust_region: float = 1.0,
        average_decay: float = 0.99,
        q_coef: float = 0.5,
        ent_coef: float = 0.01,
        max_grad_norm: float = 10.0,
        _init_setup_model: bool = True,
        policy_kwargs: dict[str, Any] | None = None,
        **common: Any,
    ) -> None:
        for name, value in {
            "replay_ratio": replay_ratio,
            "truncation": truncation,
            "trust_region": trust_region,
        }.items():
            checks.check_number(name, value, 0)
        self.replay_ratio, self.buffer_size, self.replay_start = replay_ratio, buffer_size, replay_start
        self.truncation, self.trust_region, self.average_decay = truncation, trust_region, average_decay
        self.q_coef = q_coef
        super().__init__(
            policy,
            env,
            learning_rate,
            n_steps,
            gamma,
            gae_lambda=1.0,
            ent_coef=ent_coef,
            vf_coef=q_coef,
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            policy_kwargs={
                "optimizer_class": RMSpropTFLike,
                "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5, "weight_decay": 0},
                **(policy_kwargs or {}),
            },
            supported_action_spaces=(spaces.Discrete,),
            _init_setup_model=_init_setup_model,
            **common,
        )

    def _setup_model(self) -> None:
        super()._setup_model()
        self.average = copy.deepcopy(self.policy).requires_grad_(False)
        steps = self.n_steps * self.n_envs
        self._memory: deque[Segment] = deque(maxlen=max(1, self.buffer_size // steps))
        self._least = -(-self.replay_start // steps)
        self._generator = np.random.default_rng(self.seed)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "average", "_memory", "_generator"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names, tensors = super()._get_torch_save_params()
        return [*names, "average"], tensors

    def train(self) -> None:
        """An update from the steps that were just made, and some from memory."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        segment = self._new_segment()
        self._memory.append(segment)
        self._update(segment)
        if len(self._memory) >= self._least:
            for _ in range(self._generator.poisson(self.replay_ratio)):
                self._update(self._memory[self._generator.integers(len(self._memory))])

    def _new_segment(self) -> Segment:
        buffer, last = self.rollout_buffer, self._last_obs
        assert isinstance(last, np.ndarray)
        observations = np.concatenate([buffer.observations, last.reshape(1, *buffer.observations.shape[1:])])
        ended = np.concatenate([buffer.episode_starts[1:], np.asarray(self._last_episode_starts, np.float32)[None]])
        seen = obs_as_tensor(observations, self.device)
        assert isinstance(seen, Tensor)
        with torch.no_grad():
            behaviour, _ = self._of_both(seen)
        return Segment(
            seen,
            torch.as_tensor(buffer.actions.squeeze(-1), device=self.device).long(),
            torch.as_tensor(buffer.rewards, device=self.device),
            torch.as_tensor(ended, device=self.device),
            behaviour[:-1],
        )

    def _of_both(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and values, (steps, environments, actions)."""
        found = self.policy.probabilities_and_values(observations.flatten(0, 1))
        first, second = (each.reshape(*observations.shape[:2], -1) for each in found)
        return first, second

    def _update(self, segment: Segment) -> None:
        probabilities, values = self._of_both(segment.observations)
        states = (probabilities * values).sum(-1).detach()
        taken = segment.actions.unsqueeze(-1)
        value_taken = values[:-1].gather(-1, taken).squeeze(-1)
        now = probabilities[:-1]
        ratios = now.detach() / (segment.behaviour + _TINY)
        ratio_taken = ratios.gather(-1, taken).squeeze(-1)
        targets = retrace(segment.rewards, segment.dones, value_taken.detach(), states, ratio_taken, self.gamma)
        direction = self._direction(segment, now.detach(), values[:-1].detach(), states[:-1], targets, ratios)
        loss = -(direction * now).sum(-1).mean() + self.q_coef * 0.5 * (targets - value_taken).square().mean()
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        polyak_update(self.policy.parameters(), self.average.parameters(), 1 - self.average_decay)

    def _direction(
        self, segment: Segment, now: Tensor, values: Tensor, states: Tensor, targets: Tensor, ratios: Tensor
    ) -> Tensor:
        """Where the probabilities are to go: up the gain, as far as the trust region allows."""
        chosen = nn.functional.one_hot(segment.actions, now.shape[-1])
        truncated = (ratios * chosen).sum(-1).clamp(max=self.truncation) * (targets - states)
        correction = (1 - self.truncation / (ratios + _TINY)).clamp(min=0) * now * (values - states.unsqueeze(-1))
        entropy = -self.ent_coef * (torch.log(now + _TINY) + 1)
        gain = (truncated.unsqueeze(-1) * chosen + correction) / (now + _TINY) + entropy
        with torch.no_grad():
            before, _ = self.average.probabilities_and_values(segment.observations[:-1].flatten(0, 1))
        away = -before.reshape(now.shape) / (now + _TINY)  # gradient of the divergence from the average
        too_far = ((away * gain).sum(-1, keepdim=True) - self.trust_region).clamp(min=0)
        return gain - too_far / (away.square().sum(-1, keepdim=True) + _TINY) * away


def retrace(rewards: Tensor, dones: Tensor, taken: Tensor, states: Tensor, ratios: Tensor, gamma: float) -> Tensor:
    """Values of the actions that were taken, corrected as far as the policy would have taken them, too.

    :param taken: the critic's values of these actions, (steps, environments)
    :param states: of the observations, with one step more
    :param ratios: how much more likely these actions are now
    """
    found = torch.empty_like(rewards)
    target = states[-1]
    for step in reversed(range(len(rewards))):
        target = rewards[step] + gamma * target * (1 - dones[step])
        found[step] = target
        target = ratios[step].clamp(max=1) * (target - taken[step]) + states[step]
    return found
