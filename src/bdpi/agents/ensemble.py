"""The agent: an SB3 algorithm that trains several off-policy critics, and perhaps an actor that follows them.

Agents differ in their arguments, in the rule by which critics move (:meth:`Ensemble.critic_rule`), and in the rule by
which the actor follows them (:meth:`Ensemble.actor_rule`).
An agent is made of parts that each have a file: the collector, the learner with its scales, the background thread, the
journal, the file that it is saved to.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import os
import pathlib
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, Schedule, TrainFreq
from stable_baselines3.common.utils import FloatSchedule, get_system_info, should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv

from bdpi.agents import checks
from bdpi.agents.agent_file import check_arguments, load_agent, load_parameters, save_agent
from bdpi.agents.agent_learner import AgentLearner, draw, mask_probabilities
from bdpi.agents.arguments import show_all, unknown
from bdpi.agents.background import Background
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
from bdpi.agents.checkup import WORTH_ANOTHER, Checkup, look
from bdpi.agents.collector import ORIGINAL, Collector, EpisodeRecord, Masks
from bdpi.agents.demonstrations import transitions_of
from bdpi.agents.encoding import Arrays
from bdpi.agents.environments import make_if_id
from bdpi.agents.files import File, refuse_pickle, with_ending
from bdpi.agents.health import Finding
from bdpi.agents.inputs import Inputs
from bdpi.agents.journal import Journal, Transition
from bdpi.agents.learners import network_learner
from bdpi.agents.metrics import entropy_bits, kl_divergence
from bdpi.agents.normalizing import update_normalizer
from bdpi.agents.policies import BDPIPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, to_arrays
from bdpi.agents.scales import ScaleEstimator
from bdpi.agents.spaces import channels_first, shift_to_zero
from bdpi.envs.wrappers.retracing import CONTINUED
from bdpi.learner import Hyperparameters, Transitions, native
from bdpi.learner.arrangement import Precision, dtype_of
from bdpi.learner.functional import bind_parameters
from bdpi.learner.interface import BoolArray, EpochMetrics, FloatArray, IntArray
from bdpi.learner.registry import LearnerChoice, check_choice
from bdpi.learner.rules import ActorRule, ClippedDouble, CriticRule, check_rule
from bdpi.learner.scales import Scales
from bdpi.learner.tabular import allowed

Self = TypeVar("Self", bound="Ensemble")
#: Gives the arguments of :meth:`bdpi.learner.interface.Learner.epoch`, and wants what it returns.
Epochs = Generator[tuple[Transitions, IntArray, IntArray, Hyperparameters], EpochMetrics | None, None]

#: Entropy, disagreement and KL cost a few forward passes; every hundredth epoch is enough to draw their curves.
DIAGNOSTICS_EVERY = 100
#: Q-values this many times larger than the largest reward in every step would give have diverged.
DIVERGED = 100.0
_MOST_DUE = 8  # epochs that learn() lets the background fall behind
_NO_LOCK = contextlib.nullcontext()


class Ensemble(OffPolicyAlgorithm):
    """Several critics, and perhaps an actor, trained by an
    :class:`~bdpi.agents.agent_learner.AgentLearner`.

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
    #: attributes that are parts of the agent; what is saved of them is declared there
    parts: ClassVar[tuple[str, ...]] = ("collector", "episodes", "scale_estimator")
    #: what is saved beside the constructor's arguments, with its type; ``object``: any
    saved: ClassVar[dict[str, type]] = {
        # of Stable-Baselines3
        **dict.fromkeys(("policy_class", "observation_space", "action_space", "action_noise"), object),
        **dict.fromkeys(("_last_obs", "_last_episode_starts", "_last_original_obs"), object),
        **dict.fromkeys(("ep_info_buffer", "ep_success_buffer", "train_freq"), object),
        **dict.fromkeys(("n_envs", "num_timesteps", "_total_timesteps", "_num_timesteps_at_start"), int),
        **dict.fromkeys(("_episode_num", "_n_updates", "learning_starts", "n_steps", "sde_sample_freq"), int),
        **dict.fromkeys(("use_sde", "use_sde_at_warmup", "optimize_memory_usage"), bool),
        **dict.fromkeys(("_current_progress_remaining", "tau"), float),
        # of this class
        **dict.fromkeys(("_generator", "_predict_generator"), np.random.Generator),
        **dict.fromkeys(("_epochs_due", "demonstration_share"), float),
        "agent_class": str,
        "_begun": bool,
        "_learned_with_masks": bool,
        "_collected": tuple,
        "_followed": np.ndarray,
        "_diagnostics": dict,
    }
    policy: BDPIPolicy
    replay_buffer: TransitionBuffer | DictTransitionBuffer
    action_space: spaces.Discrete
    agent_learner: AgentLearner
    collector: Collector
    #: returns of the first and the last episodes
    episodes: EpisodeRecord
    scale_estimator: ScaleEstimator
    #: of the actor; None: the critics'. Agents with an actor have it as an argument.
    actor_learning_rate: float | Schedule | None = None
    #: weight of a fixed random function in each critic
    prior_scale: float = 0.0
    #: of each batch that is drawn from demonstrations, where there are any
    demonstration_share = 0.25

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        show_all(cls)

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
        **others: Any,
    ) -> None:
        if others:
            raise TypeError(unknown(type(self), others, "its constructor"))
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
        self.critic_step_size = critic_step_size
        self.scale_observations = scale_observations
        self.return_size = return_size
        self.learner_choice: LearnerChoice = learner
        self.precision: Precision = precision
        self.n_threads = n_threads
        self.journal = journal
        self.autosave, self.autosave_minutes = autosave, autosave_minutes
        self._saved_at = time.monotonic()
        self.asynchronous = asynchronous
        #: says whose file it is; read before anything else of a saved agent is
        self.agent_class = type(self).__name__
        #: settings and statistics of the ``VecNormalize`` that the agent learned with, if it was loaded without one
        self.kept_normalizer: tuple[dict[str, Any], Arrays] | None = None
        #: what its environment's wrappers do to observations, if it was loaded without an environment
        self.kept_inputs: Inputs | None = None
        self._device_is_free = device == "auto"
        checks.warn_of_missing_gpu(device)
        #: draws training actions and batches, and nothing else does; saved with the agent
        self._generator: np.random.Generator | None = None
        #: the policy's, which draws stochastic predictions; here, because it is saved too
        self._predict_generator: np.random.Generator | None = None
        self._background: Background | None = None
        #: epochs that were left when learning in the background was stopped
        self._epochs_due = 0.0
        #: steps and episodes since the agent learned last; not zero after a callback stopped training
        self._collected = (0, 0)
        #: which critic each environment follows, where there is no actor
        self._followed: IntArray | None = None
        #: whether act has begun an episode
        self._begun = False
        self._acted_mask: BoolArray | None = None
        self._learned_with_masks = self._warned_of_masks = False
        #: probabilities that the last training actions were drawn by; None for agents without an actor
        self.acted_by: FloatArray | None = None
        #: entropy and the like, as they were last computed
        self._diagnostics: dict[str, float] = {}
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

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = OffPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        checks.check_normalization(wrapped)
        return wrapped

    def _setup_model(self) -> None:
        """Networks, buffer, learner. Runs in the constructor and again when an agent is loaded."""
        self._check_hyperparameters()
        for name in ("learning_rate", "actor_learning_rate"):
            if isinstance(rate := getattr(self, name), np.number):  # of a grid, most likely; SB3 takes Python's only
                setattr(self, name, float(rate))
        if self._device_is_free and self.device.type != "cpu" and self.learner_choice not in ("torch", "fused"):
            probe = self.policy_class(self.observation_space, self.action_space, None, **self.policy_kwargs)
            if isinstance(probe, BDPIPolicy) and probe.native_inputs() is not None:
                self.device = torch.device("cpu")  # where small networks are fastest
        is_dict = isinstance(self.observation_space, spaces.Dict)
        self.replay_buffer_class = DictTransitionBuffer if is_dict else TransitionBuffer
        self.replay_buffer_kwargs = {"gamma": self.gamma}
        super()._setup_model()
        self.collector = Collector(self.replay_buffer, self.observation_space, self.action_space, self.n_envs)
        self.episodes, self.scale_estimator = EpisodeRecord(self.n_envs), ScaleEstimator()
        normalizer = self._vec_normalize_env
        if self.scale_observations and (normalizer is None or not normalizer.norm_obs):
            self.policy.set_scales(Scales.unknown(len(self.policy.scales.shift)))
        self.agent_learner = self._make_learner()
        if self.policy.actor is not None and self.agent_learner.actor_parameters is not None:
            self.agent_learner.act_with(self.agent_learner.actor_parameters)
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
        """How the actor follows a critic; None: there is no actor, and each episode follows a critic."""
        return None

    def _make_learner(self) -> AgentLearner:
        rule, critic_rule = self.actor_rule(), self.critic_rule()
        check_rule(critic_rule, int(self.action_space.n), "critic")
        if rule is None:
            self.policy.actor = None
        else:
            check_rule(rule, int(self.action_space.n), "actor")
        threads = self.n_threads
        if threads is None and self.asynchronous:
            threads = max(1, native.default_threads() - 1)  # acting needs a core, too
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
        """What trains this agent: "native", "torch", "tabular", "fused", or "population", fused with others."""
        return self.agent_learner.learner.name

    # -- collecting ---------------------------------------------------------------------------------------------

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
        self._compute(
            self.learning(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        )
        return self

    def learning(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Epochs:
        """:meth:`learn`, as a generator: it gives the arguments of each epoch, and wants its metrics. Between two
        epochs, it acts and remembers. That is how one loop trains many agents (:class:`bdpi.Population`)."""
        checks.check_steps(total_timesteps)
        self._checkup.begin(self.env, anew=reset_num_timesteps)
        starts = self.asynchronous and self._background is None
        if starts:
            self.start_learning()
        finished = False
        try:
            name = tb_log_name or type(self).__name__
            arguments = total_timesteps, callback, reset_num_timesteps, name, progress_bar
            total_timesteps, callback = self._setup_learn(*arguments)
            callback.on_training_start(locals(), globals())
            while self.num_timesteps < total_timesteps:
                rollout = self.collect_rollouts(
                    self.env,  # type: ignore[arg-type]
                    callback,
                    self.train_freq,  # type: ignore[arg-type]
                    self.replay_buffer,
                    log_interval=log_interval,
                )
                if not rollout.continue_training:
                    break
                steps = self.gradient_steps if self.gradient_steps >= 0 else rollout.episode_timesteps
                if steps > 0:
                    yield from self._training(steps, self.batch_size)
            callback.on_training_end()
            finished = True
        finally:
            if starts:
                self.stop_learning(finish=finished)
        with self.learning_paused():
            self._checkup.look_if_due(self, WORTH_ANOTHER)
        self._checkup.say()

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        check_arguments(self)
        continues = self._last_obs is not None
        self.policy.set_training_mode(False)
        if self._vec_normalize_env is not None:
            self.collector.check_before(self._vec_normalize_env, lambda: self.num_timesteps)
        if self.collector.journal is not None:
            with self._observing():
                self._catch_up()
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        assert self.env is not None
        if self.num_timesteps == 0 or not continues:  # the environments were reset
            infos = self.env.unwrapped.reset_infos
            self.collector.reset(infos, self.num_timesteps)
            new = [index for index, info in enumerate(infos) if not info.get(CONTINUED)]
            self._begin_episodes(np.array(new, dtype=np.int64))
            for index in new:
                self.episodes.begin(index)
        try:
            self.collector.check_first(self._last_obs, self.num_timesteps)
        except ValueError:
            self._last_obs = None
            raise
        return total_timesteps, callback

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: Any,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """Act and remember until it is time to train.

        As in SB3, except that a transition is checked and stored *before* callbacks are asked: whatever they do, stop
        the training or raise, it is not lost, and an agent they save holds it. An agent that was stopped, or saved by a
        callback, goes on where it was, that is, before it learned from its last steps.
        """
        callback.on_rollout_start()
        collector, checkup = self.collector, self._checkup
        steps, episodes = self._collected
        while should_collect_more_steps(train_freq, steps, episodes):
            with _NO_LOCK if self._background is None else self._background.acting:
                actions = self._pick_actions(self._last_obs, collector.masks) + int(self.action_space.start)
            try:
                new_obs, rewards, dones, infos = env.step(actions)
                reset_infos, n_ended = env.unwrapped.reset_infos, int(np.count_nonzero(dones))
                if self._vec_normalize_env is None:
                    collector.check(new_obs, rewards, dones, infos, reset_infos, self.num_timesteps + self.n_envs)
                self._store_step(actions, new_obs, rewards, dones, infos, n_ended)
                collector.stepped(dones, infos, reset_infos)
                if n_ended:
                    self._begin_episodes(np.flatnonzero(dones))
            except BaseException:
                self._last_obs = None  # the environments may have gone on: the next learn() starts new episodes
                raise
            steps += 1
            episodes += n_ended
            self._collected = (steps, episodes)
            self._update_info_buffer(infos, dones)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if self.autosave is not None and self._background is None:  # whose thread looks after it
                self._autosave_if_due()
            if checkup.has_news or max(self.episodes.steps) >= checkup.most_steps:
                checkup.after_step(self.episodes)

            callback.update_locals(locals())
            if not callback.on_step():
                return RolloutReturn(steps * env.num_envs, episodes, continue_training=False)
            ended = range(self._episode_num, self._episode_num - n_ended, -1)
            if log_interval is not None and any(number % log_interval == 0 for number in ended):
                self.dump_logs()
        self._collected = (0, 0)
        callback.on_rollout_end()
        return RolloutReturn(steps * env.num_envs, episodes, continue_training=True)

    def _store_step(
        self, actions: IntArray, new_obs: Any, rewards: FloatArray, dones: Any, infos: list[dict[str, Any]], ended: int
    ) -> None:
        """Store a step of the environments, as it is without ``VecNormalize``."""
        normalizer, original = self._vec_normalize_env, new_obs
        if normalizer is None:
            self._last_original_obs = self._last_obs  # type: ignore[assignment]
        else:
            original, rewards = normalizer.get_original_obs(), normalizer.get_original_reward()
        last_one = "terminal_observation" if normalizer is None else ORIGINAL
        executed, next_obs, masks = self.collector.completed(actions, original, dones, infos, last_one)
        with _NO_LOCK if self._background is None else self._background.observing:
            self._remember(self._last_original_obs, next_obs, executed, rewards, dones, infos, masks)
            self._last_obs = new_obs
            if normalizer is not None:
                self._last_original_obs = original  # type: ignore[assignment]
            self._episode_num += ended

    def _remember(
        self,
        observations: Any,
        next_observations: Any,
        actions: IntArray,
        rewards: FloatArray,
        dones: Any,
        infos: list[dict[str, Any]],
        masks: Masks | None,
    ) -> None:
        """Store one transition of each environment, and count it only then: after an interruption in between (Ctrl-C),
        it is found in the journal, now or after loading."""
        if self.collector.journal is not None:
            self._catch_up()
        journaled = self.collector.store(observations, next_observations, actions, rewards, dones, infos, masks)
        self.num_timesteps, self.collector.journaled = self.num_timesteps + len(infos), journaled
        self.episodes.add(rewards, dones, infos)

    def _catch_up(self) -> None:
        """Count what is in the journal and nowhere else."""
        missed, last = self.collector.catch_up()
        self.num_timesteps, self.collector.journaled = self.num_timesteps + missed, last

    def _open_journal(self, given: str | os.PathLike[str] | Journal, *, take_in: bool = True) -> None:
        """Go on with a journal, and with what is in it.

        :param take_in: learn from what the agent has not seen yet; False: its steps are about to be repeated
        """
        steps, normalizer = self.num_timesteps, self._vec_normalize_env
        self.num_timesteps += self.collector.open_journal(given, steps, normalizer, take_in)

    @property
    def _journal(self) -> Journal | None:
        return self.collector.journal

    def close_journal(self) -> None:
        """Give the journal back, so that another agent can go on with it; what is observed afterwards is refused."""
        if self.collector.journal is not None:
            self.collector.journal.close()

    # -- learning -----------------------------------------------------------------------------------------------

    def hyperparameters(self) -> Hyperparameters:
        """Those of the next epoch, the learning rates following their schedules."""
        progress = self._current_progress_remaining
        learning_rate, actor_learning_rate = self.lr_schedule(progress), self._actor_lr_schedule(progress)
        if not (0 <= learning_rate < math.inf and 0 <= actor_learning_rate < math.inf):
            checks.check_number("learning_rate (by its schedule)", learning_rate, 0, low_included=True)
            checks.check_number("actor_learning_rate (by its schedule)", actor_learning_rate, 0, low_included=True)
        return Hyperparameters(
            critic_iterations=self.critic_iterations,
            fit_steps=self.fit_steps or self.policy.default_fit_steps,
            critic_rule=self.critic_rule(),
            learning_rate=learning_rate,
            actor_learning_rate=actor_learning_rate,
            actor_rule=self.actor_rule(),
        )

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Learning epochs: ``gradient_steps`` of them for each environment, so that their number per transition does
        not depend on how many environments run side by side."""
        self._compute(self._training(gradient_steps, batch_size))

    def _training(self, gradient_steps: int, batch_size: int) -> Epochs:
        epochs = gradient_steps if self.gradient_steps < 0 else gradient_steps * self.n_envs
        if self._background is not None:
            # Have these steps learned from, and do not run too far ahead.
            self._background.check()
            self._background.make(epochs)
            self._background.wait_until_due(_MOST_DUE)
            self._background.check()
        else:
            held = len(self.replay_buffer) + self.replay_buffer.n_demonstrations
            if held >= batch_size:
                yield from self._learn_epochs(epochs, batch_size, held)

    def _compute(self, epochs: Epochs) -> None:
        """Have the agent's own learner compute epochs."""
        try:
            asked = next(epochs)
            while True:
                asked = epochs.send(self.agent_learner.learner.epoch(*asked))
        except StopIteration:
            pass
        finally:
            epochs.close()

    def _learn_epochs(self, epochs: int, batch_size: int, held: int) -> Epochs:
        self._follow_scales(max(self.num_timesteps, held))
        hyperparameters = self.hyperparameters()
        start = time.perf_counter()
        for _ in range(epochs):
            yield from self._epoch(hyperparameters, batch_size)
        elapsed = time.perf_counter() - start
        self.logger.record("train/learning_rate", hyperparameters.learning_rate)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if epochs:
            self.logger.record("train/milliseconds_per_epoch", 1000 * elapsed / epochs)
        if self._n_updates not in self._checkup.seen_epochs:
            self._checkup.look_if_due(self)

    def _follow_scales(self, experience: int) -> None:
        """Estimate scales again, where that is due, or where the newest transition is far from what they are for.

        :param experience: how many transitions were seen
        """
        if not self.agent_learner.learns_in_units:
            return
        normalizer, memory, before, size = self._vec_normalize_env, self.replay_buffer, self.policy.scales, None
        if self.return_size is not None and not (normalizer is not None and normalizer.norm_reward):
            # What Adam can change in an epoch grows with the width of networks and with its steps.
            width = self.policy.critic_arch[-1] if self.policy.critic_arch else 32
            size = self.return_size * width / 32 * (self.fit_steps or self.policy.default_fit_steps) / 20
        units = self.scale_observations and (normalizer is None or not normalizer.norm_obs), size
        if experience >= self.scale_estimator.due or self.agent_learner.may_be_far(memory, *units):
            scales = self.scale_estimator.estimate(before, self.agent_learner, memory, experience, *units)
            if scales is not before:
                with self._acting():
                    self.agent_learner.set_scales(scales)

    def _epoch(self, hyperparameters: Hyperparameters, batch_size: int) -> Epochs:
        assert self._generator is not None
        learner = self.agent_learner
        n_trained = self.critics_per_step or self.n_critics
        critics = self._generator.permutation(self.n_critics)[:n_trained]
        batches = self.replay_buffer.draw(self._generator, (n_trained, batch_size), self.demonstration_share)
        transitions, batches = learner.prepare(self.replay_buffer.transitions(), batches, self._vec_normalize_env)
        diagnose = self._n_updates % DIAGNOSTICS_EVERY == 0
        if diagnose:
            before, _ = learner.opinions(transitions, batches[0])
        metrics = yield transitions, batches, critics, hyperparameters
        assert metrics is not None
        scales = self.policy.scales
        critic_loss = metrics.critic_loss / scales.return_factor**2
        mean_q = metrics.mean_q / scales.return_factor + scales.return_shift
        # A Q-value that is far larger than rewards like those seen could ever add up to is no value of any policy.
        has_exploded = diagnose and abs(mean_q) * (1 - self.gamma) > DIVERGED * (
            float(np.abs(transitions.rewards).max()) or 1.0
        )
        if has_exploded or not math.isfinite(critic_loss):
            largest = np.abs(transitions.rewards[batches]).max()
            raise ValueError(
                f"learning diverged at step {self.num_timesteps}: the critics' loss is {critic_loss:.3g} and their "
                f"mean Q-value {mean_q:.3g}, with rewards up to {largest:.3g}. Lower learning_rate, leave return_size "
                "at its default, and go on from an earlier agent; the experience is kept."
            )
        if learner.has_actor and not math.isfinite(metrics.actor_loss):
            hint = " Q-values of actions that are not allowed are minus infinity, and 0 times that is not a number."
            raise ValueError(
                f"the actor's loss is {metrics.actor_loss} at step {self.num_timesteps}: the rule "
                f"{hyperparameters.actor_rule} gives targets that are no probabilities."
                f"{'' if transitions.masks is None else hint}"
            )
        self._n_updates += 1
        record = self.logger.record
        record("train/critic_loss", critic_loss)
        if learner.has_actor:
            record("train/actor_loss", metrics.actor_loss)
        record("train/mean_q", mean_q)
        if diagnose:
            after, greedy = learner.opinions(transitions, batches[0])
            self._diagnostics = {
                "entropy": entropy_bits(after),
                "kl": kl_divergence(before, after),
                "disagreement": float(np.mean(np.any(greedy != greedy[0], axis=0))),
            }
        for name, value in self._diagnostics.items():
            record(f"train/{name}", value)

    # -- acting -------------------------------------------------------------------------------------------------

    def _pick_actions(self, observations: Any, masks: BoolArray | None) -> IntArray:
        """One zero-based action per environment: drawn from the actor, or what the critic of the episode prefers."""
        assert self._generator is not None
        if self.agent_learner.has_actor:
            probabilities = self.agent_learner.probabilities(observations)
            self.acted_by = probabilities if masks is None else mask_probabilities(probabilities, masks)
            return draw(self.acted_by, self._generator)
        assert self._followed is not None
        q = self.agent_learner.q_values(shift_to_zero(observations, self.observation_space))
        return allowed(q[self._followed, np.arange(self.n_envs)], masks).argmax(axis=1)

    def _begin_episodes(self, environments: IntArray) -> None:
        """Without an actor, pick the critic that each of these environments follows in its new episode."""
        if self.agent_learner.has_actor:
            return
        assert self._generator is not None
        if self._followed is None or len(self._followed) != self.n_envs:
            self._followed = np.zeros(self.n_envs, dtype=np.int64)
        self._followed[environments] = self._generator.integers(0, self.n_critics, len(environments))

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
        :param state: for agents without an actor that draw: which critics are followed, from the last call; None: draw
            some
        :param episode_start: for these agents: where an episode has begun since, another critic is drawn
        :param deterministic: the most probable action, or the one that most critics prefer, instead of a drawn one
        :param action_masks: which actions are allowed, (n_actions,) or (n, n_actions)
        """
        masks = self._masks_for_prediction(action_masks, observation)
        if not deterministic and not self.agent_learner.has_actor:
            return self._predict_by_critics(observation, state, episode_start, masks)
        self.policy.action_masks = masks
        try:
            with self._acting():
                return super().predict(observation, state, episode_start, deterministic)
        finally:
            self.policy.action_masks = None

    def _predict_by_critics(
        self, observation: Any, state: tuple[Any, ...] | None, episode_start: Any, masks: BoolArray | None
    ) -> tuple[Any, tuple[Any, ...]]:
        tensors, is_batch = self.policy.obs_to_tensor(observation)
        n = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        followed = np.full(n, -1) if state is None else np.array(state[0])
        if followed.shape != (n,):
            raise ValueError(
                f"state says which critic each observation follows, and has {followed.size} for {n} of them: give the "
                "state that predict returned for as many observations, or None"
            )
        new = followed < 0 if episode_start is None else (followed < 0) | np.asarray(episode_start, bool)
        followed[new] = self.policy.generator.integers(0, self.n_critics, int(new.sum()))
        q = self.agent_learner.q_values(shift_to_zero(to_arrays(tensors), self.observation_space))
        actions = allowed(q[followed, np.arange(n)], masks).argmax(axis=1) + int(self.action_space.start)
        return (actions if is_batch else actions[0]), (followed,)

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

    @property
    def learned_with_masks(self) -> bool:
        """Whether actions were masked at some time."""
        return self._learned_with_masks or (self.replay_buffer is not None and self.replay_buffer.masks is not None)

    # -- step by step -------------------------------------------------------------------------------------------

    def act(self, observation: Any, mask: Any = None) -> int:
        """Choose an action to learn from, drawn as in training. (For the best known one: ``predict``.)

        :param observation: what the system is like now; pictures may have their channels last, as in ``predict``
        :param mask: which actions are allowed, zeros and ones; None: all
        """
        self._check_one_loop("act")
        observation = self._seen("observation", observation)
        masks = None if mask is None else checks.check_masks(mask, 1, int(self.action_space.n))
        if not self._begun:
            self._begun = True
            self._begin_episodes(np.array([0]))
        batch = _batch_of_one(observation)
        if self._vec_normalize_env is not None:
            batch = self._vec_normalize_env.normalize_obs(batch)
        with self._acting():
            action = self._pick_actions(batch, masks)
        self._acted_mask = masks
        return int(action[0]) + int(self.action_space.start)

    def observe(
        self,
        observation: Any,
        executed_action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        *,
        mask: Any = None,
        next_mask: Any = None,
        discount: float | None = None,
    ) -> None:
        """Remember what happened.

        :param observation: before the action
        :param executed_action: what was really done: another action than ``act`` returned, where a safety layer or a
            person has stepped in
        :param reward: for it
        :param next_observation: after it
        :param terminated: the task is over, and nothing comes after it
        :param truncated: the episode was ended, but could have gone on
        :param mask: which actions were allowed before; None: what ``act`` was told last
        :param next_mask: which actions are allowed now; needed by agents that act with masks, unless the task is over
        :param discount: of this transition; None: the agent's ``gamma``
        """
        self._check_one_loop("observe")
        terminated, truncated = (
            checks.check_truth(name, value) for name, value in (("terminated", terminated), ("truncated", truncated))
        )
        step = self._checked(
            Transition(observation, executed_action, reward, next_observation, terminated, truncated, discount),
            "executed_action",
            self.num_timesteps + 1,
        )
        info: dict[str, Any] = {"TimeLimit.truncated": truncated and not terminated}
        if discount is not None:
            info["discount"] = discount
        masks = self._observed_masks(mask, next_mask, terminated)
        done, kept_reward = terminated or truncated, np.array([reward], dtype=np.float32)
        with self._observing():
            self._remember(
                _batch_of_one(step.observation),
                _batch_of_one(step.next_observation),
                np.array([[step.action]]),
                kept_reward,
                np.array([done]),
                [info],
                masks,
            )
            if self._vec_normalize_env is not None:
                update_normalizer(self._vec_normalize_env, replace(step, reward=float(kept_reward[0])))
            self._acted_mask = None
            if done:
                self._episode_num += 1
                self._begin_episodes(np.array([0]))
        if self._background is not None:
            self._background.make(self._epochs_per_step())

    def learn_once(self) -> bool:
        """One learning epoch; returns whether there was enough experience for it.

        This is also when an agent with ``autosave`` is saved, if it is time for that.
        """
        if self._background is not None:
            raise RuntimeError("the agent learns in the background already; stop_learning() ends that")
        has_learned = self._learn_once()
        if has_learned:
            self._epochs_due = max(0.0, self._epochs_due - 1)
        self._autosave_if_due()
        return has_learned

    def _learn_once(self) -> bool:
        if not self._can_learn():
            return False
        if not hasattr(self, "_logger"):
            self.set_logger(Logger(folder=None, output_formats=[]))
        held = len(self.replay_buffer) + self.replay_buffer.n_demonstrations
        self._compute(self._learn_epochs(1, self.batch_size, held))
        return True

    def _can_learn(self) -> bool:
        return len(self.replay_buffer) + self.replay_buffer.n_demonstrations >= self.batch_size

    def add_demonstrations(self, dataset: Any, share: float = 0.25) -> int:
        """Learn from other transitions than the agent's own, too; returns how many there are.

        They are kept apart from the agent's own experience, which never overwrites them.

        :param dataset: see :func:`bdpi.agents.demonstrations.transitions_of`
        :param share: of each batch that is drawn from demonstrations, all of them together
        :raises ValueError: for transitions that do not fit the agent's spaces; nothing is added then
        """
        checks.check_number("share", share, 0, 1)
        steps = []
        for number, step in enumerate(transitions_of(dataset)):
            try:
                steps.append(self._checked(step, "the action", 0))
            except ValueError as error:
                raise ValueError(f"demonstration {number}: {error}") from error
        if not steps:
            raise ValueError("there are no transitions in the demonstrations")
        with self.learning_paused():
            self.replay_buffer.add_demonstrations(steps)
            self.demonstration_share = float(share)
        return len(steps)

    def _checked(self, step: Transition, action_name: str, number: int) -> Transition:
        """A transition that is given to the agent, if it could be one of its own."""
        observation = self._seen("observation", step.observation)
        next_observation = self._seen("next observation", step.next_observation)
        checks.check_reward(step.reward, number)
        action = checks.check_action(action_name, step.action, self.action_space)
        if step.discount is not None:
            checks.check_number("discount", step.discount, 0, 1, low_included=True)
        return replace(step, observation=observation, action=action, next_observation=next_observation)

    def _check_one_loop(self, name: str) -> None:
        if self._background is not None:
            self._background.check()
        if self.n_envs != 1:
            raise ValueError(f"{name} is for one system at a time, and this agent learns in {self.n_envs} environments")

    def _seen(self, what: str, value: Any) -> Any:
        """An observation as the agent keeps it, if it makes sense."""
        value = channels_first(value, self.observation_space)
        checks.check_shape(what, value, self.observation_space)
        self.collector.check_observation(what, value, 0, self.num_timesteps)
        return value

    def _observed_masks(self, mask: Any, next_mask: Any, is_over: bool) -> Masks | None:
        n_actions = int(self.action_space.n)
        before = self._acted_mask if mask is None else checks.check_masks(mask, 1, n_actions)
        if before is not None and next_mask is None and not is_over:
            raise ValueError("this agent acts with masks: give observe next_mask, the actions that are allowed now")
        if before is None and next_mask is None:
            return None
        everything = np.ones((1, n_actions), dtype=bool)
        after = everything if next_mask is None else checks.check_masks(next_mask, 1, n_actions)
        return (everything if before is None else before), after

    # -- in the background --------------------------------------------------------------------------------------

    def start_learning(self) -> None:
        """Learn in a thread from now on: as many epochs as :meth:`learn` would make, as soon as there is time.

        ``act`` answers meanwhile, from a copy of the actor that follows each epoch. Epochs that a robot leaves no time
        for wait until there is some: see :attr:`epochs_due`.
        """
        if self._background is not None:
            raise RuntimeError("the agent learns in the background already")
        learned = self.agent_learner.actor_parameters
        if self.policy.actor is None or learned is None:
            raise ValueError(
                f"{type(self).__name__} cannot learn while it acts, because it has no actor network to act with "
                "meanwhile; BDPI and ActorMimic have one"
            )
        self._epochs_per_step()  # says what is wrong with train_freq before anything is observed
        published = learned.detach().cpu().clone()
        methods = self._learn_once, self._can_learn, self._autosave_if_due
        try:
            self.agent_learner.act_with(published)
            self._background = Background(*methods, learned, published, self._epochs_due)
            self.collector.defer = self._background.defer
            self._background.start()
        except BaseException:  # Ctrl-C, perhaps before there was a thread
            self.stop_learning()
            self.agent_learner.act_with(learned)
            raise

    @property
    def epochs_due(self) -> int:
        """How many epochs learning in the background is behind.

        :meth:`start_learning` begins with them, and they are saved with the agent; ``learn_once`` makes one of them.
        """
        return int(self._epochs_due if self._background is None else self._background.due)

    def stop_learning(self, finish: bool = False) -> None:
        """Wait for the epoch that is going on, and learn no more; what is due then is left to be learned later.

        :param finish: make all epochs that are due before, however long that takes. If interrupted, call again.
        :raises RuntimeError: when learning has failed
        """
        if self._background is None:
            return
        background = self._background
        if finish:
            background.wait_until_due(0)
        background.stop()
        self._epochs_due = background.due
        assert self.agent_learner.actor_parameters is not None
        self.agent_learner.act_with(self.agent_learner.actor_parameters)
        self.collector.defer = None
        self._background = None  # only now: after an interruption before, it can be stopped again
        background.check()

    def _acting(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, the networks that act do not change."""
        return _NO_LOCK if self._background is None else self._background.acting

    def _observing(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, no other thread sees the agent, which may be half changed."""
        return _NO_LOCK if self._background is None else self._background.observing

    def learning_held(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, networks and memory stay as they are. ``observe`` does not wait for it: what is observed
        meanwhile is taken into the memory afterwards."""
        return _NO_LOCK if self._background is None else self._background.working

    @contextlib.contextmanager
    def learning_paused(self) -> Iterator[None]:
        """While this lasts, nothing is learned in the background, and the memory holds all that was observed."""
        with _NO_LOCK if self._background is None else self._background.paused():
            yield

    def _epochs_per_step(self) -> float:
        """How many epochs a transition is worth."""
        frequency = self.train_freq
        if not isinstance(frequency, TrainFreq) or frequency.unit.value != "step":
            raise ValueError("learning in the background goes by steps: give train_freq a number of steps")
        return float(frequency.frequency if self.gradient_steps < 0 else self.gradient_steps) / frequency.frequency

    def dump_logs(self) -> None:
        """As in SB3; learning in the background pauses meanwhile."""
        with self.learning_paused():
            super().dump_logs()

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """As in SB3; learning in the background pauses meanwhile."""
        with self.learning_paused():
            super().set_env(env, force_reset)

    # -- parameters and files -----------------------------------------------------------------------------------

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """As in SB3; learning in the background pauses meanwhile."""
        with self.learning_paused():
            return super().get_parameters()

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """As in SB3: networks and all that the learner has, of a saved agent or of :meth:`get_parameters`.

        Learning in the background pauses meanwhile, and goes on with these parameters.

        :param load_path_or_dict: what :meth:`save` wrote, or parameters by their names
        :param exact_match: nothing may be missing
        :param device: not used: they go where the agent's are
        :raises ValueError: for parameters of other networks; nothing changes then
        """
        given = load_path_or_dict
        if not isinstance(given, dict):
            given = load_parameters(given)
        with self.learning_paused():
            before = copy.deepcopy(self.get_parameters())
            with self._networks_may_change():
                try:
                    super().set_parameters(given, exact_match, device)
                except Exception as error:
                    super().set_parameters(before)  # type: ignore[arg-type]  # SB3's annotation is wrong
                    raise ValueError(f"the parameters do not fit this agent: {error}") from error

    @contextlib.contextmanager
    def _networks_may_change(self) -> Iterator[None]:
        """While this lasts, nothing is learned in the background, nothing acts, and the actor is the learner's own."""
        background = self._background
        if background is None:
            yield
            return
        assert self.policy.actor is not None
        with background.paused():
            with background.acting:
                bind_parameters(self.policy.actor, background.learned)
                try:
                    yield
                finally:
                    bind_parameters(self.policy.actor, background.published)
            background.publish()

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "agent_learner"], []  # what get_parameters and set_parameters are about

    def save(
        self,
        path: File,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        *,
        include_buffer: bool = False,
    ) -> None:
        """Write the agent to one file, whole or not at all.

        Learning in the background pauses until everything is copied. ``observe`` waits only while counters and
        statistics are, not for networks and memory.

        Networks, Adam's moments, generators and counters are in it, and the statistics of ``VecNormalize``, if there is
        one: an agent that is loaded goes on where it was. How its environment gives observations is in it, too, for
        exports. There is no code in the file, and reading it runs none.

        :param path: of the file; ``.zip`` is added where there is no ending
        :param exclude: attributes to leave out
        :param include: more attributes than are declared
        :param include_buffer: with the replay memory
        """
        save_agent(self, path, exclude or (), include or (), include_buffer)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[Self],
        path: File,
        env: GymEnv | str | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Load an agent that :meth:`save` wrote.

        :param path: of the file
        :param env: environment to go on learning in (an id will do); none is needed for predictions. If the agent
            learned with ``VecNormalize``, so will this one; one that you bring gets the statistics of the agent's, and
            keeps its own ``training`` and ``norm_reward``.
        :param device: where networks live
        :param custom_objects: attributes to use instead of those in the file; functions and classes of your own, which
            a file cannot hold, have to be given here
        :param print_system_info: print what is installed
        :param force_reset: learning begins with a new episode
        :param kwargs: arguments of the constructor, or attributes, to change, for instance ``journal``
        :raises ValueError: for a file that is damaged or does not fit, and for kwargs that do not exist
        """
        if print_system_info:
            get_system_info()
        checks.warn_of_missing_gpu(device)
        return load_agent(cls, path, env, device, custom_objects or {}, force_reset, kwargs)

    def _settle(self) -> None:
        """Before saving: note what the background and the memory know."""
        if self._background is not None:
            self._epochs_due = self._background.due
        self._learned_with_masks = self.learned_with_masks  # the memory may not be saved

    def _autosave_if_due(self) -> None:
        """Asked between steps and epochs; there need not be anything to learn from yet."""
        if self.autosave is not None and time.monotonic() >= self._saved_at + 60 * self.autosave_minutes:
            # With a journal, the experience is in a file already; demonstrations are not.
            include = self.collector.journal is None or self.replay_buffer.n_demonstrations > 0
            try:
                self.save(self.autosave, include_buffer=include)
            except OSError as error:  # the robot goes on
                warnings.warn(
                    f"autosave to {self.autosave} failed: {error}. It is tried again in {self.autosave_minutes:g} min.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._saved_at = time.monotonic()

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Write the replay memory to a NumPy file; learning in the background pauses meanwhile.

        :param path: of the file; ``.npz`` is added where there is no ending, and folders are made. Or an open file.
            (What SB3's ``CheckpointCallback`` calls ``.pkl`` is such a file, too.)
        """
        if isinstance(path, str | pathlib.Path):
            path = with_ending(pathlib.Path(path), ".npz")
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.learning_paused():
            self.replay_buffer.save_npz(path)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """Replace the replay memory by a saved one; learning in the background pauses meanwhile.

        :param path: of what :meth:`save_replay_buffer` wrote
        :param truncate_last_traj: not used
        :raises ValueError: for other files; nothing changes then. Those of Stable-Baselines3 are pickles, which can
            run anything when they are read.
        """
        if isinstance(path, str | pathlib.Path):
            path = pathlib.Path(path)
            path = path if path.exists() else with_ending(path, ".npz")
        refuse_pickle(path)
        with self.learning_paused():
            self.replay_buffer.load_npz(path)

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


show_all(Ensemble, passes_on=False)


def _generators(seed: int | None) -> tuple[np.random.Generator, np.random.Generator]:
    """For training and for predictions. An environment with the same seed draws from ``default_rng(seed)``: an agent
    that did so too would choose its actions by the very numbers that decide what becomes of them."""
    if seed is None:
        return np.random.default_rng(), np.random.default_rng()
    return np.random.default_rng([seed, 4]), np.random.default_rng([seed, 1])


def _batch_of_one(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _batch_of_one(part) for key, part in value.items()}
    return np.array(value)[None]
