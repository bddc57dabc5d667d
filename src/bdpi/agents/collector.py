"""Collecting experience: a step is checked, completed, and stored before anything else sees it."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from bdpi.agents import checks
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
from bdpi.agents.decisions import Decisions
from bdpi.agents.frames import Frames
from bdpi.agents.health import N_FIRST, N_RECENT, Returns
from bdpi.agents.journal import Journal, Transition
from bdpi.agents.masks import MaskSource, reset_infos
from bdpi.agents.normalizing import is_fresh, update_normalizer
from bdpi.agents.spaces import channels_first
from bdpi.envs.factors import mask_sizes
from bdpi.envs.wrappers.checked import warn_if_far
from bdpi.learner.interface import BoolArray, FloatArray

#: Where infos have the last observation of an episode as it was before ``VecNormalize``.
ORIGINAL = "original_terminal_observation"
#: Of infos: what has to be checked.
_SPECIAL = {"action_mask", "discount", "executed_action"}

Masks = tuple[BoolArray, BoolArray]


class Collector:
    """Validates transitions and stores them, first in the journal, then in the replay memory.

    It counts nothing: the agent does, when a transition is stored.

    :param memory: the replay memory
    :param observation_space: of the environments
    :param action_space: of the environments
    :param n_envs: how many environments are stepped together
    :param decisions: that agents make instead of these actions, and remember; None: as the spaces have it
    :param frames: that are acted on, and told of every step; None: agents act on one observation
    """

    #: what a saved agent holds of it
    saved: ClassVar[dict[str, type]] = {"masks": np.ndarray, "journaled": int, "journal_id": str}

    def __init__(
        self,
        memory: TransitionBuffer | DictTransitionBuffer,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        n_envs: int,
        decisions: Decisions | None = None,
        frames: Frames | None = None,
    ) -> None:
        self.decisions = decisions or Decisions(observation_space, action_space)
        self.frames = frames
        self.memory, self.observation_space, self.action_space = memory, observation_space, action_space
        self.n_envs, self.n_actions = n_envs, sum(mask_sizes(action_space))
        #: whether environments have excluded actions
        self.has_seen_masks = False
        #: of the states that the environments are in, (n_envs, n_actions); None: all actions are allowed
        self.masks: BoolArray | None = None
        #: asks the environments for them
        self.ask: MaskSource | None = None
        #: that ``act`` was told last
        self.acted_mask: BoolArray | None = None
        #: keeps every transition
        self.journal: Journal | None = None
        #: how many transitions of the journal the agent has counted as its own
        self.journaled = 0
        self.journal_id = ""
        #: has the replay memory changed later, while a thread learns from it; None: it is changed at once
        self.defer: Callable[[Callable[[], object]], object] | None = None
        self._is_box = isinstance(observation_space, spaces.Box)
        #: the step that was checked last ended no episode, and there is nothing to know of it but its numbers
        self.is_ordinary = False
        #: after the step that was checked last, and where the next actions are taken; None: no environment gave one
        self._next_masks: BoolArray | None = None
        self._upcoming_masks: BoolArray | None = None
        #: of environments that have made no step since they were reset: whether they gave a mask then
        self._masked_resets: dict[int, bool] = {}
        self._warned_of_lone_masks = False
        self._warned_of_far = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no journal, and ``learn`` tells it whom to ask for masks."""
        return {**vars(self), "journal": None, "journaled": 0, "journal_id": "", "defer": None, "ask": None}

    # -- checking -----------------------------------------------------------------------------------------------

    def check(
        self, new_obs: Any, rewards: Any, dones: Any, infos: list[dict[str, Any]], reset_infos: Any, step: int
    ) -> None:
        """Refuse what cannot be learned from, before it is counted, normalised or stored.

        :param reset_infos: of the last resets; needed where episodes have ended
        :param step: its number, for messages
        """
        is_asked = self.ask is not None and self.ask.asked is not None
        is_ordinary = not is_asked and self._is_box and not any(dones.tolist())
        is_ordinary = is_ordinary and all(_SPECIAL.isdisjoint(info) for info in infos)
        # a sum of numbers is finite only if all of them are
        if is_ordinary and math.isfinite(np.add.reduce(new_obs, axis=None)) and math.isfinite(sum(rewards.tolist())):
            self._next_masks = self._upcoming_masks = None
            self.is_ordinary = self.masks is None and not self._masked_resets
            return
        self.is_ordinary = False
        for index, info in enumerate(infos):
            checks.check_finite("reward", rewards[index], step, index)
            self.check_observation("observation", row_of(new_obs, index), index, step)
            if dones[index] and info.get("terminal_observation") is not None:
                self.check_observation("last observation", info["terminal_observation"], index, step)
            where = f"of environment {index} at step {step}"
            if "discount" in info:
                checks.check_number(f'info["discount"] {where}', info["discount"], 0, 1, low_included=True)
            if "executed_action" in info:
                checks.check_action(f'info["executed_action"] {where}', info["executed_action"], self.action_space)
        upcoming = [reset_infos[index] if done else infos[index] for index, done in enumerate(dones)]
        next_masks = checks.masks_of(infos, self.action_space, step, ended=dones)
        upcoming_masks = self._masks(upcoming, step)
        if next_masks is None and is_asked and upcoming_masks is not None:
            # An episode that has ended was reset before its last state could be asked for.
            next_masks = upcoming_masks | np.asarray(dones, bool)[:, None]
        self._next_masks, self._upcoming_masks = next_masks, upcoming_masks

    def _masks(self, infos: list[dict[str, Any]], step: int) -> BoolArray | None:
        return checks.masks_of(infos, self.action_space, step) if self.ask is None else self.ask(infos, step)

    def check_observation(self, what: str, observation: Any, environment: int, step: int) -> None:
        """Refuse an observation that cannot be learned from."""
        checks.check_finite(what, observation, step, environment)
        checks.check_in_space(what, observation, self.observation_space, step, environment)

    def check_first(self, observations: Any, step: int) -> None:
        """Refuse observations to begin with that cannot be learned from."""
        for index in range(self.n_envs):
            self.check_observation("first observation", row_of(observations, index), index, step)

    def check_before(self, normalizer: VecNormalize, count: Callable[[], int]) -> None:
        """Check values before ``VecNormalize`` clips them and takes them into its statistics, and keep the last
        observations of episodes as they were.

        The environments inside keep their class and their number: SB3 compares them, wrapper by wrapper, with those of
        an evaluation environment, so that one more wrapper would not do.

        :param count: how many steps were made
        """
        inner: Any = normalizer.venv
        if "unchecked" not in vars(inner):
            inner.unchecked = (inner.reset, inner.step_wait)
        reset, step_wait = inner.unchecked

        def checked_reset() -> Any:
            observations = reset()
            self.check_first(observations, count())
            return observations

        def checked_step_wait() -> Any:
            new_obs, rewards, dones, infos = step_wait()
            self.check(new_obs, rewards, dones, infos, reset_infos(inner), count() + self.n_envs)
            for info in infos:
                if "terminal_observation" in info:
                    info[ORIGINAL] = info["terminal_observation"]
            return new_obs, rewards, dones, infos

        inner.reset, inner.step_wait = checked_reset, checked_step_wait

    # -- a step -------------------------------------------------------------------------------------------------

    def _completed(
        self, actions: Any, new_obs: Any, dones: Any, infos: list[dict[str, Any]], last_one: str
    ) -> tuple[Any, Any, Masks | None]:
        """Of a step: the actions that were executed (``info["executed_action"]``), the observations they led to, of
        which environments show the first of the next episode instead, and the masks before and after."""
        executed = list(actions) if isinstance(actions, list) else actions.copy()
        is_dict = isinstance(new_obs, dict)
        next_obs = {key: part.copy() for key, part in new_obs.items()} if is_dict else new_obs.copy()
        for index, info in enumerate(infos):
            if "executed_action" in info:
                executed[index] = checks.check_action("executed", info["executed_action"], self.action_space)
            if dones[index] and info.get(last_one) is not None:
                _set_row(next_obs, index, info[last_one])
        before, after = self.masks, self._next_masks
        if before is None and after is None:
            return executed, next_obs, None
        everything = np.ones((self.n_envs, self.n_actions), bool)
        return executed, next_obs, (everything if before is None else before, everything if after is None else after)

    def store(
        self,
        observations: Any,
        actions: Any,
        new_obs: Any,
        rewards: FloatArray,
        dones: Any,
        infos: list[dict[str, Any]],
        last_one: str = "terminal_observation",
    ) -> int:
        """Keep one transition of each environment, of a step that was checked. Returns the number of the last one in
        the journal.

        :param last_one: where infos have the last observation of an episode
        """
        next_observations, masks = new_obs, None
        if not self.is_ordinary:
            actions, next_observations, masks = self._completed(actions, new_obs, dones, infos, last_one)
        journaled, is_plain = self.journaled, self.decisions.is_plain
        by_transition = not is_plain or self.frames is not None
        self.has_seen_masks |= masks is not None
        if self.journal is not None or by_transition:
            transitions = []
            for index, info in enumerate(infos):
                truncated = bool(info.get("TimeLimit.truncated", False))
                transitions.append(
                    Transition(
                        row_of(observations, index),
                        int(np.asarray(actions[index]).reshape(())) if is_plain else actions[index],
                        float(rewards[index]),
                        row_of(next_observations, index),
                        terminated=bool(dones[index]) and not truncated,
                        truncated=truncated,
                        discount=info.get("discount"),
                        mask=None if masks is None else masks[0][index],
                        next_mask=None if masks is None else masks[1][index],
                        environment=index,
                    )
                )
            if by_transition:
                return self._keep(transitions)
            assert self.journal is not None
            journaled = self.journal.append(*transitions)
        step = observations, next_observations, actions, rewards, dones, infos
        if self.defer is None:
            self.memory.add(*step, masks)
        else:
            self.defer(lambda: self.memory.add(*step, masks))
        return journaled

    def stepped(self, dones: Any, infos: list[dict[str, Any]], reset_infos: Any) -> None:
        """A step is stored that is not plain: go on to the masks of the states that environments are in now, and warn
        of an environment that gives masks at reset only, or at steps only."""
        self.masks = self._upcoming_masks
        resets, self._masked_resets = self._masked_resets, {}
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
                stacklevel=3,
            )
        if any(dones.tolist()):
            self._note_resets(np.flatnonzero(dones), reset_infos)

    def reset(self, infos: list[dict[str, Any]], step: int) -> None:
        """All environments were reset."""
        self.masks = self._masks(infos, step)
        self._masked_resets = {}
        self._note_resets(range(self.n_envs), infos)

    def _note_resets(self, environments: Iterable[int], infos: Any) -> None:
        self._masked_resets |= {int(index): "action_mask" in infos[index] for index in environments}

    # -- what is given from outside -----------------------------------------------------------------------------

    def given(self, what: str, observation: Any, step: int) -> Any:
        """An observation as the agent keeps it; pictures may have their channels last.

        :raises ValueError: when it cannot be learned from
        """
        observation = channels_first(observation, self.observation_space)
        checks.check_shape(what, observation, self.observation_space, step)
        self.check_observation(what, observation, 0, step)
        if not self._warned_of_far:
            self._warned_of_far = warn_if_far(observation, self.observation_space, f"{what} of step {step}")
        return observation

    def given_transition(self, transition: Transition, action_name: str, step: int) -> Transition:
        """A transition as the agent keeps it.

        :raises ValueError: when it could not be one of the agent's own
        """
        ends = {name: checks.check_truth(name, getattr(transition, name)) for name in ("terminated", "truncated")}
        observation = self.given("observation", transition.observation, step)
        next_observation = self.given("next observation", transition.next_observation, step)
        checks.check_reward(transition.reward, step)
        action = checks.check_action(action_name, transition.action, self.action_space)
        if transition.discount is not None:
            checks.check_number("discount", transition.discount, 0, 1, low_included=True)
        return replace(
            transition,
            observation=_copied(observation),
            action=action,
            reward=float(np.float32(transition.reward)),
            next_observation=_copied(next_observation),
            terminated=ends["terminated"],
            truncated=ends["truncated"] and not ends["terminated"],
        )

    def given_masks(self, transition: Transition, mask: Any, next_mask: Any) -> Transition:
        """The transition with masks before and after it, if any action was ever excluded.

        :param mask: None: what ``act`` was told last
        """
        before = self.acted_mask if mask is None else checks.check_masks(mask, 1, self.action_space)
        if before is not None and next_mask is None and not transition.terminated:
            raise ValueError("this agent acts with masks: give observe next_mask, the actions that are allowed now")
        after = None if next_mask is None else checks.check_masks(next_mask, 1, self.action_space)
        self.has_seen_masks |= before is not None or after is not None
        return replace(
            transition, mask=None if before is None else before[0], next_mask=None if after is None else after[0]
        )

    def store_transition(self, transition: Transition) -> int:
        """Keep one transition, of the only environment. Returns its number in the journal."""
        return self._keep([transition])

    def _keep(self, steps: list[Transition]) -> int:
        """Keep a step of each environment, as a transition for each decision: all in the journal, or none."""
        rows = list(zip(*map(self.decisions.transitions, steps), strict=True))
        in_order = [transition for row in rows for transition in row]
        journaled = self.journaled if self.journal is None else self.journal.append(*in_order)
        if self.frames is not None:
            self.frames.add(in_order)
        if self.defer is None:
            self._add_to_memory(in_order)
        else:
            self.defer(lambda: self._add_to_memory(in_order))
        return journaled

    # -- the journal --------------------------------------------------------------------------------------------

    def open_journal(
        self, given: str | os.PathLike[str] | Journal, steps: int, normalizer: VecNormalize | None, take_in: bool = True
    ) -> int:
        """Go on with a journal, and with what is in it. Returns how many of its steps the agent has yet to count.

        :param steps: how many transitions the agent has seen
        :param normalizer: sees what the agent has not seen yet
        :param take_in: what the agent has not seen yet; no: that is about to be repeated
        """
        if isinstance(given, Journal):
            journal = given
            journal.check_spaces(self.decisions.observation_space, self.decisions.action_space)
            journal.claim()
        else:
            journal = Journal(given, self.decisions.observation_space, self.decisions.action_space)
            try:
                journal.claim()
            except BaseException:
                journal.close()
                raise
        if self.journal_id not in ("", journal.id):
            if journal.last:
                journal.close()
                raise ValueError(
                    f"{journal.path} is not the journal that this agent has written: give it that one, or a new file"
                )
            self.journaled = 0  # a new one
        elif journal.last < self.journaled:
            warnings.warn(
                f"{journal.path} has {journal.last} transitions, and the agent has seen {self.journaled}: the last "
                "ones were lost, in a power failure perhaps (a Journal with durable=True does not lose any)",
                RuntimeWarning,
                stacklevel=5,
            )
            self.journaled = journal.last
        self.journal_id, self.journal = journal.id, journal
        new = 0
        if take_in:
            # Statistics that a new agent finds are the user's, who knows what they are of.
            if normalizer is not None and (steps > 0 or is_fresh(normalizer)):
                for step in self._whole_steps(journal, self.journaled):
                    if self.decisions.ends_step(step):
                        update_normalizer(normalizer, self.decisions.as_observed(step))
            after = self.journaled
            if len(self.memory) == 0:
                after = max(0, journal.last - self.memory.buffer_size * self.n_envs)
            self._add_to_memory(self._whole_steps(journal, after))
            if self.frames is not None:
                self.frames.add(journal.steps(after=after))
            new = (journal.last - self.journaled) // self.decisions.n
        self.journaled = journal.last
        return new

    def catch_up(self) -> tuple[int, int]:
        """Remember what is in the journal and nowhere else, because the program was interrupted. Returns how many
        steps these are, and the number of the last one in the journal."""
        assert self.journal is not None
        last = self.journal.last
        if last == self.journaled:
            return 0, last
        steps = list(self._whole_steps(self.journal, self.journaled))
        if self.frames is not None:
            self.frames.add(steps)
        if self.defer is None:
            self._add_to_memory(steps)
        else:
            self.defer(lambda: self._add_to_memory(steps))
        return len(steps) // self.decisions.n, last

    def _whole_steps(self, journal: Journal, after: int) -> Iterator[Transition]:
        return self.decisions.complete(journal.steps(after=after), journal.path)

    def _add_to_memory(self, steps: Iterable[Transition]) -> None:
        """Take transitions into the replay memory, which has a row for all environments at a time."""
        row: list[Transition] = []
        for step in steps:
            row.append(step)
            if len(row) == self.n_envs:
                self.memory.add_steps(row)
                row = []
        if row:  # a crash came between environments; one transition counts twice
            self.memory.add_steps([row[index % len(row)] for index in range(self.n_envs)])


