"""Numbers about policies, for the logger."""

from __future__ import annotations

import numpy as np

from bdpi.learner.interface import FloatArray, IntArray


def entropy_bits(probabilities: FloatArray) -> float:
    """Mean entropy of a policy over some states, in bits."""
    p = np.clip(probabilities.astype(np.float64), 1e-12, 1)
    return float(-(p * np.log2(p)).sum(axis=1).mean())


def kl_divergence(before: FloatArray, after: FloatArray) -> float:
    """Mean of KL(before || after) over some states, in nats."""
    p, q = (np.clip(array.astype(np.float64), 1e-12, 1) for array in (before, after))
    return float((p * np.log(p / q)).sum(axis=1).mean())


def diagnostics(before: FloatArray, after: FloatArray, greedy: IntArray) -> dict[str, float]:
    """What the logger is told of a policy before and after an epoch.

    :param greedy: the action that each critic prefers, (n_critics, n)
    """
    return {
        "train/entropy": entropy_bits(after),
        "train/kl": kl_divergence(before, after),
        "train/disagreement": float(np.mean(np.any(greedy != greedy[0], axis=0))),
    }
