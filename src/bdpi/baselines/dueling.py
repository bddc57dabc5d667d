"""DQN with a dueling network and prioritized replay."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import NatureCNN, create_mlp
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn
from torch.nn import functional as F

from bdpi.agents import checks
from bdpi.baselines.prioritized import PrioritizedReplayBuffer


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .), from two streams of hidden layers."""

    def __init__(self, n_features: int, n_actions: int, hidden: list[int], activation: type[nn.Module]) -> None:
        super().__init__()
        self.value = nn.Sequential(*create_mlp(n_features, 1, hidden, activation))
        self.advantage = nn.Sequential(*create_mlp(n_features, n_actions, hidden, activation))

    def forward(self, features: Tensor) -> Tensor:
        """Q-values, (n, n_actions)."""
        advantages = self.advantage(features)
        return self.value(features) + advantages - advantages.mean(dim=1, keepdim=True)


class DuelingQNetwork(QNetwork):
    """SB3's Q-network with another head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.q_net = DuelingHead(self.features_dim, int(self.action_space.n), self.net_arch, self.activation_fn)  # type: ignore[assignment]


class DuelingPolicy(DQNPolicy):
    """SB3's policy of DQN with dueling networks.

    The features extractor is common to both streams, ``net_arch`` are the hidden layers that each of them has.
    """

    def make_q_net(self) -> DuelingQNetwork:
        """A new Q-network."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return DuelingQNetwork(**arguments).to(self.device)


class DuelingCnnPolicy(DuelingPolicy):
    """The same for images."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": NatureCNN, **kwargs})


class PrioritizedDuelingDQN(DQN):
    """Dueling DQN with prioritized experience replay, one of the paper's peers.

    As in the papers of both ideas, targets are those of Double DQN.

    Papers: Wang et al., 2016, https://arxiv.org/abs/1511.06581; Schaul et al., 2016, https://arxiv.org/abs/1511.05952

    :param policy: "MlpPolicy", "CnnPolicy", or a subclass of :class:`DuelingPolicy`
    :param env: the environment to learn from
    :param learning_rate: Adam's learning rate; may be a function of the remaining progress
    :param alpha: how much priorities change sampling: 0 not at all, 1 in proportion
    :param beta: how much of the bias of that is corrected, at the beginning of training; it grows to 1, linearly
    :param n_steps: of rewards that targets are made of, before a value takes their place
    :param double_q: the network that is trained chooses the action whose target value is used. Without, the target
        network does, which overestimates.
    :param common: of SB3's ``DQN``: ``buffer_size``, ``batch_size``, ``gamma``, ``policy_kwargs``, ``seed``, …
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": DuelingPolicy,
        "CnnPolicy": DuelingCnnPolicy,
    }

    def __init__(
        self,
        policy: str | type[DuelingPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        n_steps: int = 1,
        double_q: bool = True,
        _init_setup_model: bool = True,
        **common: Any,
    ) -> None:
        if "replay_buffer_class" in common:
            raise ValueError("PrioritizedDuelingDQN has a replay buffer of its own: leave replay_buffer_class out")
        checks.check_learning_rate("learning_rate", learning_rate)
        self.alpha, self.beta, self.double_q = alpha, beta, double_q
        super().__init__(
            policy,
            env,
            learning_rate,
            n_steps=n_steps,
            replay_buffer_class=PrioritizedReplayBuffer,
            _init_setup_model=False,
            **common,
        )
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        names = ("alpha", "beta", "n_steps", "gamma")
        self.replay_buffer_kwargs = {**self.replay_buffer_kwargs, **{name: getattr(self, name) for name in names}}
        n_steps, self.n_steps = self.n_steps, 1  # of more, SB3 warns that a buffer like ours would not look at them
        super()._setup_model()
        self.n_steps = n_steps

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Gradient steps on batches that are sampled by priority, whose errors are their next priorities."""
        buffer = self.replay_buffer
        assert isinstance(buffer, PrioritizedReplayBuffer)
        buffer.beta = 1 - (1 - self.beta) * max(self._current_progress_remaining, 0.0)
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            batch = buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                next_values = self.q_net_target(batch.next_observations)
                chooser = self.q_net(batch.next_observations) if self.double_q else next_values
                next_values = next_values.gather(1, chooser.argmax(dim=1, keepdim=True))
                discounts = self.gamma if batch.discounts is None else batch.discounts
                targets = batch.rewards + (1 - batch.dones) * discounts * next_values
            values = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = (batch.weights * F.smooth_l1_loss(values, targets, reduction="none")).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            buffer.update_priorities(batch.places, (targets - values.detach()).cpu().numpy())
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/beta", buffer.beta)

    def learn(  # type: ignore[override]
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "PrioritizedDuelingDQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> PrioritizedDuelingDQN:
        """SB3's ``learn``; only the name in TensorBoard is another one."""
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
