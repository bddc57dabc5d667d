"""How uncertain an agent is in a state: its critics disagree, or its actor has not decided. From 0 to 1."""

from __future__ import annotations

import bisect
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from bdpi.learner.interface import FloatArray
from bdpi.learner.perceptron import Perceptron

if TYPE_CHECKING:
    from bdpi.agents import Ensemble

_HOUR = 3600.0
_MOST = 4096  # values that are compared with
#: Fewer values say little about what is usual.
FEWEST = 100


class Ranks:
    """Where a value lies among those of the last hour.

    :param seconds: how long values are kept
    """

    def __init__(self, seconds: float = _HOUR) -> None:
        self._seconds = seconds
        self._times: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def rank(self, value: float, now: float | None = None) -> float:
        """The share of values that are smaller, equal ones counting half; 0.5 for the first. Keeps the value."""
        now = time.monotonic() if now is None else now
        while self._times and (len(self._times) >= _MOST or self._times[0][0] < now - self._seconds):
            old = self._times.popleft()[1]
            del self._sorted[bisect.bisect_left(self._sorted, old)]
        low, high = bisect.bisect_left(self._sorted, value), bisect.bisect_right(self._sorted, value)
        share = (low + high) / 2 / len(self._sorted) if self._sorted else 0.5
        self._sorted.insert(high, value)
        self._times.append((now, value))
        return share


class Uncertainty:
    """Of an agent that learns in the background, from a copy of its critics: those that learn cannot be asked.

    :param agent: whose observations are vectors of numbers
    """

    def __init__(self, agent: Ensemble) -> None:
        self._agent = agent
        self._disagreements, self._entropies, self._sums = Ranks(), Ranks(), Ranks()
        #: as they were last
        self.entropy = self.disagreement = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Copy the critics, between two epochs."""
        policy = self._agent.policy
        inputs = policy.native_inputs()
        assert inputs is not None
        with self._agent.learning_held():
            state = self._agent.agent_learner.learner.state_dict()
            active = np.asarray(state["active"])
            parameters = np.array(state["critics.parameters"])[np.arange(len(active)), active]
            scales = policy.input_scales
        sizes = [inputs.size, *policy.critic_arch, policy.n_actions]
        self._critics = Perceptron(parameters, sizes, False, policy.activation_fn is nn.Tanh), scales

    def __call__(self, observation: Any, probabilities: FloatArray) -> float:
        """From 0 to 1, so that each value is as frequent as any other in an hour."""
        critics, scales = self._critics
        q = critics((observation[None] - scales.shift) * scales.factor)[:, 0]
        self.disagreement = float(q.std(axis=0).mean() / scales.return_factor)
        p = np.clip(probabilities.astype(np.float64), 1e-12, 1)
        self.entropy = float(-(p * np.log2(p)).sum())
        both = self._disagreements.rank(self.disagreement) + self._entropies.rank(self.entropy)
        return self._sums.rank(both)

    @property
    def is_calibrated(self) -> bool:
        """Whether enough values are known."""
        return len(self._sums) >= FEWEST
