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
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, Schedule, TrainFreq
from stable_baselines3.common.utils import (
    FloatSchedule,
    get_system_info,
    should_collect_more_steps,
)
from stable_baselines3.common.vec_env import VecEnv

from bdpi.agents import checks, hub
from bdpi.agents.actions import Actions, Draws, generators
from bdpi.agents.advice import Advice, Advisor, check_advisors
from bdpi.agents.agent_file import check_arguments, load_agent, load_parameters, save_agent
from bdpi.agents.agent_learner import AgentLearner, Epochs, learn_epochs
from bdpi.agents.arguments import OF_SB3, Settings, check_policy_arguments, common_arguments, complete, show_all
from bdpi.agents.autosave import Autosave
from bdpi.agents.background import Background, Idle
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer, stacked
from bdpi.agents.checkup import WORTH_ANOTHER, Checkup, look
from bdpi.agents.collector import ORIGINAL, Collector, EpisodeRecord, row_of
from bdpi.agents.copies import restore, state_of
from bdpi.agents.decisions import Decisions
from bdpi.agents.demonstrations import transitions_of
from bdpi.agents.encoding import Arrays
from bdpi.agents.environments import checked, make_if_id
from bdpi.agents.files import File
from bdpi.agents.frames import Frames, normalized, stacked_space
from bdpi.agents.health import Finding
from bdpi.agents.inputs import Inputs
from bdpi.agents.journal import Journal, Transition
from bdpi.agents.learners import make_learner
from bdpi.agents.logs import LenientLogger, StepLog, record_state
from bdpi.agents.masks import MaskSource, reset_infos
from bdpi.agents.memories import MemoryChoice, choose_memory, make_memory
from bdpi.agents.normalizing import update_normalizer
from bdpi.agents.policies import BDPIPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from bdpi.agents.scales import ScaleEstimator
from bdpi.envs.factors import DEFAULT_BITS
from bdpi.envs.wrappers.retracing import CONTINUED
from bdpi.learner import Hyperparameters
from bdpi.learner.arrangement import Precision
from bdpi.learner.interface import FloatArray, IntArray
from bdpi.learner.registry import LearnerChoice
from bdpi.learner.rules import ActorRule, ClippedDouble, CriticRule
from bdpi.learner.scales import RARER, Scales

if TYPE_CHECKING:
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="Ensemble")

_MOST_DUE = 8  # epochs that learn() lets the background fall behind


