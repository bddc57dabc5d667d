"""Binary Action Search: continuous actions for agents that choose between two."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import NDArray

DOWN = 0
UP = 1
MAX_BITS = 24  # of the significand of float32, in which the agent sees the action


class BinaryActionSearch(gym.Wrapper[NDArray[np.float32], Any, Any, Any]):
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

    def __init__(self, env: gym.Env[Any, Any], bits: int = 6) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(f"BinaryActionSearch wraps an environment, got {env!r}: make it with gymnasium.make")
        if not isinstance(bits, int | np.integer) or isinstance(bits, bool) or not 1 <= bits <= MAX_BITS:
            raise ValueError(f"bits must be a whole number from 1 to {MAX_BITS} (6 gives 64 values), got {bits!r}")
        self._box = _finite_box(env.action_space)
        # Imported here, because SB3 brings in PyTorch and environments do without it.
        from stable_baselines3.common.env_util import is_wrapped
        from stable_baselines3.common.monitor import Monitor

        super().__init__(env if is_wrapped(env, Monitor) else Monitor(env))
        self.bits = int(bits)
        n_dimensions = int(np.prod(self._box.shape))
        #: per real step
        self.n_decisions = self.bits * n_dimensions
        self._steps = 0.5 ** np.arange(1, self.bits + 1) * 2.0**self.bits / (2.0**self.bits - 1)
        # Halved before they are added or subtracted: the width of the largest boxes is no float any more.
        low, high = (bound.astype(np.float64).reshape(-1) / 2 for bound in (self._box.low, self._box.high))
        self._middle, self._half_width = high + low, high - low

        seen = _flat(env.observation_space)
        search = np.ones(2 * n_dimensions, np.float32)
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(
            np.concatenate([seen.low, -search]), np.concatenate([seen.high, search]), dtype=np.float32
        )
        self._seen: NDArray[np.float32] | None = None  # the environment's observation; None: an episode has to begin
        self._position = np.zeros(n_dimensions)  # of the action, in units of half its width
        self._n_made = np.zeros(n_dimensions, np.int64)  # decisions, in each dimension

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode, and the first action of it."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen = self._flattened(observation)
        self._begin_action()
        return self._observe(self._seen), info

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Make one decision; the last one of an action steps the environment."""
        if self._seen is None:
            raise ResetNeeded("There is no episode to act in: call reset() to begin one.")
        if not self.action_space.contains(action):
            raise InvalidAction(f"{action!r} is no decision: use 0 (down) or 1 (up).")
        dimension, decision = divmod(int(self._n_made.sum()), self.bits)
        before = self._position[dimension]
        self._position[dimension] += self._steps[decision] if action == UP else -self._steps[decision]
        self._n_made[dimension] += 1
        if self._n_made.sum() < self.n_decisions:
            return self._observe(self._seen), 0.0, False, False, {"discount": 1.0}

        try:
            observation, reward, terminated, truncated, info = self.env.step(self._action())
            seen = self._flattened(observation)
        except BaseException:  # the decision was not carried out, and may be made again
            self._position[dimension] = before
            self._n_made[dimension] -= 1
            raise
        if "executed_action" in info:
            # Of a safety layer inside. Agents take that name for one of their own actions, which are decisions.
            info = {**info, "executed_continuous_action": info["executed_action"]}
            del info["executed_action"]
        self._seen = None if terminated or truncated else seen
        self._begin_action()
        return self._observe(seen), float(reward), terminated, truncated, info

    def _begin_action(self) -> None:
        self._position[:] = 0
        self._n_made[:] = 0

    def _action(self) -> NDArray[Any]:
        """What the decisions led to, as an action of the environment."""
        action = self._middle + self._half_width * self._position
        if np.issubdtype(self._box.dtype, np.integer):
            action = np.rint(action)
        action = action.reshape(self._box.shape)
        low, high = self._box.low, self._box.high
        # Where a bound is reached, it is taken as it is: the largest whole numbers are no floats.
        is_low, is_high = action <= low.astype(np.float64), action >= high.astype(np.float64)
        inside = np.where(is_low | is_high, 0, action).astype(self._box.dtype)
        return np.where(is_low, low, np.where(is_high, high, inside))

    def _observe(self, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        to_come = 1 - 2 * self._n_made / self.bits
        return np.concatenate([seen, self._position, to_come], dtype=np.float32, casting="same_kind")

    def _flattened(self, observation: Any) -> NDArray[np.float32]:
        flat = np.asarray(spaces.flatten(self.env.observation_space, observation))
        with np.errstate(over="ignore"):
            kept = flat.astype(np.float32)
        lost = np.isfinite(flat) & ~np.isfinite(kept)
        if lost.any():
            raise ValueError(
                f"the observation holds {flat[lost][0]:g}, which is too large for float32, in which Binary Action "
                "Search gives observations: scale them down, with gymnasium.wrappers.TransformObservation."
            )
        return kept


def _finite_box(space: spaces.Space[Any]) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        hint = " Agents can choose these actions directly." if isinstance(space, spaces.Discrete) else ""
        raise ValueError(f"Binary Action Search is for Box action spaces, but this one is {space}.{hint}")
    if not space.is_bounded("both"):
        raise ValueError(
            f"Binary Action Search starts in the middle between two bounds, but the action space {space} has not got "
            "both: bound it to sensible actions, with gymnasium.wrappers.TransformAction(env, lambda action: action, "
            "Box(low, high))."
        )
    if np.prod(space.shape) < 1:
        raise ValueError(f"Binary Action Search needs at least one number to decide on, the action space is {space}.")
    return space


def _flat(space: spaces.Space[Any]) -> spaces.Box:
    """The flattened space, in float32."""
    for picture in _pictures(space):
        raise ValueError(
            f"Binary Action Search flattens observations, which would destroy pictures of shape {picture.shape}: wrap "
            "the environment so that it observes a vector of features."
        )
    if not space.is_np_flattenable:
        raise ValueError(
            f"Binary Action Search cannot flatten the observation space {space}: wrap the environment so that its "
            "observations are arrays of a fixed size."
        )
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    with np.errstate(over="ignore"):  # bounds beyond float32 become infinite, which is what they were meant to be
        return spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def _pictures(space: spaces.Space[Any]) -> list[spaces.Box]:
    """Those in a space, also of one colour. Other numbers of type uint8, such as a board with stones, are none."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [picture for part in parts for picture in _pictures(part)]
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return []
    is_picture = len(space.shape) == 3 or (len(space.shape) == 2 and bool((space.high == 255).all()))
    return [space] if is_picture else []
