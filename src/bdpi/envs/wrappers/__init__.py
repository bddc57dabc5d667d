"""Wrappers for any Gymnasium environment: continuous actions for discrete agents, and actions that are overridden."""

from bdpi.envs.wrappers.binary_search import BinaryActionSearch
from bdpi.envs.wrappers.discrete_action import DiscreteAction
from bdpi.envs.wrappers.incremental import IncrementalAction, IncrementsInTime
from bdpi.envs.wrappers.overrides import ActionOverride, BackupPolicy, OffPolicyNoise
from bdpi.envs.wrappers.retracing import Retracing
from bdpi.envs.wrappers.table_backup import table_backup
from bdpi.envs.wrappers.time_limit import EndAtTimeLimit

__all__ = [
    "ActionOverride",
    "BackupPolicy",
    "BinaryActionSearch",
    "DiscreteAction",
    "EndAtTimeLimit",
    "IncrementalAction",
    "IncrementsInTime",
    "OffPolicyNoise",
    "Retracing",
    "table_backup",
]