class EpisodeRecord:
    """Returns of the first and of the last episodes, and how long the current ones have been going on.

    :param n_envs: environments that are stepped together
    """

    #: what a saved agent holds of it
    saved: ClassVar[dict[str, type]] = {
        "sums": list,
        "steps": list,
        "count": int,
        "first": list,
        "recent": list,
        "low": float,
        "high": float,
    }

    def __init__(self, n_envs: int) -> None:
        #: of the episodes that are going on
        self.sums, self.steps = [0.0] * n_envs, [0] * n_envs
        #: return of the episode that ended last in each environment
        self.last = [0.0] * n_envs
        #: and its steps
        self.lengths = [0] * n_envs
        #: of the episodes that have ended
        self.count = 0
        self.first: list[float] = []
        self.recent: list[float] = []
        self.low, self.high = math.inf, -math.inf

    def add(self, rewards: Any, dones: Any, infos: list[dict[str, Any]]) -> None:
        """One step of each environment."""
        for index, info in enumerate(infos):
            self.sums[index] += float(rewards[index])
            self.steps[index] += info.get("discount") != 1.0  # the inner decisions of a continuous action take no time
            if dones[index]:
                self.last[index], self.lengths[index] = self.sums[index], self.steps[index]
                self._end(self.sums[index])
                self.begin(index)

    def _end(self, episode_return: float) -> None:
        self.count += 1
        self.low, self.high = min(self.low, episode_return), max(self.high, episode_return)
        if len(self.first) < N_FIRST:
            self.first.append(episode_return)
        else:
            self.recent = [*self.recent[1 - N_RECENT :], episode_return]

    def begin(self, environment: int) -> None:
        """The episode that was going on there is given up."""
        self.sums[environment], self.steps[environment] = 0.0, 0

    @property
    def steps_without_end(self) -> int:
        """How long the longest of the current episodes is."""
        return max(self.steps)

    @property
    def returns(self) -> Returns:
        """What is known of the episodes that have ended."""
        return Returns(self.first, self.recent, self.high)

    @property
    def differ(self) -> bool:
        """Whether episodes were worth something different."""
        return self.low < self.high


def row_of(values: Any, index: int) -> Any:
    """One of several observations."""
    return {key: part[index] for key, part in values.items()} if isinstance(values, dict) else values[index]


def _copied(observation: Any) -> Any:
    """The caller may go on with its own."""
    if isinstance(observation, dict):
        return {key: _copied(part) for key, part in observation.items()}
    return np.array(observation)


def _set_row(values: Any, index: int, row: Any) -> None:
    if isinstance(values, dict):
        for key, part in values.items():
            part[index] = row[key]
    else:
        values[index] = row
