"""Critic rules that are compared with BDPI's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdpi.learner.rules import ClippedDouble, CriticRule


@dataclass(frozen=True)
class PartlyClipped:
    """Double Q-learning that is clipped in part: V(s') = clip min(Q_A, Q_B) + (1 - clip) Q_B, all of (s', a*).

    :param clip: 1 is BDPI's rule, 0 double Q-learning
    """

    clip: float
    step_size: float = 0.2

    @property
    def native(self) -> tuple[str, float, str]:
        """The same in C++."""
        source = f"""
RULE float partly_clipped(const float *q, const float *next_a, const float *next_b, int n_actions, int action,
                          float reward, float discount, float step_size) {{
    const int best = argmax(next_a, n_actions);
    const float value_a = pick(next_a, n_actions, best), value_b = pick(next_b, n_actions, best);
    const float least = value_b < value_a ? value_b : value_a;
    const float value = value_b + {float(self.clip)!r}f * (least - value_b);
    return step_size * (reward + discount * value - pick(q, n_actions, action));
}}"""
        return "partly_clipped", self.step_size, source

    def change(
        self, q: Tensor, next_a: Tensor, next_b: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> Tensor:
        """See :meth:`bdpi.learner.rules.CriticRule.change`."""
        best = next_a.argmax(dim=1, keepdim=True)
        value_a, value_b = next_a.gather(1, best).squeeze(1), next_b.gather(1, best).squeeze(1)
        value = value_b + self.clip * (torch.minimum(value_a, value_b) - value_b)
        return self.step_size * (rewards + discounts * value - q.gather(1, actions.unsqueeze(1)).squeeze(1))


def critic_rule(clip: float) -> CriticRule:
    """The rule of a candidate; its step size is given to the kernels run by run."""
    return ClippedDouble() if clip == 1 else PartlyClipped(clip)
