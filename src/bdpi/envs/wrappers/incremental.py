"""Incremental actions: a continuous action that is moved up and down, and stays where it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from bdpi.envs.factors import MAX_DECISIONS, box_action, check_whole
from bdpi.envs.wrappers.decisions import DecisionWrapper, finite_box

INCREMENT = 0
DECREMENT = 1
COMMIT = 2


@dataclass(frozen=True)
class ActionInProgress:
    """How far the action is built.

    :param position: -1 is the lower bound, 0 the middle, 1 the upper bound
    :param n_made: moves
    """

    position: NDArray[np.float64]
    n_made: NDArray[np.int64]


class IncrementalAction(DecisionWrapper[ActionInProgress]):
    """A continuous action as a sequence of increments and decrements, as in the code of the BDPI paper.

    ## Description
    An episode starts with the action in the middle of its range. A decision moves it up or down, or commits to it. The
    first move of a real step is as long as half the range (the bound, where the range is symmetric), the next ones
    1/2, 1/4 and 1/8 of that. Moves stop at the bounds. The environment is stepped by a commit, and by the last of
    ``moves`` moves. The next real step starts with the same action: an agent that commits at once repeats it.

    ``BinaryActionSearch`` starts from the middle every time, and always takes the same number of decisions.

    ## Action Space
    ``Discrete(3)``: 0 is increment, 1 is decrement, 2 is commit.

    ## Observation Space
    ``Box``, float32: the environment's observation, flattened, then

    - where the action stands: -1 is the lower bound, 0 the middle, 1 the upper bound;
    - the moves made since the last real step, as a share of ``moves``.

    ## Rewards, discounts, episode end
    As in ``BinaryActionSearch``: decisions that do not step the environment take no time, their reward is 0 and
    ``info["discount"]`` is 1. With ``discount_decisions=True``, they say nothing, and agents apply gamma to each
    decision, as the code of the paper does. Time limits of the environment count real steps.

    ## Episode statistics
    They count real steps: Stable-Baselines3's ``Monitor`` is inside, or put there. See ``BinaryActionSearch``. SB3's
    ``make_vec_env`` puts another one around an id such as ``PendulumIncrements-v0``, which counts decisions: give it
    ``"Pendulum-v1"`` with this class as ``wrapper_class``.

    ## Arguments
    - ``env``: with a finite ``Box`` action space of one number, and observations that can be flattened.
    - ``moves=4``: at most, per real step. More are more precise, and make rewards rarer.
    - ``discount_decisions=False``: whether gamma applies to every decision instead of every real step.

    ```python
    >>> env = IncrementalAction(gym.make("Pendulum-v1"))
    >>> env.action_space, env.observation_space.shape
    (Discrete(3), (5,))

    ```
    """

    title = "IncrementalAction"
    needs_bounds = "starts in the middle between"
    legend = "0 (increment), 1 (decrement) or 2 (commit)"

    def __init__(self, env: gym.Env[Any, Any], moves: int = 4, discount_decisions: bool = False) -> None:
        self._box = box = finite_box(env, self.title, self.needs_bounds)
        if np.prod(box.shape) != 1:
            raise ValueError(
                f"IncrementalAction is for actions of one number, but the action space is {box}: use "
                "bdpi.envs.wrappers.BinaryActionSearch, which decides on several numbers one after the other."
            )
        self.moves = check_whole("moves", moves, 1, MAX_DECISIONS, "4 moves end with one of 1/8")
        #: per real step, at most
        self.n_decisions = self.moves
        self.discount_decisions = bool(discount_decisions)
        RecordConstructorArgs.__init__(self, moves=self.moves, discount_decisions=self.discount_decisions)
        if self.discount_decisions:
            self.inner_info = {}
        super().__init__(env, 3, np.array([-1, 0], np.float32), np.ones(2, np.float32))

    def _begin(self, last: ActionInProgress | None) -> ActionInProgress:
        return ActionInProgress(np.zeros(1) if last is None else last.position, np.zeros(1, np.int64))

    def _decide(self, progress: ActionInProgress, decision: int) -> tuple[ActionInProgress, bool]:
        if decision == COMMIT:
            return progress, True
        size = 0.5**progress.n_made
        moved = progress.position + (size if decision == INCREMENT else -size)
        n_made = progress.n_made + 1
        return ActionInProgress(np.clip(moved, -1, 1), n_made), bool(n_made[0] == self.moves)

    def _action(self, progress: ActionInProgress) -> NDArray[Any]:
        return box_action(self._box, progress.position)

    def _append(self, progress: ActionInProgress) -> NDArray[np.float64]:
        return np.concatenate([progress.position, progress.n_made / self.moves])


class IncrementsInTime(IncrementalAction):
    """``IncrementalAction`` with ``discount_decisions=True``, as in the code of the paper.

    :param env: as there
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env, discount_decisions=True)
        RecordConstructorArgs.__init__(self)
