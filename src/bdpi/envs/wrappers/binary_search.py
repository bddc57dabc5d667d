"""Binary Action Search: continuous actions for agents that choose between two."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from bdpi.envs.factors import MAX_DECISIONS, BoxBits, IntArray, check_whole
from bdpi.envs.wrappers.decisions import DecisionWrapper, finite_box


class BinaryActionSearch(DecisionWrapper[IntArray]):
    """A continuous action as a sequence of binary decisions (Pazis and Lagoudakis, 2009).

    ## Description
    Each dimension of the action starts in its middle. A decision moves it up or down by a step, and the step is halved
    each time: after ``bits`` decisions, the action is one of ``2 ** bits`` evenly spaced values, both bounds included.
    Several dimensions are decided one after the other, the first one (of the flattened action) completely before the
    second one begins, so that later dimensions can depend on earlier ones. Only the last decision steps the
    environment.

    With half the width of a dimension as the unit, the steps are 1/2, 1/4, 1/8, …, all of them made longer by
    ``2 ** bits / (2 ** bits - 1)``, which is what makes their sum reach the bound.

    ## Action Space
    ``Discrete(2)``: 0 is down, 1 is up.

    ## Observation Space
    ``Box``, float32: the environment's observation, flattened, then for each dimension of the action

    - where it stands: -1 is the lower bound, 0 the middle, 1 the upper bound;
    - how far it may still move, from 1 (no decision made yet) in equal strides down to -1 (decided). That is the
      logarithm of the step size; the size itself would be close to 0 for all but the first few decisions.

    ## Rewards, discounts, episode end
    Decisions that do not step the environment take no time: their reward is 0 and they say so with
    ``info["discount"] = 1.0``, which the agents of this package use in place of gamma. The last decision returns what
    the environment returned. Time limits of the environment count real steps.

    ## Episode statistics
    They count real steps and real rewards, because Stable-Baselines3's ``Monitor`` is inside:
    ``BinaryActionSearch(Monitor(env))``. Where there is none, one is put there. (Around this wrapper, it would
    count decisions as steps.) Gymnasium's ``RecordEpisodeStatistics`` has to be inside as well: around this wrapper, it
    fails with an ``AssertionError``, because the statistics are there already.

    ## Arguments
    - ``env``: with a finite ``Box`` action space of any shape, and observations that can be flattened.
    - ``bits=6``: decisions per dimension, 24 at most. More are more precise, and make rewards rarer: only one decision
      in ``bits`` times the number of dimensions is rewarded, and the agent learns after each of them.

    ```python
    >>> env = BinaryActionSearch(gym.make("Pendulum-v1"), bits=6)
    >>> env.action_space, env.observation_space.shape
    (Discrete(2), (5,))

    ```
    """

    title = "Binary Action Search"
    needs_bounds = "starts in the middle between"
    legend = "0 (down) or 1 (up)"

    def __init__(self, env: gym.Env[Any, Any], bits: int = 6) -> None:
        box = finite_box(env, self.title, self.needs_bounds)
        self.bits = check_whole("bits", bits, 1, MAX_DECISIONS, "6 gives 64 values")
        RecordConstructorArgs.__init__(self, bits=self.bits)
        self._search = BoxBits(box, self.bits)
        #: per real step
        self.n_decisions = len(self._search.sizes)
        super().__init__(env, 2, self._search.low.astype(np.float32), self._search.high.astype(np.float32))

    def _begin(self, last: IntArray | None) -> IntArray:
        return np.zeros((1, 0), np.int64)

    def _decide(self, progress: IntArray, decision: int) -> tuple[IntArray, bool]:
        made = np.append(progress, [[decision]], axis=1)
        return made, made.shape[1] == self.n_decisions

    def _action(self, progress: IntArray) -> NDArray[Any]:
        return self._search.value(progress[0])

    def _append(self, progress: IntArray) -> NDArray[np.float64]:
        return self._search.seen(progress)[0]
