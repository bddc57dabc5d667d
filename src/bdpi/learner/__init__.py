"""The mathematics of BDPI: arrays in, arrays out. See :mod:`bdpi.learner.interface`."""

from bdpi.learner.interface import (
    EpochMetrics,
    Hyperparameters,
    Learner,
    LearnerState,
    NetworkState,
    Transitions,
)

__all__ = ["EpochMetrics", "Hyperparameters", "Learner", "LearnerState", "NetworkState", "Transitions"]
