"""When the scales of an agent are estimated, and from what: see :mod:`bdpi.learner.scales` for what they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bdpi.agents.agent_learner import AgentLearner
from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
from bdpi.learner.scales import CLOSER, FAR, RARER, Scales, range_of, scale_returns, scale_to_range


@dataclass
class ScaleEstimator:
    """Fits scales to the replay memory: when there is twice as much experience as the last time, and when the newest
    transition is far from all that the scales were made for.

    :param due: how much experience there is when scales are estimated again; 0: they never were
    :param rare: scales are for rewards that are rare, which is decided whenever there is twice as much experience
    """

    due: int = 0
    rare: bool = False

    #: what a saved agent holds of it
    saved: ClassVar[dict[str, type]] = {"due": int, "rare": bool}

    def estimate(
        self,
        before: Scales,
        learner: AgentLearner,
        memory: TransitionBuffer | DictTransitionBuffer,
        experience: int,
        input_size: float | None,
        size: float | None,
        rare: float,
    ) -> Scales:
        """The scales from now on; ``before`` itself where nothing has to change.

        :param before: the scales so far
        :param learner: knows which observations are scaled
        :param memory: what was experienced
        :param experience: how many transitions were seen
        :param input_size: that observations are to have where rewards are not rare; None: they are not scaled
        :param size: that returns are to have, likewise; None: they are not scaled
        :param rare: share of transitions with a reward, below which rewards are rare
        """
        scales, is_first, is_due = before, self.due == 0, experience >= self.due
        was_rare = self.rare
        if is_due and (input_size is not None or size is not None):
            rewards = memory.rewards_held()
            self.rare = bool(np.count_nonzero(rewards) < rare * rewards.size)
        if input_size is not None:
            if was_rare != self.rare and not is_first:
                scales = replace(scales, factor=scales.factor * np.float32(CLOSER if was_rare else 1 / CLOSER))
            input_size = input_size / CLOSER if self.rare else input_size
            newest = learner.flat(memory.newest_observations())
            if newest is not None and (is_due or scales.is_far(newest, input_size)):
                parts = map(learner.flat, memory.next_observations_in_pieces())
                ranges = [range_of(part) for part in parts if part is not None]
                seen = range_of(np.concatenate(ranges), learner.bounds() if self.rare else None)
                scales = scale_to_range(scales, seen, is_first, input_size)
        elif not np.all(scales.factor == 1):  # the environment was exchanged for one with VecNormalize
            unscaled = Scales.none(len(scales.shift))
            scales = replace(scales, shift=unscaled.shift, factor=unscaled.factor)
        if size is not None:
            largest = float(np.abs(memory.newest_rewards()).max(initial=0.0)) * scales.return_factor
            finds_reward = not scales.knows_returns and bool(np.any(memory.rewards))
            if is_due or finds_reward or (scales.knows_returns and largest > FAR * size):
                scales = scale_returns(scales, memory.returns_to_go(), size / RARER if self.rare else size)
        if is_due:
            self.due = 2 * experience
        return scales
