"""ACKTR: A2C with a natural gradient and a trust region."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule

from bdpi.agents import checks
from bdpi.baselines.kfac import KFAC


class ACKTR(A2C):
    """Actor-Critic using Kronecker-Factored Trust Region (ACKTR), one of the paper's peers.

    SB3's A2C whose optimiser is :class:`~bdpi.baselines.kfac.KFAC`. Neither SB3 nor its contrib package has ACKTR any
    more, since their move from TensorFlow to PyTorch, and no maintained library has its optimiser.

    Paper: Wu et al., "Scalable trust-region method for deep reinforcement learning using Kronecker-factored
    approximation", https://arxiv.org/abs/1708.05144

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of SB3's ``ActorCriticPolicy``
    :param env: the environment to learn from
    :param learning_rate: of K-FAC: the longest step, before the trust region. May be a function of the remaining
        progress, such as SB3's ``LinearSchedule(0.25, 0, 1)``, a linear decay.
    :param n_steps: steps in each environment between two updates
    :param gamma: discount factor
    :param gae_lambda: 1 is the plain n-step return, lower trusts the critic more
    :param ent_coef: weight of the policy's entropy in the loss. Higher explores longer.
    :param vf_coef: weight of the critic's squared error in the loss
    :param vf_fisher_coef: weight of the critic in the Fisher matrix: the inverse of the variance that values are taken
        to have. Higher makes the critic learn more slowly.
    :param max_grad_norm: gradients are shortened to this length before the optimiser sees them
    :param kl_clip: trust region, see :class:`~bdpi.baselines.kfac.KFAC`, as for the following
    :param damping: added to the Fisher matrix
    :param momentum: how much of the last direction is kept
    :param fisher_decay: of the Fisher matrix's running average
    :param refresh_interval: updates between two decompositions of the Fisher matrix
    :param common: what all of SB3's on-policy algorithms have in common: ``policy_kwargs``, ``seed``, ``verbose``, …
    """

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 0.25,
        n_steps: int = 20,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        ent_coef: float = 0.01,
        vf_coef: float = 0.5,
        *,
        vf_fisher_coef: float = 1.0,
        max_grad_norm: float = 0.5,
        kl_clip: float = 0.001,
        damping: float = 0.01,
        momentum: float = 0.9,
        fisher_decay: float = 0.99,
        refresh_interval: int = 10,
        _init_setup_model: bool = True,
        **common: Any,
    ) -> None:
        of_a2c = common.keys() & {"use_rms_prop", "rms_prop_eps"}
        if of_a2c:
            raise ValueError(f"ACKTR has an optimiser of its own, K-FAC: leave {' and '.join(sorted(of_a2c))} out")
        self.vf_fisher_coef = vf_fisher_coef
        self.kl_clip = kl_clip
        self.damping = damping
        self.momentum = momentum
        self.fisher_decay = fisher_decay
        self.refresh_interval = refresh_interval
        super().__init__(
            policy,
            env,
            learning_rate,
            n_steps,
            gamma,
            gae_lambda,
            ent_coef,
            vf_coef,
            max_grad_norm,
            use_rms_prop=False,
            _init_setup_model=False,
            **common,
        )
        checks.check_learning_rate("learning_rate", learning_rate)
        checks.check_number("vf_fisher_coef", vf_fisher_coef, 0)
        if self.policy_kwargs.keys() & {"optimizer_class", "optimizer_kwargs"}:
            raise ValueError("ACKTR has an optimiser of its own: leave optimizer_class and optimizer_kwargs out")
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self.policy.optimizer = KFAC(self.policy, self.lr_schedule(1), **self._of_optimizer())

    def _of_optimizer(self) -> dict[str, Any]:
        return {
            "momentum": self.momentum,
            "decay": self.fisher_decay,
            "damping": self.damping,
            "kl_clip": self.kl_clip,
            "refresh_interval": self.refresh_interval,
        }

    def set_parameters(self, *args: Any, **kwargs: Any) -> None:
        """SB3's ``set_parameters``; what the agent was told about its optimiser counts, not what was saved with it."""
        super().set_parameters(*args, **kwargs)
        for group in self.policy.optimizer.param_groups:
            group.update(self._of_optimizer())

    def train(self) -> None:
        """Update the Fisher matrix, then the networks, from the steps that were collected."""
        self.policy.set_training_mode(True)
        for rollout in self.rollout_buffer.get(batch_size=None):
            self._update_fisher(rollout.observations)
        super().train()
        # The last distribution holds on to the graph of its gradients, with which policies could not be copied.
        self.policy.action_dist.distribution = None  # type: ignore[assignment]

    def _update_fisher(self, observations: Any) -> None:
        """The Fisher matrix of actions and values together, of which values are taken for the mean of a Gaussian."""
        optimizer = self.policy.optimizer
        assert isinstance(optimizer, KFAC)
        # Drawn from the policy and not taken from the rollout, of which the gradient is computed: a small batch would
        # tie the two together.
        with torch.no_grad():
            actions = self.policy.get_distribution(observations).sample()
        if isinstance(self.action_space, spaces.Discrete):
            actions = actions.flatten()
        with optimizer.observe(self.policy) as observation:
            values, log_likelihood, _ = self.policy.evaluate_actions(observations, actions)
        drawn = values.detach() + torch.randn_like(values) / self.vf_fisher_coef**0.5
        errors = (values - drawn).flatten()
        optimizer.update_fisher(observation, log_likelihood - self.vf_fisher_coef / 2 * errors**2)

    def learn(  # type: ignore[override]
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "ACKTR",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> ACKTR:
        """SB3's ``learn``; only the name in TensorBoard is another one."""
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
