"""What all agents with several off-policy critics share: an SB3 algorithm around a learner.

An agent differs from another in three places: the rule by which its actor follows the critics (:meth:`actor_rule`),
the learner (:meth:`_make_learner`), and how it picks actions in training (:meth:`_pick_actions`).
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import (
    GymEnv,
    MaybeCallback,
    Schedule,
)
from stable_baselines3.common.utils import FloatSchedule

from bdpi.agents import checks
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
from bdpi.agents.checkup import WORTH_ANOTHER, Checkup, EpisodeRecord, look
from bdpi.agents.environments import make_if_id
from bdpi.agents.health import Finding
from bdpi.agents.journal import Journal
from bdpi.agents.learners import AgentLearner, network_learner
from bdpi.agents.metrics import entropy_bits, kl_divergence
from bdpi.agents.policies import BDPIPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, draw, mask_probabilities
from bdpi.agents.saving import SavingAlgorithm
from bdpi.learner import Hyperparameters, Transitions, native
from bdpi.learner.arrangement import Precision, dtype_of
from bdpi.learner.interface import BoolArray, EpochMetrics, FloatArray, IntArray
from bdpi.learner.registry import LearnerChoice, check_choice
from bdpi.learner.rules import ActorRule, ClippedDouble, CriticRule, check_rule
from bdpi.learner.scales import FAR, Scales, scale_returns

Self = TypeVar("Self", bound="EnsembleAlgorithm")

#: Entropy, disagreement and KL cost a few forward passes; every hundredth epoch is enough to draw their curves.
DIAGNOSTICS_EVERY = 100
#: Q-values so many times larger than the largest reward, for ever, would be worth belong to no policy.
DIVERGED = 100.0


class EnsembleAlgorithm(SavingAlgorithm):
    """Several critics, and perhaps an actor, trained by an :class:`~bdpi.agents.learners.AgentLearner`.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of
        :class:`~bdpi.agents.policies.BDPIPolicy`
    :param env: the environment to learn from (an id, an environment or a ``VecEnv``); Discrete actions
    :param learning_rate: Adam's learning rate of the critics; may be a function of the remaining progress
    :param buffer_size: how many transitions are remembered. A larger memory forgets less and reacts more slowly.
    :param batch_size: transitions per batch. Learning starts when there is one batch.
    :param gamma: discount factor
    :param train_freq: transitions (of each environment) between learning epochs, or ``(n, "episode")``.
        More than 1 saves computation at the cost of samples.
    :param gradient_steps: learning epochs each time, per environment; -1 makes as many as there were transitions
    :param n_critics: N_c. More critics make learning smoother and exploration more careful, and cost time.
    :param critics_per_step: how many of the critics an epoch trains, picked at random; all if None
    :param critic_iterations: N_t, training iterations per critic and epoch. More extract more from a batch.
    :param fit_steps: Adam steps per fit of a network; 20 if None (1 where there are pictures)
    :param critic_step_size: alpha, how far Q-values move towards their new estimate in one iteration. Lower values
        average over more transitions, which noisy rewards may need.
    :param scale_observations: have networks see numbers between -1 and 1, by the range observed so far, so that any
        unit will do. Pictures and state numbers are never scaled. A ``VecNormalize`` does it instead.
    :param return_size: the size that returns have for networks with 32 hidden units and 20 fit steps, in proportion for
        others: rewards are scaled by what was observed, so that any unit will do. Smaller learns faster from each
        batch, and overfits it sooner. None: rewards are as they are. A ``VecNormalize`` that normalises rewards does
        it instead.
    :param policy_kwargs: arguments of the policy, for instance ``dict(net_arch=[256])``
    :param stats_window_size: episodes over which the logged mean return is taken
    :param tensorboard_log: folder for TensorBoard; no such log if None
    :param verbose: 0 silent, 1 information, 2 debugging
    :param seed: makes everything repeatable, bit for bit on the same machine
    :param device: where networks live. "auto" is the CPU for perceptrons, else a GPU if there is one.
    :param learner: "native" (C++), "torch", or "auto": native wherever possible. "fused" has kernels of its own for
        small perceptrons on a GPU.
    :param precision: in which the PyTorch learner computes. "bfloat16" makes convolutional networks faster on a GPU:
        their convolutions and matrix products are rounded to 8 significant bits while they learn, by kernels of our own
        where the networks have the usual shape and Triton is installed, else by PyTorch's autocast; the last layer,
        parameters, Adam's moments, targets, and whatever the agent predicts, stay float32.
    :param n_threads: threads of the native learner; all cores if None (one less with ``asynchronous``). Never changes
        results.
    :param journal: file in which every transition is before the agent acts again; what is in it already becomes the
        agent's experience. See :class:`~bdpi.agents.journal.Journal`.
    :param autosave: file to which the agent is saved now and then, in :meth:`learn`, in :meth:`learn_once` or in the
        background; see :meth:`save`. ``observe`` alone never does, and waits for the background's only while it copies
        counters and statistics.
    :param autosave_minutes: between two savings
    :param asynchronous: :meth:`learn` learns in the background while it acts. Results are then not repeatable.
    :param _init_setup_model: build the networks at once
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: BDPIPolicy
    #: of the actor; None: the critics'. Agents with an actor have it as an argument.
    actor_learning_rate: float | Schedule | None = None
    #: weight of a fixed random function in each critic
    prior_scale: float = 0.0

    def __init__(
        self,
        policy: str | type[BDPIPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-4,
        *,
        buffer_size: int = 20_000,
        batch_size: int = 256,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        n_critics: int = 16,
        critics_per_step: int | None = None,
        critic_iterations: int = 4,
        fit_steps: int | None = None,
        critic_step_size: float = 0.2,
        scale_observations: bool = True,
        return_size: float | None = 10.0,
        policy_kwargs: dict[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        learner: LearnerChoice = "auto",
        precision: Precision = "float32",
        n_threads: int | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        autosave: str | os.PathLike[str] | None = None,
        autosave_minutes: float = 5.0,
        asynchronous: bool = False,
        _init_setup_model: bool = True,
    ) -> None:
        if env is not None:
            env = make_if_id(env, verbose)
        if env is not None or _init_setup_model:
            checks.check_environment(env)
        checks.check_policy(policy, self.policy_aliases, BDPIPolicy, env)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]  # None when an agent is loaded for prediction only
            learning_rate,
            buffer_size=buffer_size,
            learning_starts=0,  # BDPI needs no random warm-up: it learns as soon as there is one batch
            batch_size=batch_size,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            support_multi_env=True,
        )
        self.n_critics = n_critics
        self.critics_per_step = critics_per_step
        self.critic_iterations = critic_iterations
        self.fit_steps = fit_steps
        #: ``fit_steps`` is 1 by default with pictures in a Dict, too; agents that were saved without this have 20
        self._one_step_on_dicts = True
        self.critic_step_size = critic_step_size
        self.scale_observations = scale_observations
        self.return_size = return_size
        #: how much experience there is when scales are estimated again; 0: they never were
        self._scales_due = 0
        self.learner_choice: LearnerChoice = learner
        self.precision: Precision = precision
        self.n_threads = n_threads
        self.journal = journal
        self.autosave, self.autosave_minutes = autosave, autosave_minutes
        self._saved_at = time.monotonic()
        self.asynchronous = asynchronous
        self._epochs_due = 0.0
        self._learned_with_masks = False
        #: says whose file it is; read before anything else of a saved agent is
        self.agent_class = type(self).__name__
        self._device_is_free = device == "auto"
        checks.warn_of_missing_gpu(device)
        #: draws training actions and batches, and nothing else does; saved with the agent
        self._generator: np.random.Generator | None = None
        #: the policy's, which draws stochastic predictions; here, because it is saved too
        self._predict_generator: np.random.Generator | None = None
        self._warned_of_masks = False
        #: probabilities that the last training actions were drawn by; None for agents without an actor
        self.acted_by: FloatArray | None = None
        #: entropy and the like, as they were last computed
        self._diagnostics: dict[str, float] = {}
        #: what is kept of the episodes seen
        self._episodes_seen: dict[str, Any] = {}
        self._checkup = Checkup()
        if _init_setup_model:
            self._setup_model()

    # -- set-up -------------------------------------------------------------------------------------------------

    def _check_hyperparameters(self) -> None:
        checks.check_learning_rate("learning_rate", self.learning_rate)
        if self.actor_learning_rate is not None:
            checks.check_learning_rate("actor_learning_rate", self.actor_learning_rate)
        checks.check_integer("buffer_size", self.buffer_size, 1)
        checks.check_integer("batch_size", self.batch_size, 1)
        capacity = self.buffer_size // self.n_envs * self.n_envs
        if capacity < self.batch_size:
            rounded = f" ({capacity} in {self.n_envs} environments)" if capacity != self.buffer_size else ""
            raise ValueError(
                f"buffer_size must be at least batch_size ({self.batch_size}), got {self.buffer_size}{rounded}: "
                "learning starts when the buffer holds one batch"
            )
        checks.check_number("gamma", self.gamma, 0, 1, low_included=True)
        checks.check_integer("n_critics", self.n_critics, 1)
        if self.critics_per_step is not None:
            checks.check_integer("critics_per_step", self.critics_per_step, 1, self.n_critics)
        checks.check_integer("critic_iterations", self.critic_iterations, 1)
        if self.fit_steps is not None:
            checks.check_integer("fit_steps", self.fit_steps, 1)
        checks.check_number("critic_step_size", self.critic_step_size, 0, 1)
        checks.check_truth("scale_observations", self.scale_observations)
        if self.return_size is not None:
            checks.check_number("return_size", self.return_size, 0)
        checks.check_integer("gradient_steps", self.gradient_steps, -1)
        check_choice(self.learner_choice)
        dtype_of(self.precision)
        if self.n_threads is not None:
            checks.check_integer("n_threads", self.n_threads, 1)
        checks.check_number("autosave_minutes", self.autosave_minutes, 0)
        if self.autosave is not None and not isinstance(self.autosave, str | os.PathLike):
            raise ValueError(f"autosave must be the path of a file, got {self.autosave!r}")
        checks.check_integer("stats_window_size", self._stats_window_size, 1)
        checks.check_train_freq(self.train_freq, self.n_envs)

    def _setup_model(self) -> None:
        """Networks, buffer, learner. Runs in the constructor and again when an agent is loaded."""
        self._check_hyperparameters()
        self._record = EpisodeRecord(self.n_envs, self._episodes_seen)
        for name in ("learning_rate", "actor_learning_rate"):
            if isinstance(rate := getattr(self, name), np.number):  # of a grid, most likely; SB3 takes Python's only
                setattr(self, name, float(rate))
        if self._device_is_free and self.device.type != "cpu" and self.learner_choice != "torch":
            probe = self.policy_class(self.observation_space, self.action_space, None, **self.policy_kwargs)
            if isinstance(probe, BDPIPolicy) and probe.native_inputs() is not None:
                self.device = torch.device("cpu")  # where small networks are fastest
        is_dict = isinstance(self.observation_space, spaces.Dict)
        self.replay_buffer_class = DictTransitionBuffer if is_dict else TransitionBuffer
        self.replay_buffer_kwargs = {"gamma": self.gamma}
        super()._setup_model()
        if self._scales_observations():
            self.policy.scales = Scales.unknown(len(self.policy.scales.shift))
        self.agent_learner = self._make_learner()
        if self.policy.actor is not None and self.agent_learner.actor_parameters is not None:
            self._act_with(self.agent_learner.actor_parameters)
        self._actor_lr_schedule = (
            self.lr_schedule if self.actor_learning_rate is None else FloatSchedule(self.actor_learning_rate)
        )
        if self._generator is None or self._predict_generator is None:
            self._generator, self._predict_generator = _generators(self.seed)
        elif self.seed is not None and self.env is not None:
            # A loaded agent: SB3 has just seeded its environment as at the very start, which would replay the first
            # episodes. Seed it by how far the agent has come instead.
            self.env.seed(int(np.random.SeedSequence([self.seed, self.num_timesteps]).generate_state(1)[0]) >> 1)
        self.policy.generator = self._predict_generator
        if self.journal is not None:
            self._open_journal(self.journal)

    def critic_rule(self) -> CriticRule:
        """How critics move towards their new estimates."""
        return ClippedDouble(self.critic_step_size)

    def actor_rule(self) -> ActorRule | None:
        """How the actor follows a critic; None for agents without an actor."""
        return None

    def _make_learner(self) -> AgentLearner:
        rule, critic_rule = self.actor_rule(), self.critic_rule()
        check_rule(critic_rule, int(self.action_space.n))
        if rule is None:
            self.policy.actor = None
        else:
            check_rule(rule, int(self.action_space.n))
        threads = self.n_threads
        if threads is None and self.asynchronous:
            threads = max(1, native.default_threads() - 1)  # whoever acts needs a core, too
        return network_learner(
            self.policy,
            rule,
            self.n_critics,
            self.batch_size,
            self.device,
            self.learner_choice,
            threads,
            self.prior_scale,
            self.precision,
            critic_rule=critic_rule,
        )

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed networks yet to be made, the environment, and the agent's own generators."""
        with self.learning_paused():
            super().set_random_seed(seed)
            is_set_up = self._generator is not None and self.replay_buffer is not None
            if seed is not None and is_set_up:
                self._generator, self._predict_generator = _generators(seed)
                self.policy.generator = self._predict_generator

    @property
    def learner_name(self) -> str:
        """Which learner trains this agent: "native", "torch", "tabular", "fused", or "cohort": fused, with others."""
        return self.agent_learner.learner.name

    # -- learning -----------------------------------------------------------------------------------------------

    def hyperparameters(self) -> Hyperparameters:
        """Those of the next epoch, the learning rates following their schedules."""
        progress = self._current_progress_remaining
        learning_rate, actor_learning_rate = self.lr_schedule(progress), self._actor_lr_schedule(progress)
        checks.check_number("learning_rate (by its schedule)", learning_rate, 0, low_included=True)
        checks.check_number("actor_learning_rate (by its schedule)", actor_learning_rate, 0, low_included=True)
        return Hyperparameters(
            critic_iterations=self.critic_iterations,
            fit_steps=self._fit_steps(),
            critic_rule=self.critic_rule(),
            learning_rate=learning_rate,
            actor_learning_rate=actor_learning_rate,
            actor_rule=self.actor_rule(),
        )

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Learning epochs: ``gradient_steps`` of them for each environment, so that their number per transition does
        not depend on how many environments run side by side."""
        epochs = gradient_steps if self.gradient_steps < 0 else gradient_steps * self.n_envs
        if self._background is not None:
            self._have_learned(self._background, epochs)
        elif self._has_experience(batch_size):
            self._learn_epochs(epochs, batch_size)

    def _learn_epochs(self, epochs: int, batch_size: int) -> None:
        self._estimate_scales()
        hyperparameters = self.hyperparameters()
        start = time.perf_counter()
        for _ in range(epochs):
            self._epoch(hyperparameters, batch_size)
        elapsed = time.perf_counter() - start
        self.logger.record("train/learning_rate", hyperparameters.learning_rate)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if epochs:
            self.logger.record("train/milliseconds_per_epoch", 1000 * elapsed / epochs)
        self._checkup.look_if_due(self)

    def _is_beyond_all_rewards(self, q: float, transitions: Transitions) -> bool:
        """Whether a Q-value is far larger than rewards like those seen could ever add up to."""
        largest = float(np.abs(transitions.rewards).max()) or 1.0
        return abs(q) * (1 - self.gamma) > DIVERGED * largest

    def _scales_observations(self) -> bool:
        normalizer = self._vec_normalize_env
        return self.scale_observations and not (normalizer is not None and normalizer.norm_obs)

    def _estimate_scales(self) -> None:
        """Fit the scales to the replay memory: when there is twice as much experience as the last time, and when the
        newest transition is far from all that the scales were made for."""
        memory, normalizer, scales = self.replay_buffer, self._vec_normalize_env, self.policy.scales
        scales_returns = self.return_size is not None and not (normalizer is not None and normalizer.norm_reward)
        experience = max(self.num_timesteps, len(memory) + memory.n_demonstrations)
        is_first, is_due = self._scales_due == 0, experience >= self._scales_due
        if self._scales_observations():
            if is_due or self.agent_learner.is_far(memory.newest_observations()):
                scales = self.agent_learner.scaled_to_range(memory.next_observations_held(), is_first)
        elif not np.all(scales.factor == 1):  # the environment was exchanged for one with VecNormalize
            unscaled = Scales.none(len(scales.shift))
            scales = replace(scales, shift=unscaled.shift, factor=unscaled.factor)
        if scales_returns:
            size = self._size_of_returns()
            largest = float(np.abs(memory.newest_rewards()).max(initial=0.0)) * scales.return_factor
            finds_reward = not scales.knows_returns and bool(np.any(memory.rewards))
            if is_due or finds_reward or (scales.knows_returns and largest > FAR * size):
                scales = scale_returns(scales, memory.returns_to_go(), size)
        if is_due:
            self._scales_due = 2 * experience
        if scales is not self.policy.scales:
            with self.acting():
                self.agent_learner.set_scales(scales)

    def _size_of_returns(self) -> float:
        """``return_size`` for these networks: what Adam can change in an epoch grows with their width and the steps."""
        assert self.return_size is not None
        width = self.policy.critic_arch[-1] if self.policy.critic_arch else 32
        return self.return_size * width / 32 * self._fit_steps() / 20

    def _fit_steps(self) -> int:
        """Adam steps per fit."""
        on_pixels = isinstance(self.policy, CnnPolicy) or (self.policy.sees_pictures and self._one_step_on_dicts)
        return self.fit_steps if self.fit_steps is not None else (1 if on_pixels else 20)

    def _in_user_units(self, metrics: EpochMetrics) -> EpochMetrics:
        scales = self.policy.scales
        return replace(
            metrics,
            critic_loss=metrics.critic_loss / scales.return_factor**2,
            mean_q=metrics.mean_q / scales.return_factor + scales.return_shift,
        )

    def _epoch(self, hyperparameters: Hyperparameters, batch_size: int) -> None:
        assert self._generator is not None
        n_trained = self.critics_per_step or self.n_critics
        critics = self._generator.permutation(self.n_critics)[:n_trained]
        batches = self.replay_buffer.draw(self._generator, (n_trained, batch_size), self.demonstration_share)
        transitions, batches = self.agent_learner.prepare(
            self.replay_buffer.transitions(), batches, self._vec_normalize_env
        )
        diagnose = self._n_updates % DIAGNOSTICS_EVERY == 0
        if diagnose:
            before, _ = self.agent_learner.opinions(transitions, batches[0])
        metrics = self.agent_learner.learner.epoch(transitions, batches, critics, hyperparameters)
        metrics = self._in_user_units(metrics)
        has_exploded = diagnose and self._is_beyond_all_rewards(metrics.mean_q, transitions)
        if has_exploded or not np.isfinite(metrics.critic_loss):
            largest = np.abs(transitions.rewards[batches]).max()
            raise ValueError(
                f"learning diverged at step {self.num_timesteps}: the critics' loss is {metrics.critic_loss:.3g} and "
                f"their mean Q-value {metrics.mean_q:.3g}, with rewards up to {largest:.3g}. Lower "
                "learning_rate, leave return_size at its default, and go on from an earlier agent; the experience is "
                "kept."
            )
        if self.agent_learner.has_actor and not np.isfinite(metrics.actor_loss):
            hint = " Q-values of actions that are not allowed are minus infinity, and 0 times that is not a number."
            raise ValueError(
                f"the actor's loss is {metrics.actor_loss} at step {self.num_timesteps}: the rule "
                f"{hyperparameters.actor_rule} gives targets that are no probabilities."
                f"{'' if transitions.masks is None else hint}"
            )
        self._n_updates += 1
        self.logger.record("train/critic_loss", metrics.critic_loss)
        if self.agent_learner.has_actor:
            self.logger.record("train/actor_loss", metrics.actor_loss)
        self.logger.record("train/mean_q", metrics.mean_q)
        if diagnose:
            after, greedy = self.agent_learner.opinions(transitions, batches[0])
            self._diagnostics = {
                "entropy": entropy_bits(after),
                "kl": kl_divergence(before, after),
                "disagreement": float(np.mean(np.any(greedy != greedy[0], axis=0))),
            }
        for name, value in self._diagnostics.items():
            self.logger.record(f"train/{name}", value)

    # -- acting -------------------------------------------------------------------------------------------------

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[IntArray, IntArray]:
        """Training actions, in the environment's numbers."""
        with self.acting():
            actions = self._pick_actions(self._last_obs, self._action_masks) + int(self.action_space.start)
        return actions, actions

    def _pick_actions(self, observations: Any, masks: BoolArray | None) -> IntArray:
        """One zero-based action per environment: drawn from the actor, with the agent's own generator."""
        assert self._generator is not None
        answer = self.policy.probabilities if self._quick_actor is None else self._quick_actor
        self.acted_by = mask_probabilities(answer(observations), masks)
        return draw(self.acted_by, self._generator)

    def predict(
        self,
        observation: Any,
        state: tuple[Any, ...] | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, tuple[Any, ...] | None]:
        """Actions for observations; never changes training.

        :param observation: one observation, or a batch of them
        :param state: not used
        :param episode_start: not used
        :param deterministic: the most probable action instead of a drawn one
        :param action_masks: which actions are allowed, (n_actions,) or (n, n_actions)
        """
        self.policy.action_masks = self._masks_for_prediction(action_masks, observation)
        try:
            with self.acting():
                return super().predict(observation, state, episode_start, deterministic)
        finally:
            self.policy.action_masks = None

    def _masks_for_prediction(self, masks: Any, observation: Any) -> BoolArray | None:
        if masks is None:
            if self.learned_with_masks and not self._warned_of_masks:
                self._warned_of_masks = True
                warnings.warn(
                    "this agent learned with action masks and now predicts without: it may choose actions that are not "
                    "allowed. Give predict action_masks; to evaluate, use bdpi.evaluate_policy (Stable-Baselines3's "
                    "knows no masks).",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return None
        tensors, _ = self.policy.obs_to_tensor(observation)
        n = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        return checks.check_masks(masks, n, int(self.action_space.n))

    def learn(
        self: Self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Learn for ``total_timesteps`` environment steps; the parameters are those of every SB3 algorithm."""
        checks.check_steps(total_timesteps)
        self._checkup.begin(self.env, anew=reset_num_timesteps)
        starts = self.asynchronous and self._background is None
        if starts:
            self.start_learning()
        finished = False
        try:
            super().learn(
                total_timesteps,
                callback,
                log_interval,  # type: ignore[arg-type]  # None is fine: no logging
                tb_log_name or type(self).__name__,
                reset_num_timesteps,
                progress_bar,
            )
            finished = True
        finally:
            if starts:
                self.stop_learning(finish=finished)
        with self.learning_paused():
            self._checkup.look_if_due(self, WORTH_ANOTHER)
        self._checkup.say()
        return self

    # -- health -------------------------------------------------------------------------------------------------

    def health(self) -> list[Finding]:
        """Why this agent may not learn, as far as it can tell: a look at its memory, its actor and its critics.

        ``learn`` looks now and then, and warns (:class:`bdpi.HealthWarning`) of each finding once. Looking changes
        nothing. Empty: nothing was found.
        """
        with self.learning_paused():
            return look(self)

    @property
    def findings(self) -> list[Finding]:
        """What was found when the agent last looked at itself, in :meth:`learn`."""
        return self._checkup.findings

    def _step_collected(self) -> None:
        super()._step_collected()
        self._checkup.after_step(self._record)


def _generators(seed: int | None) -> tuple[np.random.Generator, np.random.Generator]:
    """For training and for predictions. An environment with the same seed draws from ``default_rng(seed)``: an agent
    that did so too would choose its actions by the very numbers that decide what becomes of them."""
    if seed is None:
        return np.random.default_rng(), np.random.default_rng()
    return np.random.default_rng([seed, 4]), np.random.default_rng([seed, 1])
