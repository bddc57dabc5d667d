"""Collecting experience: check it, store it, and only then let anybody else see it."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, RolloutReturn, TrainFreq
from stable_baselines3.common.utils import should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from bdpi.agents import checks
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
from bdpi.agents.checkup import EpisodeRecord
from bdpi.agents.journal import Journal, Step
from bdpi.agents.normalizing import is_fresh, update_normalizer
from bdpi.envs.wrappers.retracing import CONTINUED
from bdpi.learner.interface import BoolArray, FloatArray, IntArray

#: Where infos have the last observation of an episode as it was before ``VecNormalize``.
_ORIGINAL = "original_terminal_observation"


class CollectingAlgorithm(OffPolicyAlgorithm):
    """SB3's off-policy algorithm with another way to collect: nothing is lost, nothing senseless gets in."""

    replay_buffer: TransitionBuffer | DictTransitionBuffer
    action_space: spaces.Discrete
    #: keeps every transition
    _journal: Journal | None = None
    #: how many transitions of the journal the agent has counted as its own
    _journaled = 0
    _journal_id = ""
    #: of the states that the environments are in, (n_envs, n_actions); None: all actions are allowed
    _action_masks: BoolArray | None = None
    #: of environments that have made no step since they were reset: whether they gave a mask then
    _masked_resets: dict[int, bool] | None = None
    _warned_of_lone_masks = False
    #: returns of the first and the last episodes
    _record: EpisodeRecord
    #: steps and episodes that were collected since the agent learned last; not zero after a callback stopped training
    _collected: tuple[int, int] = (0, 0)

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = OffPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        checks.check_normalization(wrapped)
        return wrapped

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
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        steps, episodes = self._collected
        while should_collect_more_steps(train_freq, steps, episodes):
            actions, buffer_actions = self._sample_action(learning_starts, n_envs=env.num_envs)
            try:
                new_obs, rewards, dones, infos = env.step(actions)
                if self._vec_normalize_env is None:
                    self.check_step(new_obs, rewards, dones, infos)
                with self.observing():
                    self._store_transition(replay_buffer, buffer_actions, new_obs, rewards, dones, infos)
                    self._episode_num += int(np.sum(dones))
                self._action_masks = checks.masks_of(
                    _upcoming(env, dones, infos), self.action_space, self.num_timesteps
                )
                self._episodes_ended(np.flatnonzero(dones))
            except BaseException:
                self._last_obs = None  # the environments may have gone on: the next learn() starts new episodes
                raise
            self._compare_masks(dones, infos)
            self._note_resets(env, np.flatnonzero(dones))
            steps += 1
            episodes += int(np.sum(dones))
            self._collected = (steps, episodes)
            self._update_info_buffer(infos, dones)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._step_collected()

            callback.update_locals(locals())
            if not callback.on_step():
                return RolloutReturn(steps * env.num_envs, episodes, continue_training=False)
            ended = range(self._episode_num, self._episode_num - int(np.sum(dones)), -1)
            if log_interval is not None and any(number % log_interval == 0 for number in ended):
                self.dump_logs()
        self._collected = (0, 0)
        callback.on_rollout_end()
        return RolloutReturn(steps * env.num_envs, episodes, continue_training=True)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        continues = self._last_obs is not None
        if self._vec_normalize_env is not None:
            check_before_normalizing(self._vec_normalize_env, self)
        if self._journal is not None:
            with self.observing():
                self._catch_up(self._journal)
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        assert self.env is not None
        if self.num_timesteps == 0 or not continues:  # the environments were reset
            infos = self.env.unwrapped.reset_infos
            self._action_masks = checks.masks_of(infos, self.action_space, self.num_timesteps)
            self._masked_resets = {}
            self._note_resets(self.env, range(self.n_envs))
            new = [index for index, info in enumerate(infos) if not info.get(CONTINUED)]
            self._episodes_ended(np.array(new, dtype=np.int64))
            for index in new:
                self._record.begin(index)
        try:
            for index in range(self.n_envs):
                self.check_observation("first observation", _row(self._last_obs, index), index, self.num_timesteps)
        except ValueError:
            self._last_obs = None
            raise
        return total_timesteps, callback

    def _remember(
        self,
        observations: Any,
        next_observations: Any,
        actions: IntArray,
        rewards: FloatArray,
        dones: Any,
        infos: list[dict[str, Any]],
        masks: tuple[BoolArray, BoolArray] | None,
    ) -> None:
        """Keep one transition of each environment, first in the journal, then in the replay memory; and count it only
        then: whoever is interrupted in between (Ctrl-C) finds it in the journal, now or after loading."""

        def store() -> None:
            self.replay_buffer.add(observations, next_observations, actions, rewards, dones, infos)
            if masks is not None:
                self.replay_buffer.mask_last(*masks)

        def step_of(index: int, info: dict[str, Any]) -> Step:
            return Step(
                _row(observations, index),
                int(np.asarray(actions[index]).reshape(())),
                float(rewards[index]),
                _row(next_observations, index),
                terminated=bool(dones[index]) and not info.get("TimeLimit.truncated", False),
                truncated=bool(info.get("TimeLimit.truncated", False)),
                discount=info.get("discount"),
                mask=None if masks is None else masks[0][index],
                next_mask=None if masks is None else masks[1][index],
                environment=index,
            )

        with self.observing():
            journaled = self._journaled
            if self._journal is not None:
                self._catch_up(self._journal)
                journaled = self._journal.append(*itertools.starmap(step_of, enumerate(infos)))
            self._change_memory(store)
            self.num_timesteps, self._journaled = self.num_timesteps + len(infos), journaled
            self._record.add(rewards, dones, infos)

    def _catch_up(self, journal: Journal) -> None:
        """Remember what is in the journal and nowhere else, because somebody was interrupted."""
        if journal.last != self._journaled:
            steps = list(journal.steps(after=self._journaled))
            self._change_memory(lambda: self._add_to_memory(steps))
            self.num_timesteps, self._journaled = self.num_timesteps + len(steps), journal.last

    def observing(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, nobody else sees the agent, which may be half changed."""
        return contextlib.nullcontext()

    def _open_journal(self, given: str | os.PathLike[str] | Journal, *, take_in: bool = True) -> None:
        """Go on with a journal, and with what is in it.

        :param take_in: what the agent has not seen yet; no: that is about to be repeated
        """
        if isinstance(given, Journal):
            journal = given
            journal.check_spaces(self.observation_space, self.action_space)
            journal.claim()
        else:
            journal = Journal(given, self.observation_space, self.action_space)
            try:
                journal.claim()
            except BaseException:
                journal.close()
                raise
        if self._journal_id not in ("", journal.id):
            if journal.last:
                journal.close()
                raise ValueError(
                    f"{journal.path} is not the journal that this agent has written: give it that one, or a new file"
                )
            self._journaled = 0  # a new one
        elif journal.last < self._journaled:
            warnings.warn(
                f"{journal.path} has {journal.last} transitions, and the agent has seen {self._journaled}: the last "
                "ones were lost, in a power failure perhaps (a Journal with durable=True does not lose any)",
                RuntimeWarning,
                stacklevel=4,
            )
            self._journaled = journal.last
        self._journal_id = journal.id
        self._journal = journal
        if take_in:
            self._take_in(journal)
        self._journaled = journal.last

    def close_journal(self) -> None:
        """Give the journal back, so that another agent can go on with it; what is observed afterwards is refused."""
        if self._journal is not None:
            self._journal.close()

    def _take_in(self, journal: Journal) -> None:
        """Learn of transitions that the agent has not counted yet."""
        normalizer = self._vec_normalize_env
        # Statistics that a new agent finds are somebody's own, who knows what they are of.
        if normalizer is not None and (self.num_timesteps > 0 or is_fresh(normalizer)):
            for step in journal.steps(after=self._journaled):
                update_normalizer(normalizer, step)
        if len(self.replay_buffer) == 0:
            last_ones = max(0, journal.last - self.replay_buffer.buffer_size * self.n_envs)
            self._add_to_memory(journal.steps(after=last_ones))
        else:
            self._add_to_memory(journal.steps(after=self._journaled))
        self.num_timesteps += journal.last - self._journaled

    def _add_to_memory(self, steps: Iterable[Step]) -> None:
        """Take transitions into the replay memory, which has a row for all environments at a time."""
        row: list[Step] = []
        for step in steps:
            row.append(step)
            if len(row) == self.n_envs:
                self.replay_buffer.add_steps(row)
                row = []
        if row:  # a crash came between environments; one transition counts twice
            self.replay_buffer.add_steps([row[index % len(row)] for index in range(self.n_envs)])

    def _change_memory(self, store: Callable[[], object]) -> None:
        """Add to the replay memory."""
        store()

    def _step_collected(self) -> None:
        """Told that a step is complete, before callbacks are asked."""

    def _episodes_ended(self, environments: IntArray) -> None:
        """Told which environments are about to begin a new episode."""

    def _masks_of_step(self, dones: Any, infos: list[dict[str, Any]]) -> tuple[BoolArray, BoolArray] | None:
        """``info["action_mask"]`` of the states before and after the last step; None where there is none."""
        before = self._action_masks
        after = checks.masks_of(infos, self.action_space, self.num_timesteps, ended=dones)
        if before is None and after is None:
            return None
        everything = np.ones((self.n_envs, int(self.action_space.n)), bool)
        return (everything if before is None else before), (everything if after is None else after)

    def _note_resets(self, env: VecEnv, environments: Iterable[int]) -> None:
        if self._masked_resets is not None:
            infos = env.unwrapped.reset_infos
            self._masked_resets |= {int(index): "action_mask" in infos[index] for index in environments}

    def _compare_masks(self, dones: Any, infos: list[dict[str, Any]]) -> None:
        """Warn of an environment that gives masks at reset only, or at steps only."""
        resets, self._masked_resets = self._masked_resets or {}, {}
        for index, at_reset in resets.items():
            at_step = "action_mask" in infos[index]
            if self._warned_of_lone_masks or at_reset == at_step or (at_reset and dones[index]):
                continue
            self._warned_of_lone_masks = True
            gave = ("at reset", "at the step after it") if at_reset else ("at a step", "at the reset before it")
            warnings.warn(
                f'environment {index} gave an info["action_mask"] {gave[0]}, and none {gave[1]}: without one, the '
                "agent may choose any action. Give it at reset and at every step.",
                RuntimeWarning,
                stacklevel=2,
            )

    def check_step(self, new_obs: Any, rewards: Any, dones: Any, infos: list[dict[str, Any]]) -> None:
        """Refuse what cannot be learned from, before it is counted, normalised or stored."""
        step = self.num_timesteps + self.n_envs
        for index, info in enumerate(infos):
            checks.check_finite("reward", rewards[index], step, index)
            self.check_observation("observation", _row(new_obs, index), index, step)
            if dones[index] and info.get("terminal_observation") is not None:
                self.check_observation("last observation", info["terminal_observation"], index, step)
            checks.check_discount(info, step, index)
            if "executed_action" in info:
                checks.check_executed_action(info["executed_action"], self.action_space, step, index)
        checks.masks_of(infos, self.action_space, step, ended=dones)
        assert self.env is not None
        checks.masks_of(_upcoming(self.env, dones, infos), self.action_space, step)

    def check_observation(self, what: str, observation: Any, environment: int, step: int) -> None:
        checks.check_finite(what, observation, step, environment)
        checks.check_in_space(what, observation, self.observation_space, step, environment)

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: IntArray,
        new_obs: Any,
        reward: FloatArray,
        dones: Any,
        infos: list[dict[str, Any]],
    ) -> None:
        """Remember the action that was executed: ``info["executed_action"]`` where the environment reports one."""
        executed = np.array(buffer_action)
        for index, info in enumerate(infos):
            if "executed_action" in info:
                executed[index] = checks.check_executed_action(
                    info["executed_action"], self.action_space, self.num_timesteps, index
                )
        normalizer = self._vec_normalize_env
        if normalizer is None:
            self._last_original_obs, original, original_reward = self._last_obs, new_obs, reward
        else:
            original, original_reward = normalizer.get_original_obs(), normalizer.get_original_reward()
        next_obs = copy.deepcopy(original)
        last_one = "terminal_observation" if normalizer is None else _ORIGINAL
        for index, info in enumerate(infos):
            if dones[index] and info.get(last_one) is not None:
                _set_row(next_obs, index, info[last_one])
        assert self._last_original_obs is not None
        masks = self._masks_of_step(dones, infos)
        self._remember(self._last_original_obs, next_obs, executed, original_reward, dones, infos, masks)
        self._last_obs = new_obs
        if normalizer is not None:
            self._last_original_obs = original


def check_before_normalizing(normalizer: VecNormalize, algorithm: CollectingAlgorithm) -> None:
    """Check values before ``VecNormalize`` clips them and takes them into its statistics, and keep the last
    observations of episodes as they were.

    The environments inside keep their class and their number: SB3 compares them, wrapper by wrapper, with those of an
    evaluation environment, so that one more wrapper would not do.
    """
    inner: Any = normalizer.venv
    if "unchecked" not in vars(inner):
        inner.unchecked = (inner.reset, inner.step_wait)
    reset, step_wait = inner.unchecked

    def checked_reset() -> Any:
        observations = reset()
        for index in range(inner.num_envs):
            algorithm.check_observation("first observation", _row(observations, index), index, algorithm.num_timesteps)
        return observations

    def checked_step_wait() -> Any:
        result = step_wait()
        algorithm.check_step(*result)
        for info in result[-1]:
            if "terminal_observation" in info:
                info[_ORIGINAL] = info["terminal_observation"]
        return result

    inner.reset, inner.step_wait = checked_reset, checked_step_wait


def _upcoming(env: VecEnv, dones: Any, infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Infos of the states in which the next actions are taken: after the reset, where an episode ended."""
    return [env.unwrapped.reset_infos[index] if done else infos[index] for index, done in enumerate(dones)]


def _row(values: Any, index: int) -> Any:
    return {key: part[index] for key, part in values.items()} if isinstance(values, dict) else values[index]


def _set_row(values: Any, index: int, row: Any) -> None:
    if isinstance(values, dict):
        for key, part in values.items():
            part[index] = row[key]
    else:
        values[index] = row
