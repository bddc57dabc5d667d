"""Prioritized experience replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from bdpi.agents import checks


class SumTree:
    """Numbers from which places are found by their share of the sum; everything is done for many places at once.

    A binary tree in one array: node i is the sum of nodes 2i and 2i + 1, the root is node 1.

    :param size: how many numbers
    """

    def __init__(self, size: int) -> None:
        checks.check_integer("size", size, 1)
        self.size = size
        self.depth = (size - 1).bit_length()
        self.first_leaf = 1 << self.depth
        self.nodes = np.zeros(2 * self.first_leaf)

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self.nodes[1])

    def __getitem__(self, places: ArrayLike) -> NDArray[np.float64]:
        return self.nodes[np.asarray(places) + self.first_leaf]

    def __setitem__(self, places: ArrayLike, values: ArrayLike) -> None:
        """Of a place that is named twice, the last value counts."""
        node = np.asarray(places) + self.first_leaf
        self.nodes[node] = values
        for _ in range(self.depth):
            node = node // 2
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def find(self, sums: ArrayLike) -> NDArray[np.int64]:
        """The place up to which the numbers, added from the first on, pass each of ``sums``, in [0, total)."""
        rest = np.array(sums, dtype=np.float64)
        node = np.ones(rest.shape, dtype=np.int64)
        for _ in range(self.depth):
            left = self.nodes[2 * node]
            # Rounding may leave more than there is on the right; a place whose number is 0 is never found.
            right = (rest >= left) & (self.nodes[2 * node + 1] > 0)
            rest -= np.where(right, left, 0)
            node = 2 * node + right
        return node - self.first_leaf


class PrioritizedSamples(NamedTuple):
    """SB3's ``ReplayBufferSamples``, and what prioritized replay adds to them."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None
    #: importance of each sample in the loss, (n, 1), at most 1
    weights: torch.Tensor
    #: where each sample is stored, for :meth:`PrioritizedReplayBuffer.update_priorities`
    places: NDArray[np.int64]


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer from which transitions are sampled in proportion to their priority to the power of alpha.

    A new transition has the highest priority that there ever was, so that it is soon looked at. After that, its
    priority is what :meth:`update_priorities` is told, usually the error of its Q-value. Sampling is stratified: a
    batch has one sample from each of as many equal parts of the sum of all priorities.

    :class:`~bdpi.baselines.dueling.PrioritizedDuelingDQN` does all of it. SB3's ``DQN`` takes this buffer as
    ``replay_buffer_class`` and samples by priority, but changes no priorities and does not look at weights: all
    transitions are equal, as in the usual buffer, until a callback, for instance, calls
    :meth:`update_priorities`; and what is sampled more often then counts more. A loss that is to count all transitions
    equally, on the whole, multiplies the loss of each sample by ``weights``. For returns of several steps, give SB3's
    ``DQN`` ``replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99}``: it does not tell the buffer of its own ``n_steps``.

    Paper: Schaul et al., 2016, https://arxiv.org/abs/1511.05952 (the proportional variant)

    :param buffer_size: how many transitions
    :param observation_space: anything but Dict
    :param action_space: action space
    :param device: PyTorch device of the samples
    :param n_envs: number of environments
    :param alpha: 0 samples uniformly, 1 in proportion to the priorities
    :param beta: how much of the bias of prioritized sampling the weights correct: 0 nothing, 1 all of it. May be
        changed at any time.
    :param smallest_priority: added to all priorities: transitions without an error are sampled, too
    :param n_steps: rewards of so many steps are added up, or of fewer, where an episode ends or was only stored so far;
        ``next_observations`` are those after the last of them, and ``discounts`` what their values count
    :param gamma: discount factor of these rewards
    :param common: of SB3's ``ReplayBuffer``: ``handle_timeout_termination``
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        smallest_priority: float = 1e-6,
        n_steps: int = 1,
        gamma: float = 0.99,
        **common: Any,
    ) -> None:
        checks.check_number("alpha", alpha, 0, 1, low_included=True)
        checks.check_number("beta", beta, 0, 1, low_included=True)
        checks.check_number("smallest_priority", smallest_priority, 0)
        checks.check_integer("n_steps", n_steps, 1)
        checks.check_number("gamma", gamma, 0, 1, low_included=True)
        if isinstance(observation_space, spaces.Dict):
            raise ValueError("prioritized replay is for array observations; flatten those of the Dict space")
        if common.get("optimize_memory_usage"):
            raise ValueError("optimize_memory_usage=True is not for prioritized replay, leave it out")
        super().__init__(buffer_size, observation_space, action_space, device, n_envs, **common)
        self.alpha, self.beta, self.smallest_priority = alpha, beta, smallest_priority
        self.n_steps, self.gamma = n_steps, gamma
        # SB3 seeds the global generator; a generator of our own lets nothing but sampling draw from it.
        self.generator = np.random.default_rng(np.random.randint(2**31))  # noqa: NPY002
        self._forget()

    def _forget(self) -> None:
        self.tree = SumTree(self.buffer_size * self.n_envs)
        self.highest_priority = 1.0

    def reset(self) -> None:
        """Forget all transitions."""
        super().reset()
        self._forget()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Store one transition of each environment."""
        places = self.pos * self.n_envs + np.arange(self.n_envs)
        super().add(*args, **kwargs)
        self.tree[places] = self.highest_priority**self.alpha

    def update_priorities(self, places: NDArray[np.int64], errors: ArrayLike) -> None:
        """Set the priorities of samples.

        :param places: ``samples.places``
        :param errors: one for each, of any sign
        """
        priorities = np.abs(np.asarray(errors, dtype=np.float64)).reshape(-1) + self.smallest_priority
        if not np.isfinite(priorities).all():
            raise ValueError("a priority is not finite: the Q-values have diverged, try a lower learning rate")
        self.tree[places] = priorities**self.alpha
        self.highest_priority = max(self.highest_priority, float(priorities.max()))

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> PrioritizedSamples:  # type: ignore[override]
        """Draw transitions by their priority.

        :param batch_size: how many
        :param env: its statistics normalise observations and rewards
        """
        if self.size() == 0:
            raise ValueError("there is nothing to sample from: no transition was added yet")
        parts = (np.arange(batch_size) + self.generator.random(batch_size)) / batch_size
        places = self.tree.find(parts * self.tree.total)
        # (N P(i))^-beta, relative to the largest of the batch, so that weights only ever make steps shorter
        probabilities = self.tree[places] / self.tree.total
        weights = (probabilities / probabilities.min()) ** -self.beta
        row, column = np.divmod(places, self.n_envs)
        rewards, last, discounts = self._n_step_returns(row, column, env)
        terminated = self.dones[last, column] * (1 - self.timeouts[last, column])
        return PrioritizedSamples(
            observations=self.to_torch(self._normalize_obs(self.observations[row, column], env)),  # type: ignore[arg-type]
            actions=self.to_torch(self.actions[row, column]),
            next_observations=self.to_torch(self._normalize_obs(self.next_observations[last, column], env)),  # type: ignore[arg-type]
            dones=self.to_torch(terminated.reshape(-1, 1)),
            rewards=self.to_torch(rewards.astype(np.float32).reshape(-1, 1)),
            discounts=None if self.n_steps == 1 else self.to_torch(discounts.astype(np.float32).reshape(-1, 1)),
            weights=self.to_torch(weights.astype(np.float32).reshape(-1, 1)),
            places=places,
        )

    def _n_step_returns(
        self, row: NDArray[np.int64], column: NDArray[np.int64], env: VecNormalize | None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Discounted sums of rewards, the rows that they end in, and the discount of what comes after them."""
        steps = np.arange(self.n_steps)
        rows, columns = (row[:, None] + steps) % self.buffer_size, column[:, None]
        newest = (self.pos - 1) % self.buffer_size  # what is stored behind it is older, or nothing
        ends = (self.dones[rows, columns] > 0) | (rows == newest)
        counted = np.cumsum(ends, axis=1) - ends == 0
        rewards = self._normalize_reward(self.rewards[rows, columns], env) * self.gamma**steps * counted
        n = counted.sum(axis=1)
        return rewards.sum(axis=1), rows[np.arange(len(rows)), n - 1], self.gamma**n