class Ensemble(OffPolicyAlgorithm):
    """Several critics, and perhaps an actor, trained by an
    :class:`~bdpi.agents.agent_learner.AgentLearner`.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of
        :class:`~bdpi.agents.policies.BDPIPolicy`
    :param env: the environment to learn from (an id, an environment or a ``VecEnv``); Discrete actions
    :param learning_rate: Adam's learning rate of the critics; may be a function of the remaining progress. A third of
        it where rewards are rare, see ``rare_rewards``
    :param settings: see :class:`~bdpi.agents.arguments.Settings`
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    #: it learns in tables, one number for each state and action, instead of networks
    has_tables: ClassVar[bool] = False
    #: attributes that are parts of the agent; what is saved of them is declared there
    parts: ClassVar[tuple[str, ...]] = ("actions", "collector", "draws", "episodes", "scale_estimator")
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
        **dict.fromkeys(("hindsight", "_frames"), dict),
        "agent_class": str,
        "_begun": bool,
        "_learned_with_masks": bool,
        "_collected": tuple,
        "_diagnostics": dict,
    }
    # the constructor's arguments, see Settings: those that are named here become attributes
    n_critics: int
    n_stack: int
    critics_per_step: int | None
    repeat_critics: bool
    critic_iterations: int
    fit_steps: int | None
    critic_step_size: float
    observation_size: float | None
    return_size: float | None
    rare_rewards: float
    precision: Precision
    n_threads: int | None
    max_grad_norm: float | None
    journal: str | os.PathLike[str] | Journal | None
    autosave: str | os.PathLike[str] | None
    autosave_minutes: float
    asynchronous: bool
    advisors: Sequence[Advisor]
    advice_steps: int | None
    # made by the set-up
    policy: BDPIPolicy
    replay_buffer: TransitionBuffer | DictTransitionBuffer
    #: those that the agent makes instead of the environment's actions
    decisions: Decisions
    agent_learner: AgentLearner
    #: the advice of others, while there is any
    advice: Advice | None
    actions: Actions
    draws: Draws
    collector: Collector
    #: frames that actions are chosen by, where these are several (``n_stack``)
    frames: Frames | None
    #: returns of the first and the last episodes
    episodes: EpisodeRecord
    scale_estimator: ScaleEstimator
    #: of the actor; None: the critics'. Agents with an actor have it as an argument.
    actor_learning_rate: float | Schedule | None = None
    #: for how long random numbers are kept, see :class:`~bdpi.agents.actions.Draws`; with an actor, an argument
    persistence: float = 1.0
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
        learning_rate: float | Schedule = 3e-4,
        **settings: Unpack[Settings],
    ) -> None:
        given = complete(type(self), settings)
        if env is not None:
            env = make_if_id(env, given["verbose"])
        if env is not None or given["_init_setup_model"]:
            checks.check_environment(env)
        checks.check_policy(policy, self.policy_aliases, BDPIPolicy, env)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]  # None when an agent is loaded for prediction only
            learning_rate,
            sde_support=False,
            support_multi_env=True,
            **{name: value for name, value in given.items() if name in OF_SB3},  # type: ignore[arg-type]
        )
        self.learner_choice: LearnerChoice = given["learner"]
        vars(self).update({name: value for name, value in given.items() if name in Ensemble.__annotations__})
        #: how goals are replaced in the replay memory; None: they are not
        self.hindsight: dict[str, Any] | None = None
        #: says whose file it is; read before anything else of a saved agent is
        self.agent_class = type(self).__name__
        #: settings and statistics of the ``VecNormalize`` that the agent learned with, if it was loaded without one
        self.kept_normalizer: tuple[dict[str, Any], Arrays] | None = None
        #: what its environment's wrappers do to observations and actions, if it was loaded without an environment
        self.kept_inputs: Inputs | None = None
        self._device_is_free = given["device"] == "auto"
        checks.warn_of_missing_gpu(given["device"])
        #: draws training actions and batches, and nothing else does; saved with the agent
        self._generator: np.random.Generator
        #: the policy's, which draws stochastic predictions; here, because it is saved too
        self._predict_generator: np.random.Generator
        self._generator, self._predict_generator = generators(self.seed)
        self._background: Background | Idle = Idle()
        #: epochs that were left when learning in the background was stopped
        self._epochs_due = 0.0
        #: steps and episodes since the agent learned last; not zero after a callback stopped training
        self._collected = (0, 0)
        #: see :class:`~bdpi.agents.frames.Frames`
        self._frames: dict[int, NDArray[Any]] = {}
        #: whether act has begun an episode
        self._begun = False
        self._learned_with_masks = self._warned_of_masks = False
        #: entropy and the like, as they were last computed
        self._diagnostics: dict[str, float] = {}
        self._autosave, self._checkup = Autosave(), Checkup()
        self.step_log = StepLog()
        if given["_init_setup_model"]:
            checks.check_capacity(self, batch_is_default="batch_size" not in settings)
            checks.check_learning_rate("learning_rate", self.learning_rate)
            self._setup_model()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, see :mod:`bdpi.agents.copies`."""
        return state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore(self, state)

    # -- set-up -------------------------------------------------------------------------------------------------

    def _check_hyperparameters(self) -> None:
        checks.check_settings(self)
        check_policy_arguments(self.policy_class, self.policy_kwargs)

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = OffPolicyAlgorithm._wrap_env(checked(env), verbose, monitor_wrapper)
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
        bits = self.policy_kwargs.get("action_bits", DEFAULT_BITS)
        self.decisions = Decisions(self.observation_space, self.action_space, bits)
        asked = MemoryChoice(self.replay_buffer_class, self.replay_buffer_kwargs, self.n_steps, self.hindsight)
        chosen = choose_memory(asked, self.observation_space, self.decisions, self.gamma)
        self.replay_buffer_class, self.replay_buffer_kwargs, self.n_steps, self.hindsight = chosen
        if self.replay_buffer is None:
            self.replay_buffer = make_memory(self)
        n_steps, self.n_steps = self.n_steps, 1  # SB3 warns of n_steps where the memory is not its own
        space, self.observation_space = self.observation_space, stacked_space(self.observation_space, self.n_stack)
        super()._setup_model()  # the policy sees stacks of frames, as behind a wrapper
        self.n_steps, self.observation_space = n_steps, space
        self.frames = None if self.n_stack == 1 else Frames(space, self.n_stack, self._frames)
        given = self.observation_space, self.action_space, self.n_envs, self.decisions, self.frames
        self.collector = Collector(self.replay_buffer, *given)
        self.episodes, self.scale_estimator = EpisodeRecord(self.n_envs), ScaleEstimator()
        normalizer = self._vec_normalize_env
        if self.observation_size is not None and (normalizer is None or not normalizer.norm_obs):
            self.policy.set_scales(Scales.unknown(len(self.policy.scales.shift)))
        self.agent_learner = make_learner(self)
        self.advise(self.advisors, self.advice_steps)
        self.draws = Draws(self.n_envs, self.policy.n_actions, self.persistence)
        self.actions = Actions(self.policy, self.n_envs, self.n_critics, self.draws)
        if self.policy.actor is not None and self.agent_learner.actor_parameters is not None:
            self.agent_learner.act_with(self.agent_learner.actor_parameters)
        self._actor_lr_schedule = (
            self.lr_schedule if self.actor_learning_rate is None else FloatSchedule(self.actor_learning_rate)
        )
        if self.num_timesteps and self.seed is not None and self.env is not None:
            # A loaded agent: SB3 has just seeded its environment as at the very start, which would replay the first
            # episodes. Seed it by how far the agent has come instead.
            self.env.seed(int(np.random.SeedSequence([self.seed, self.num_timesteps]).generate_state(1)[0]) >> 1)
        if not isinstance(self._generator, np.random.Generator) or self._predict_generator is None:
            raise ValueError("the file is damaged: it lacks the agent's random generators")
        self.policy.generator = self._predict_generator
        if self.journal is not None:
            self._open_journal(self.journal)

    def critic_rule(self) -> CriticRule:
        """How critics move towards their new estimates. Asked before every step of learning."""
        return ClippedDouble(self.critic_step_size)

    def actor_rule(self) -> ActorRule | None:
        """How the actor follows a critic; None: there is no actor, and each episode follows a critic."""
        return None

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed networks yet to be made, the environment, and the agent's own generators."""
        with self.learning_paused():
            super().set_random_seed(seed)
            if seed is not None and hasattr(self, "collector"):  # else a loaded agent is set up
                self._generator, self._predict_generator = generators(seed)
                self.policy.generator = self._predict_generator
                self._begun = False  # act draws what it draws at the beginning of an episode, too

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
        arguments = total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        self.agent_learner.compute(self.learning(*arguments))
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
        starts = self.asynchronous and not self._background.is_running
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
        checks.check_capacity(self)
        continues = self._last_obs is not None
        self.policy.set_training_mode(False)
        if self._vec_normalize_env is not None:
            self.collector.check_before(self._vec_normalize_env, lambda: self.num_timesteps)
        if self.collector.journal is not None:
            with self._background.observing:
                self._catch_up()
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        if not self._custom_logger:
            self._logger = LenientLogger(self._logger.dir, self._logger.output_formats)
        assert self.env is not None
        self.collector.ask = MaskSource(self.env, self.action_space)
        if self.num_timesteps == 0 or not continues:  # the environments were reset
            infos = reset_infos(self.env)
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
        num_collected_steps, num_collected_episodes = self._collected  # callbacks know them by these names
        while should_collect_more_steps(train_freq, num_collected_steps, num_collected_episodes):
            shown = self._last_obs if self._vec_normalize_env is None else self._last_original_obs
            advised = None if self.advice is None else self._advised(shown)
            with self._background.acting:
                seen = self._last_obs if self.frames is None else self.seen(shown, range(self.n_envs))
                actions = self.actions.take(self.agent_learner, seen, collector.masks, self._generator, advised)
            try:
                new_obs, rewards, dones, infos = env.step(actions)
                n_ended = sum(dones.tolist())
                begun = reset_infos(env) if n_ended else []
                if self._vec_normalize_env is None:
                    collector.check(new_obs, rewards, dones, infos, begun, self.num_timesteps + self.n_envs)
                self._store_step(actions, new_obs, rewards, dones, infos, n_ended)
                if not collector.is_ordinary:
                    collector.stepped(dones, infos, begun)
                if n_ended:
                    self._begin_episodes(np.flatnonzero(dones), ended=True)
            except BaseException:
                self._last_obs = None  # the environments may have gone on: the next learn() starts new episodes
                raise
            num_collected_steps += 1
            num_collected_episodes += n_ended
            self._collected = (num_collected_steps, num_collected_episodes)
            self._update_info_buffer(infos, dones)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if self.autosave is not None and not self._background.is_running:  # whose thread looks after it
                self._autosave.save_if_due(self)
            if checkup.has_news or max(self.episodes.steps) >= checkup.most_steps:
                checkup.after_step(self.episodes)

            callback.update_locals(locals())
            if not callback.on_step():
                return RolloutReturn(num_collected_steps * env.num_envs, num_collected_episodes, False)
            ended = range(self._episode_num, self._episode_num - n_ended, -1)
            if log_interval is not None and any(number % log_interval == 0 for number in ended):
                self.dump_logs()
        self._collected = (0, 0)
        callback.on_rollout_end()
        return RolloutReturn(num_collected_steps * env.num_envs, num_collected_episodes, True)

    def seen(self, observations: Any, environments: Iterable[int]) -> Any:
        """Observations as networks see them: with the frames before them, and normalised.

        :param observations: as the environments, or robots, of these numbers show them
        """
        stacks = observations if self.frames is None else self.frames.stacks(observations, environments)
        return stacks if self._vec_normalize_env is None else normalized(stacks, self._vec_normalize_env)

    def _store_step(
        self, actions: Any, new_obs: Any, rewards: FloatArray, dones: Any, infos: list[dict[str, Any]], ended: int
    ) -> None:
        """Store a step of the environments, as it is without ``VecNormalize``, and count it only then: after an
        interruption in between (Ctrl-C), it is found in the journal, now or after loading."""
        collector, normalizer, original = self.collector, self._vec_normalize_env, new_obs
        if normalizer is None:
            self._last_original_obs = self._last_obs  # type: ignore[assignment]
        else:
            original, rewards = normalizer.get_original_obs(), normalizer.get_original_reward()
        last_one = "terminal_observation" if normalizer is None else ORIGINAL
        with self._background.observing:
            if collector.journal is not None:
                self._catch_up()
            before = self._last_original_obs
            journaled = collector.store(before, actions, original, rewards, dones, infos, last_one)
            self.num_timesteps, collector.journaled = self.num_timesteps + len(infos), journaled
            self.episodes.add(rewards, dones, infos)
            self._last_obs = new_obs
            if normalizer is not None:
                self._last_original_obs = original  # type: ignore[assignment]
            self._episode_num += ended

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

    def close_journal(self) -> None:
        """Give the journal back, so that another agent can go on with it; what is observed afterwards is refused."""
        if self.collector.journal is not None:
            self.collector.journal.close()

    # -- learning -----------------------------------------------------------------------------------------------

    def hyperparameters(self) -> Hyperparameters:
        """Those of the next epoch: learning rates follow their schedules, and are lower where rewards are rare."""
        progress = max(0.0, self._current_progress_remaining)  # several environments may step beyond the end
        learning_rate, actor_learning_rate = self.lr_schedule(progress), self._actor_lr_schedule(progress)
        if not (0 <= learning_rate < math.inf and 0 <= actor_learning_rate < math.inf):
            checks.check_number("learning_rate (by its schedule)", learning_rate, 0, low_included=True)
            checks.check_number("actor_learning_rate (by its schedule)", actor_learning_rate, 0, low_included=True)
        share = 1 / RARER if self.scale_estimator.rare else 1
        return Hyperparameters(
            critic_iterations=self.critic_iterations,
            fit_steps=self.fit_steps or self.policy.default_fit_steps,
            critic_rule=self.critic_rule(),
            learning_rate=learning_rate * share,
            actor_learning_rate=actor_learning_rate * share,
            actor_rule=self.actor_rule(),
            repeats=self.repeat_critics,
        )

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Learning epochs: ``gradient_steps`` of them for each environment, so that their number per transition does
        not depend on how many environments run side by side."""
        if epochs := self._training(gradient_steps, batch_size):
            self.agent_learner.compute(epochs)

    def _training(self, gradient_steps: int, batch_size: int) -> Epochs | tuple[()]:
        """Epochs to be computed now; those of a background are its own."""
        epochs = self.decisions.n * (gradient_steps if self.gradient_steps < 0 else gradient_steps * self.n_envs)
        if isinstance(self._background, Background):
            # Have these steps learned from, and do not run too far ahead.
            self._background.check()
            self._background.make(epochs)
            self._background.wait_until_due(_MOST_DUE)
            self._background.check()
        elif held := self._experience(batch_size):
            return learn_epochs(self, epochs, batch_size, held)
        return ()

    # -- acting -------------------------------------------------------------------------------------------------

    def _begin_episodes(self, environments: IntArray, *, ended: bool = False) -> None:
        """Choose how to act in the next episodes there.

        :param ended: the episodes before have ended; else they were given up, or there were none
        """
        if not self.agent_learner.has_actor:
            self.actions.begin_episodes(environments, self._generator)
            return
        indices = environments.tolist()
        if ended:
            self.draws.end_episodes(indices, [self.episodes.last[index] for index in indices])
        self.draws.begin_episodes(indices, self._generator)

    def _advised(self, shown: Any) -> NDArray[np.float64] | None:
        assert self.advice is not None
        return self.advice([row_of(shown, index) for index in range(self.n_envs)], self.num_timesteps)

    def advise(self, advisors: Sequence[Advisor], steps: int | None = None) -> None:
        """Act with these advisors from now on, instead of those that there were.

        :param advisors: as the argument of the constructor
        :param steps: of the agent, from its first one on, after which advice has faded; None: it does not
        :raises ValueError: for what cannot advise, and agents that cannot be advised; nothing changes then
        """
        check_advisors(advisors, steps, self.action_space, self.agent_learner.has_actor, type(self).__name__)
        self.advisors, self.advice_steps = advisors, steps
        self.advice = Advice(advisors, steps, self.policy.n_actions) if advisors else None

    def withdraw_advice(self) -> None:
        """Act without advisors from now on."""
        self.advise(())

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
        :param state: what the last call returned; None: episodes begin. With ``n_stack``, it holds the frames before;
            for agents without an actor that draw, which critics are followed
        :param episode_start: where an episode has begun since: frames before are forgotten, and another critic is drawn
        :param deterministic: the most probable action, or the one that most critics prefer, instead of a drawn one
        :param action_masks: which actions are allowed, (n_actions,) or (n, n_actions)
        """
        if action_masks is None and self.learned_with_masks and not self._warned_of_masks:
            self._warned_of_masks = True
            warnings.warn(
                "this agent learned with action masks and now predicts without: it may choose actions that are not "
                "allowed. Give predict action_masks; to evaluate, use bdpi.evaluate_policy (Stable-Baselines3's "
                "knows no masks).",
                RuntimeWarning,
                stacklevel=2,
            )
        frames = None
        if self.frames is not None:
            observation, frames = self.frames.follow(observation, state, episode_start)
            state = None if state is None else state[1:] or None
        with self._background.acting:
            actions, state = self.actions.predict(
                self.agent_learner, observation, state, episode_start, deterministic, action_masks
            )
        return actions, state if frames is None else (frames, *(state or ()))

    @property
    def learned_with_masks(self) -> bool:
        """Whether actions were masked at some time."""
        if self._learned_with_masks or self.collector.has_seen_masks:
            return True
        # Those of several decisions also say which one is next.
        return self.decisions.is_plain and self.replay_buffer is not None and self.replay_buffer.masks is not None

    # -- step by step -------------------------------------------------------------------------------------------

    def act(self, observation: Any, mask: Any = None) -> Any:
        """Choose an action to learn from, drawn as in training. (For the best known one: ``predict``.)

        :param observation: what the system is like now; pictures may have their channels last, as in ``predict``
        :param mask: which actions are allowed, zeros and ones; None: all
        """
        self._check_one_loop("act")
        observation = self.collector.given("observation", observation, self.num_timesteps)
        masks = None if mask is None else checks.check_masks(mask, 1, self.action_space)
        if not self._begun:
            self._begun = True
            self._begin_episodes(np.array([0]))
        shown = stacked([observation])
        advised = None if self.advice is None else self._advised(shown)
        batch = self.seen(shown, [0])
        with self._background.acting:
            (action,) = self.actions.take(self.agent_learner, batch, masks, self._generator, advised)
        self.collector.acted_mask = masks
        return int(action) if self.decisions.is_plain else action

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
        collector, number = self.collector, self.num_timesteps + 1
        step = Transition(observation, executed_action, reward, next_observation, terminated, truncated, discount)
        step = collector.given_masks(collector.given_transition(step, "executed_action", number), mask, next_mask)
        done = step.terminated or step.truncated
        with self._background.observing:
            self.remember(step)
            self.episodes.add([step.reward], [done], [{"discount": discount}])
            collector.acted_mask = None
            if done:
                self._begin_episodes(np.array([0]), ended=True)
        if done:
            self.step_log.add(self, self.episodes)

    def remember(self, step: Transition) -> int:
        """Store a transition that the collector has checked, and count it only then. Returns its number in the journal.

        :meth:`observe` does this for the only robot, and :class:`bdpi.agents.robots.Robot` for one of several.
        """
        collector = self.collector
        self.step_log.open(self)
        with self._background.observing:
            if collector.journal is not None:
                self._catch_up()
            journaled = collector.store_transition(step)
            self.num_timesteps, collector.journaled = self.num_timesteps + 1, journaled
            self._episode_num += step.terminated or step.truncated
            if self._vec_normalize_env is not None:
                update_normalizer(self._vec_normalize_env, step)
        if isinstance(self._background, Background):
            self._background.make(self._epochs_per_step())
        return journaled

    def learn_once(self) -> bool:
        """One learning epoch; returns whether there was enough experience for it.

        This is also when an agent with ``autosave`` is saved, if it is time for that.
        """
        if self._background.is_running:
            raise RuntimeError("the agent learns in the background already; stop_learning() ends that")
        has_learned = self._learn_once()
        if has_learned:
            self._epochs_due = max(0.0, self._epochs_due - 1)
        self._autosave.save_if_due(self)
        return has_learned

    def _learn_once(self) -> bool:
        held = self._experience()
        if held:
            self.step_log.open(self)
            self.agent_learner.compute(learn_epochs(self, 1, self.batch_size, held))
        return held > 0

    def _look_after(self) -> None:
        self._autosave.save_if_due(self)
        self.step_log.write(self)

    def _experience(self, batch_size: int | None = None) -> int:
        """How many transitions there are to learn from; 0: too few yet."""
        held, has_started = self.replay_buffer.n_held, self._n_updates > 0 or self.num_timesteps >= self.learning_starts
        return held if has_started and held >= (batch_size or self.batch_size) else 0

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
                steps += self.decisions.transitions(self.collector.given_transition(step, "the action", 0))
            except ValueError as error:
                raise ValueError(f"demonstration {number}: {error}") from error
        if not steps:
            raise ValueError("there are no transitions in the demonstrations")
        with self.learning_paused():
            self.replay_buffer.add_demonstrations(steps)
            self.demonstration_share = float(share)
        return len(steps)

    def _check_one_loop(self, name: str) -> None:
        self._background.check()
        if self.n_envs != 1:
            raise ValueError(f"{name} is for one system at a time, and this agent learns in {self.n_envs} environments")

    # -- in the background --------------------------------------------------------------------------------------

    def start_learning(self) -> None:
        """Learn in a thread from now on: as many epochs as :meth:`learn` would make, as soon as there is time.

        ``act`` answers meanwhile, from a copy of the actor that follows each epoch. Epochs that a robot leaves no time
        for wait until there is some: see :attr:`epochs_due`.
        """
        if self._background.is_running:
            raise RuntimeError("the agent learns in the background already")
        learned = self.agent_learner.actor_parameters
        if self.policy.actor is None or learned is None:
            raise ValueError(
                f"{type(self).__name__} cannot learn while it acts, because it has no actor network to act with "
                "meanwhile; BDPI and ActorMimic have one"
            )
        self._epochs_per_step()  # says what is wrong with train_freq before anything is observed
        published = learned.detach().cpu().clone()
        methods = self._learn_once, self._experience, self._look_after
        self.step_log.open(self)
        try:
            self.agent_learner.act_with(published)
            self._background = background = Background(*methods, learned, published, self._epochs_due)
            self.collector.defer = background.defer
            background.start()
        except BaseException:  # Ctrl-C, perhaps before there was a thread
            self.stop_learning()
            self.agent_learner.act_with(learned)
            raise

    @property
    def epochs_due(self) -> int:
        """How many epochs learning in the background is behind.

        :meth:`start_learning` begins with them, and they are saved with the agent; ``learn_once`` makes one of them.
        """
        return int(self._background.due if self._background.is_running else self._epochs_due)

    def stop_learning(self, finish: bool = False) -> None:
        """Wait for the epoch that is going on, and learn no more; what is due then is left to be learned later.

        :param finish: make all epochs that are due before, however long that takes. If interrupted, call again.
        :raises RuntimeError: when learning has failed
        """
        background = self._background
        if isinstance(background, Idle):
            return
        if finish:
            background.wait_until_due(0)
        background.stop()
        self._epochs_due = background.due
        assert self.agent_learner.actor_parameters is not None
        self.agent_learner.act_with(self.agent_learner.actor_parameters)
        self.collector.defer = None
        self._background = Idle()  # only now: after an interruption before, it can be stopped again
        background.check()
        self.step_log.write(self)

    def learning_held(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, networks and memory stay as they are. ``observe`` does not wait for it: what is observed
        meanwhile is taken into the memory afterwards."""
        return self._background.working

    def learning_paused(self) -> contextlib.AbstractContextManager[None]:
        """While this lasts, nothing is learned in the background, and the memory holds all that was observed."""
        return self._background.paused()

    def _epochs_per_step(self) -> float:
        """How many epochs a transition is worth."""
        frequency = self.train_freq
        if not isinstance(frequency, TrainFreq) or frequency.unit.value != "step":
            raise ValueError("learning in the background goes by steps: give train_freq a number of steps")
        epochs = self.decisions.n * (frequency.frequency if self.gradient_steps < 0 else self.gradient_steps)
        return float(epochs) / frequency.frequency

    def dump_logs(self) -> None:
        """As in SB3, and what is BDPI's own; learning in the background pauses meanwhile."""
        with self.learning_paused():
            record_state(self)
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

        Learning in the background pauses meanwhile, and goes on with these parameters. The actor is in both: a
        "policy" that differs from the agent's is what counts.

        :param load_path_or_dict: what :meth:`save` wrote, or parameters by their names
        :param exact_match: nothing may be missing
        :param device: not used: they go where the agent's are
        :raises ValueError: for parameters of other networks; nothing changes then
        """
        given: Any = load_path_or_dict if isinstance(load_path_or_dict, dict) else load_parameters(load_path_or_dict)
        compiled = self.policy
        self.policy = getattr(compiled, "_orig_mod", compiled)  # of torch.compile, whose parameters have other names
        with self._background.exchanging(self.policy.actor):
            before = copy.deepcopy(super().get_parameters())
            try:
                super().set_parameters(given, exact_match, device)
                if "policy" in given and not _same(given["policy"], before["policy"]):
                    self.policy.load_state_dict(given["policy"], strict=exact_match)
            except Exception as error:
                super().set_parameters(before)  # type: ignore[arg-type]  # SB3's annotation is wrong
                raise ValueError(f"the parameters do not fit this agent: {error}") from error
            finally:
                self.policy = compiled

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
        :param include: declared attributes to keep in spite of ``exclude``
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

    def push_to_hub(
        self,
        repo_id: str,
        env: gym.Env[Any, Any] | str | None = None,
        *,
        n_eval_episodes: int = 10,
        deterministic: bool = True,
        film: bool = True,
        custom_objects: dict[str, Any] | None = None,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Add an agent of bdpi",
    ) -> str:
        """Upload the agent to the Hugging Face Hub, with a model card; returns its address.

        :param repo_id: ``"user/repository"``, which is made if it does not exist
        :param env: in which a copy of the agent plays for the card's results: an id or an environment; None: no results
        :param n_eval_episodes: how many episodes
        :param deterministic: plays the most probable actions, instead of drawn ones
        :param film: with a film of one more episode, where the environment can draw ``"rgb_array"``
        :param custom_objects: for the copy, see :meth:`load`
        :param private: only you see a new repository
        :param token: of your account; None: the one that ``hf auth login`` stored
        :param commit_message: says what is new
        :raises ImportError: without huggingface_hub
        """
        commit = {"private": private, "token": token, "commit_message": commit_message}
        return hub.push(self, repo_id, env, n_eval_episodes, deterministic, film, custom_objects, commit)

    @classmethod
    def from_hub(
        cls: type[Self],
        repo_id: str,
        env: GymEnv | str | None = None,
        *,
        filename: str = hub.AGENT,
        revision: str | None = None,
        token: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Download an agent from the Hugging Face Hub, and load it: nothing in its file is run.

        :param repo_id: ``"user/repository"``
        :param env: see :meth:`load`
        :param filename: of the agent there
        :param revision: a commit, a tag or a branch
        :param token: for a private repository; None: the one that ``hf auth login`` stored
        :param kwargs: see :meth:`load`
        :raises ImportError: without huggingface_hub
        """
        file = hub.load_hub().hf_hub_download(repo_id, filename, revision=revision, token=token)
        return cls.load(file, env, **kwargs)

    def _settle(self) -> None:
        """Before saving: note what the background and the memory know."""
        self._epochs_due = self._background.due if self._background.is_running else self._epochs_due
        self._learned_with_masks = self.learned_with_masks  # the memory may not be saved

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Write the replay memory to a NumPy file; learning in the background pauses meanwhile.

        :param path: of the file; ``.npz`` is added where there is no ending, and folders are made. Or an open file.
            (What SB3's ``CheckpointCallback`` calls ``.pkl`` is such a file, too.)
        """
        with self.learning_paused():
            self.replay_buffer.save_npz(path)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """Replace the replay memory by a saved one; learning in the background pauses meanwhile.

        :param path: of what :meth:`save_replay_buffer` wrote
        :param truncate_last_traj: not used
        :raises ValueError: for other files; nothing changes then. Those of Stable-Baselines3 are pickles, which can
            run anything when they are read.
        """
        with self.learning_paused():
            if self.replay_buffer is None:
                self.replay_buffer = self.collector.memory = make_memory(self)
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


show_all(Ensemble, common_arguments())


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name].cpu(), second[name].cpu()) for name in first)
