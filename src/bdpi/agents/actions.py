"""Which action is taken. ``learn`` and ``act`` draw theirs in one place: :meth:`Actions.pick`.

An agent with an actor draws from it. One without follows a critic, greedily, which it draws when an episode begins.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bdpi.agents.advice import Weights, intersected
from bdpi.agents.checks import check_masks
from bdpi.agents.decisions import only
from bdpi.agents.spaces import shift_to_zero, to_arrays
from bdpi.learner.interface import BoolArray, FloatArray, IntArray
from bdpi.learner.tabular import allowed

if TYPE_CHECKING:
    from bdpi.agents.agent_learner import AgentLearner
    from bdpi.agents.policies import BDPIPolicy

#: Episodes of either kind that are compared, and the fewest of them.
_COMPARED, _FEWEST = 10, 3
#: How often random numbers are kept in an episode, and how often where that was worth less.
_USUALLY, _SELDOM = 0.5, 0.05
_SHORTEST = 1e-30  # time; a number can be divided by it


def draw(probabilities: FloatArray, generator: np.random.Generator) -> IntArray:
    """One action per row, by inverting the cumulative distribution."""
    cumulative: FloatArray = np.add.accumulate(probabilities, axis=1)
    if len(probabilities) == 1:  # the same, more quickly
        (row,) = cumulative.tolist()
        return np.array([min(bisect.bisect_right(row, generator.random() * row[-1]), len(row) - 1)])
    thresholds = generator.random(len(probabilities)) * cumulative[:, -1]
    below: IntArray = np.add.reduce(cumulative <= thresholds[:, None], axis=1)
    return np.minimum(below, probabilities.shape[1] - 1)


class Draws:
    """Draws training actions, by random numbers that are kept for a while in some episodes.

    The action is the first to arrive in a race of exponential times, whose rates are the probabilities. Kept times
    make an uncertain actor do the same thing for long, so that it comes far; at each step its actions have the
    probabilities all the same, and where the actor is certain nothing changes. Half of the episodes keep them, and
    one in twenty as long as the latest such episodes had lower returns than the others.

    :param n_envs: environments that are stepped together
    :param n_actions: to draw from
    :param persistence: for so many steps, on average and at most, times are kept. Each episode that keeps them has its
        own mean, between 1 and this, drawn evenly on a logarithmic scale. 1: every step has new times
    """

    #: what a saved agent holds of it
    saved: ClassVar[dict[str, type]] = {
        "times": np.ndarray,
        "means": np.ndarray,
        "keeps": list,
        "returns_kept": list,
        "returns_other": list,
    }

    def __init__(self, n_envs: int, n_actions: int, persistence: float) -> None:
        self.persistence = persistence
        self.times = np.ones((n_envs, n_actions))
        #: for how long they are kept, on average, in the episode of each environment
        self.means = np.ones(n_envs)
        self.keeps = [False] * n_envs
        #: of the latest episodes that kept them, and of the latest others
        self.returns_kept: list[float] = []
        self.returns_other: list[float] = []

    def pick(self, probabilities: FloatArray, generator: np.random.Generator) -> IntArray:
        """One action per environment."""
        if self.persistence == 1:
            return draw(probabilities, generator)
        anew = generator.random(len(probabilities)) * self.means < 1
        if anew.any():
            drawn = generator.standard_exponential((np.count_nonzero(anew), probabilities.shape[1]))
            self.times[anew] = np.maximum(drawn, _SHORTEST)
        result: IntArray = (probabilities / self.times).argmax(axis=1)
        return result

    def end_episodes(self, environments: Sequence[int], returns: Sequence[float]) -> None:
        """Remember what the episodes that ended there were worth."""
        for environment, value in zip(environments, returns, strict=True):
            kind = self.returns_kept if self.keeps[environment] else self.returns_other
            kind[:] = [*kind[1 - _COMPARED :], value]

    def begin_episodes(self, environments: Sequence[int], generator: np.random.Generator) -> None:
        """Choose for how long times are kept in the next episodes there."""
        if self.persistence == 1:
            return
        for environment in environments:
            self.keeps[environment] = bool(generator.random() < self._share())
            mean = self.persistence ** generator.random() if self.keeps[environment] else 1.0
            self.means[environment] = mean
            self.times[environment] = np.maximum(generator.standard_exponential(self.times.shape[1]), _SHORTEST)

    def _share(self) -> float:
        """How often the next episode keeps times."""
        kept, other = self.returns_kept, self.returns_other
        if min(len(kept), len(other)) < _FEWEST:
            return _USUALLY if len(kept) == len(other) else float(len(kept) < len(other))
        return _SELDOM if sum(kept) / len(kept) < sum(other) / len(other) else _USUALLY


def mask_probabilities(probabilities: FloatArray, masks: BoolArray | None) -> FloatArray:
    """Without the actions that are not allowed; uniform over the allowed ones if the policy would take none of them."""
    if masks is None:
        return probabilities
    kept = np.where(masks, probabilities, 0)
    total = kept.sum(axis=1, keepdims=True)
    return np.where(total > 0, kept / np.maximum(total, 1e-30), masks / np.maximum(masks.sum(axis=1, keepdims=True), 1))


class Actions:
    """Chooses actions.

    :param policy: whose actor acts, if it has one
    :param n_envs: environments that are stepped together
    :param n_critics: from which one is drawn to be followed
    :param draws: draws from the actor
    """

    #: what a saved agent holds of it
    saved: ClassVar[dict[str, type]] = {"followed": np.ndarray}

    def __init__(self, policy: BDPIPolicy, n_envs: int, n_critics: int, draws: Draws) -> None:
        self._policy, self._n_envs, self._n_critics, self._draws = policy, n_envs, n_critics, draws
        #: added to a choice, it is the action; None: an action has several choices
        self._first_action = policy.decisions.first_action if policy.decisions.is_plain else None
        #: which critic each environment follows, where there is no actor
        self.followed: IntArray | None = None
        #: probabilities that the last training decisions were drawn by; None for agents without an actor
        self.drawn_by: FloatArray | None = None

    def pick(
        self,
        learner: AgentLearner,
        observations: Any,
        masks: BoolArray | None,
        generator: np.random.Generator,
        advised: Weights | None = None,
    ) -> IntArray:
        """One training decision per environment, which is an action where actions are Discrete.

        :param learner: whose actor or critics are asked
        :param masks: which choices are allowed; None: all
        :param generator: the agent's, whose state is saved
        :param advised: what probabilities are multiplied by; None: nothing
        """
        if learner.has_actor:
            probabilities = learner.probabilities(observations)
            self.drawn_by = probabilities if masks is None else mask_probabilities(probabilities, masks)
            if advised is not None:
                self.drawn_by = intersected(self.drawn_by, advised)
            return self._draws.pick(self.drawn_by, generator)
        assert self.followed is not None
        return self._preferred(learner, observations, self.followed, masks)

    def take(
        self,
        learner: AgentLearner,
        observations: Any,
        masks: BoolArray | None,
        generator: np.random.Generator,
        advised: Weights | None = None,
    ) -> Any:
        """One training action per environment, of its own space; the parameters are those of :meth:`pick`."""
        if self._first_action is not None:
            return self._first_action + self.pick(learner, observations, masks, generator, advised)
        return self._policy.decisions.make(
            observations, masks, lambda seen, allowed: self.pick(learner, seen, allowed, generator, advised)
        )

    def begin_episodes(self, environments: IntArray, generator: np.random.Generator) -> None:
        """Draw the critic that each of these environments follows in its new episode; for agents without an actor."""
        if self.followed is None or len(self.followed) != self._n_envs:
            self.followed = np.zeros(self._n_envs, dtype=np.int64)
        self.followed[environments] = generator.integers(0, self._n_critics, len(environments))

    def _preferred(
        self, learner: AgentLearner, observations: Any, followed: IntArray, masks: BoolArray | None
    ) -> IntArray:
        q = learner.q_values(shift_to_zero(observations, self._policy.decisions.observation_space))
        return allowed(q[followed, np.arange(len(followed))], masks).argmax(axis=1)

    def predict(
        self,
        learner: AgentLearner,
        observation: Any,
        state: tuple[Any, ...] | None,
        starts: Any,
        deterministic: bool,
        masks: Any,
    ) -> tuple[Any, tuple[Any, ...] | None]:
        """See :meth:`bdpi.agents.ensemble.Ensemble.predict`. Draws from the policy's own generator."""
        policy = self._policy
        follows = not deterministic and not learner.has_actor
        if masks is not None or follows:
            tensors, is_batch = policy.obs_to_tensor(observation)
            n = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
            masks = None if masks is None else check_masks(masks, n, policy.action_space)
        if not follows:
            policy.action_masks = masks
            try:
                return policy.predict(observation, state, starts, deterministic)
            finally:
                policy.action_masks = None
        followed = np.full(n, -1) if state is None else np.array(state[0])
        if followed.shape != (n,):
            raise ValueError(
                f"state says which critic each observation follows, and has {followed.size} for {n} of them: give the "
                "state that predict returned for as many observations, or None"
            )
        new = followed < 0 if starts is None else (followed < 0) | np.asarray(starts, bool)
        followed[new] = policy.generator.integers(0, self._n_critics, int(new.sum()))
        actions = policy.decisions.make(
            to_arrays(tensors), masks, lambda seen, allowed: self._preferred(learner, seen, followed, allowed)
        )
        return (actions if is_batch else only(actions)), (followed,)


def generators(seed: int | None) -> tuple[np.random.Generator, np.random.Generator]:
    """For training and for predictions. An environment with the same seed draws from ``default_rng(seed)``: an agent
    that did so too would choose its actions by the very numbers that decide what becomes of them."""
    if seed is None:
        return np.random.default_rng(), np.random.default_rng()
    return np.random.default_rng([seed, 4]), np.random.default_rng([seed, 1])
