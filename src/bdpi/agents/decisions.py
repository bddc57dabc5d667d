"""Actions that are not one number: an agent decides on one part after the other, each time between a few choices.

Networks have an output for each choice of each decision. They see the environment's observation, and what is decided
so far. A step of the environment is remembered as one transition for each decision. All but the last take no time:
their reward is 0 and their discount 1, so that returns, and what is best, are those of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize

from bdpi.agents.frames import normalized
from bdpi.agents.journal import JournalError, Transition
from bdpi.envs.factors import DEFAULT_BITS, factors_of
from bdpi.envs.wrappers.decisions import flat_space, flattened
from bdpi.learner.interface import BoolArray, IntArray

#: What is decided so far, among the parts of a Dict observation.
KEY = "decided"
_TITLE = "an agent that decides on one part of an action after the other"
#: Chooses an output of the networks for each observation, given which ones are allowed.
Choose = Callable[[Any, BoolArray | None], IntArray]


@dataclass(frozen=True)
class Sums:
    """Decisions as sums over the choices that are made, for programs that know nothing of spaces.

    :param bounds: where the outputs of networks for each decision begin and end
    :param seen: what networks see of no choice at each decision, (decisions, numbers)
    :param seen_by: what each output adds to that, once it is chosen, (outputs, numbers)
    :param action: the flat action of no choice
    :param action_by: what each output adds to it, (outputs, numbers)
    """

    bounds: IntArray
    seen: NDArray[np.float64]
    seen_by: NDArray[np.float64]
    action: NDArray[np.float64]
    action_by: NDArray[np.float64]


class Decisions:
    """Between an environment's actions and what an agent decides. Discrete actions are one decision, as they are.

    :param observation_space: of the environment
    :param action_space: of the environment
    :param bits: decisions for each number of a Box
    :raises ValueError: for spaces that this is not possible with
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], bits: int = DEFAULT_BITS
    ) -> None:
        self._factors = factors_of(action_space, bits)
        #: of the environment
        self.own_space, self.own_actions = observation_space, action_space
        #: for each number of a Box
        self.bits = bits
        #: actions are one number, and nothing is to be done
        self.is_plain = isinstance(action_space, spaces.Discrete)
        #: of Discrete actions, the number of the first one
        self.first_action = int(action_space.start) if isinstance(action_space, spaces.Discrete) else 0
        #: per step of the environment
        self.n = len(self._factors.sizes)
        #: where the outputs for each decision begin and end
        self._bounds = np.cumsum([0, *self._factors.sizes])
        #: where the choices of each decision are in the masks of the environment
        self._masked_before = np.cumsum([0, *np.multiply(self._factors.sizes, self._factors.maskable)])
        #: numbers that say what is decided so far; the last choice is made when the step is
        self._n_seen = len(self._factors.low) - (self._factors.sizes[-1] if self._factors.maskable[-1] else 0)
        #: outputs of networks
        self.n_outputs = int(self._bounds[-1])
        #: the most choices that a decision has
        self.most_choices = max(self._factors.sizes)
        #: of what is remembered, and of what networks see
        self.observation_space, self.action_space = observation_space, action_space
        if not self.is_plain:
            self.observation_space, self.action_space = self._extended(), spaces.Discrete(self.n_outputs)

    def _extended(self) -> spaces.Space[Any]:
        low, high = (bound[: self._n_seen].astype(np.float32) for bound in (self._factors.low, self._factors.high))
        if isinstance(self.own_space, spaces.Dict):
            if KEY in self.own_space.spaces:
                raise ValueError(f"the key {KEY!r} of the observations is taken by what is decided so far: rename it")
            return spaces.Dict({**self.own_space.spaces, **({KEY: spaces.Box(low, high)} if self._n_seen else {})})
        flat = flat_space(self.own_space, _TITLE)
        return spaces.Box(np.concatenate([flat.low, low]), np.concatenate([flat.high, high]))

    # -- deciding -----------------------------------------------------------------------------------------------

    def make(self, observations: Any, masks: BoolArray | None, choose: Choose) -> list[Any] | NDArray[Any]:
        """One action for each observation of the environment, decided by ``choose``.

        :param masks: which choices the environment allows, (n, sum of all that can be masked); None: all
        """
        if self.is_plain:
            return self.first_action + choose(observations, masks)
        rows, n = self._flat(observations), _count(observations)
        made = np.zeros((n, 0), np.int64)
        for number in range(self.n):
            chosen = choose(self._seen(rows, made), self.allowed(masks, number, n))
            made = np.concatenate([made, (chosen - self._bounds[number])[:, None]], axis=1)
        actions = [self._factors.value(each) for each in made]
        return actions if isinstance(self.own_actions, spaces.Tuple | spaces.Dict) else np.stack(actions)

    def allowed(self, masks: BoolArray | None, number: int, n: int) -> BoolArray:
        """Which outputs may be chosen at a decision, (n, n_outputs).

        :param masks: of the environment; None: it allows everything
        """
        first, end = self._bounds[number], self._bounds[number + 1]
        result = np.zeros((n, self.n_outputs), bool)
        result[:, first:end] = True
        if masks is not None and self._factors.maskable[number]:
            before = self._masked_before[number]
            result[:, first:end] = masks[:, before : before + end - first]
        return result

    def choices(self, outputs: IntArray) -> IntArray:
        """Outputs of networks, counted from the first one of their decision."""
        return outputs - self._bounds[np.searchsorted(self._bounds, outputs, side="right") - 1]

    def _flat(self, observations: Any) -> Any:
        """Observations of the environment without what is decided; computed once for all decisions of a step."""
        if isinstance(self.own_space, spaces.Dict):
            return observations
        return np.stack([flattened(self.own_space, each, _TITLE) for each in observations])

    def _seen(self, rows: Any, made: IntArray) -> Any:
        decided = self._factors.seen(made)[:, : self._n_seen].astype(np.float32)
        return self._joined(rows, decided)

    def _joined(self, rows: Any, decided: NDArray[np.float32]) -> Any:
        if isinstance(rows, dict):
            return {**rows, KEY: decided} if self._n_seen else rows
        return np.concatenate([rows, decided], axis=1)

    def sums(self) -> Sums:
        """How actions come of choices; what is seen of a decision is a sum, too."""
        none = np.zeros((1, self.n), np.int64)
        before = [self._factors.seen(none[:, :number])[0] for number in range(self.n + 1)]
        added = []
        for number, size in enumerate(self._factors.sizes):
            for choice in range(size):
                made = none[:, : number + 1].copy()
                made[0, number] = choice
                added.append(self._factors.seen(made)[0] - before[number + 1])
        seen, seen_by = (np.array(rows)[:, : self._n_seen] for rows in (before[:-1], added))
        return Sums(self._bounds, seen, seen_by, *self._factors.numbers())

    # -- remembering --------------------------------------------------------------------------------------------

    def transitions(self, step: Transition) -> list[Transition]:
        """A step of the environment as transitions, one for each decision."""
        if self.is_plain:
            return [step]
        made = self._factors.decisions(step.action)
        before, after = (self._flat(_one(seen)) for seen in (step.observation, step.next_observation))
        seen = [_first(self._seen(before, made[None, :number])) for number in range(self.n)]
        last = _first(self._seen(after, made[None, :0]))
        masks = [self._mask(step.mask, number) for number in range(self.n)]
        inner = replace(step, reward=0.0, terminated=False, truncated=False, discount=1.0)
        return [
            replace(
                inner if number < self.n - 1 else step,
                observation=seen[number],
                action=int(self._bounds[number] + made[number]),
                next_observation=[*seen, last][number + 1],
                mask=masks[number],
                next_mask=[*masks, self._mask(step.next_mask, 0)][number + 1],
            )
            for number in range(self.n)
        ]

    def _mask(self, mask: Any, number: int) -> BoolArray:
        allowed: BoolArray = self.allowed(None if mask is None else np.asarray(mask)[None], number, 1)[0]
        return allowed

    def complete(self, steps: Iterable[Transition], path: Path) -> Iterator[Transition]:
        """What a journal holds, as long as it holds whole steps.

        :param path: of the journal
        :raises JournalError: at a transition that does not belong where it is
        """
        due: dict[int, int] = {}
        for step in steps:
            number = int(np.searchsorted(self._bounds, step.action - self.first_action, side="right")) - 1
            takes_time = step.reward != 0 or step.terminated or step.truncated or step.discount != 1
            if number != due.get(step.environment, number) or (number < self.n - 1 and takes_time):
                raise JournalError(f"{path} is damaged: one of its steps has other decisions than an agent makes")
            due[step.environment] = (number + 1) % self.n
            yield step
        if any(due.values()):
            raise JournalError(f"{path} is damaged: its last step has not got all of its decisions")

    def ends_step(self, step: Transition) -> bool:
        """Whether a transition that is remembered is of the last decision on an action."""
        return self.is_plain or step.action >= self._bounds[-2]

    def end_of_steps(self, actions: IntArray) -> IntArray:
        """Which of these transitions that are remembered are of the last decision on an action."""
        return np.flatnonzero(actions >= self._bounds[-2])

    def undecided(self, seen: Any) -> Any:
        """Observations that are remembered, (n, ...), without what is decided so far; those of a Box stay flat."""
        if self.is_plain:
            return seen
        if isinstance(seen, dict):
            return {key: part for key, part in seen.items() if key != KEY}
        return seen[:, : seen.shape[1] - self._n_seen]

    def own(self, seen: Any) -> Any:
        """Observations that are remembered, (n, ...), as the environment gave them: a Box, or a Dict."""
        rows = self.undecided(seen)
        if self.is_plain or isinstance(rows, dict):
            return rows
        return rows.reshape(len(rows), *(self.own_space.shape or ()))

    def as_observed(self, last: Transition) -> Transition:
        """The transition of a last decision with what the environment showed after it."""
        return replace(last, next_observation=_first(self.own(_one(last.next_observation))))

    def normalized(self, seen: Any, normalizer: VecNormalize) -> Any:
        """Observations that are remembered as networks see them behind ``VecNormalize``."""
        if self.is_plain or not normalizer.norm_obs:
            return normalized(seen, normalizer)
        own = normalizer.normalize_obs(self.own(seen))
        if isinstance(own, dict):
            return self._joined(own, seen.get(KEY))
        return self._joined(own.reshape(len(own), -1), seen[:, seen.shape[1] - self._n_seen :])


def only(actions: list[Any] | NDArray[Any]) -> Any:
    """The action, of the only one of several observations."""
    return actions.squeeze(axis=0) if isinstance(actions, np.ndarray) else actions[0]


def _count(observations: Any) -> int:
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)


def _one(observation: Any) -> Any:
    """As the only one of several."""
    if isinstance(observation, dict):
        return {key: np.asarray(part)[None] for key, part in observation.items()}
    return np.asarray(observation)[None]


def _first(observations: Any) -> Any:
    return {key: part[0] for key, part in observations.items()} if isinstance(observations, dict) else observations[0]
