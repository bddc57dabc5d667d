"""Several robots, one agent: they share its memory, its policy and its journal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bdpi.agents.actions import Draws, mask_probabilities
from bdpi.agents.advice import Weights, intersected
from bdpi.agents.buffers import stacked
from bdpi.agents.checks import check_masks
from bdpi.agents.collector import EpisodeRecord
from bdpi.agents.journal import Transition
from bdpi.learner.interface import BoolArray, FloatArray

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble


class Robot:
    """One of several systems that an agent acts in, each in its own episode and at its own pace.

    What is observed is journaled with the robot's number. The agent's own ``act`` and ``observe`` are for a single one.

    :param agent: with an actor, BDPI or ActorMimic; made for one environment
    :param number: of the robot, from 0 on
    """

    def __init__(self, agent: Ensemble, number: int) -> None:
        if not agent.agent_learner.has_actor:
            raise ValueError(f"{type(agent).__name__} has no actor, and several robots share one: use BDPI")
        if agent.n_envs != 1:
            raise ValueError(f"robots share an agent of one environment, and this one has {agent.n_envs}")
        self._agent, self.number = agent, number
        self._draws = Draws(1, agent.policy.n_actions, agent.persistence)
        #: of this robot
        self.episodes = EpisodeRecord(1)
        self.begin_episode()

    def begin_episode(self) -> None:
        """A new episode; one that was going on is given up."""
        self.episodes.begin(0)
        self._draws.begin_episodes([0], self._agent._generator)

    def check(self, what: str, observation: Any) -> Any:
        """An observation as the agent keeps it.

        :raises ValueError: when it cannot be learned from
        """
        return self._agent.collector.given(what, observation, self._agent.num_timesteps)

    def seen(self, observation: Any) -> Any:
        """An observation that was checked, as networks see it, in a batch: with those before it, where they do."""
        return self._agent.seen(stacked([observation]), [self.number])

    def probabilities(self, observation: Any, mask: BoolArray | None) -> FloatArray:
        """Of each action in an observation that was checked, 0 for those that are not allowed."""
        agent, batch = self._agent, self.seen(observation)
        with agent._background.acting:
            probabilities = agent.agent_learner.probabilities(batch)
        return mask_probabilities(probabilities, None if mask is None else mask[None])[0]

    def advised(self, probabilities: FloatArray, advice: Weights | None) -> FloatArray:
        """What to draw from.

        :param probabilities: of the actor, and of the actions that are allowed
        :param advice: what the agent's ``advice`` gave, in a row; None: there is none
        """
        return probabilities if advice is None else intersected(probabilities[None], advice)[0]

    def pick(self, probabilities: FloatArray) -> int:
        """An action to learn from, counted from 0."""
        agent = self._agent
        agent._background.check()
        return int(self._draws.pick(probabilities[None], agent._generator)[0])

    def check_step(self, step: Transition) -> Transition:
        """A transition as the agent keeps it, of this robot.

        :raises ValueError: when it cannot be learned from
        """
        agent = self._agent
        checked = agent.collector.given_transition(step, "executed_action", agent.num_timesteps + 1)
        masks = (None if mask is None else self.check_mask(mask) for mask in (step.mask, step.next_mask))
        before, after = masks
        return replace(checked, mask=before, next_mask=after, environment=self.number)

    def check_mask(self, mask: Any) -> BoolArray:
        """:raises ValueError: for what is no mask, or allows nothing"""
        allowed: BoolArray = check_masks(mask, 1, self._agent.action_space)[0]
        return allowed

    def observe(self, step: Transition) -> int:
        """Remember what happened; returns its number in the journal.

        :param step: as :meth:`check_step` gave it
        """
        agent, done = self._agent, step.terminated or step.truncated
        number = agent.remember(step)
        self.episodes.add([step.reward], [done], [{"discount": step.discount}])
        if done:
            value = self.episodes.last[0]
            agent.episodes.add([value], [True], [{}])  # for the agent's health
            self._draws.end_episodes([0], [value])
            self._draws.begin_episodes([0], agent._generator)
            agent.step_log.add(agent, self.episodes)
        return number
