"""Algorithms that BDPI is compared with: those that Stable-Baselines3 lacks, and the paper's parameters of all.

``import bdpi`` does not import this package.
"""

from bdpi.baselines.acer import ACER
from bdpi.baselines.acktr import ACKTR
from bdpi.baselines.dueling import PrioritizedDuelingDQN
from bdpi.baselines.kfac import KFAC
from bdpi.baselines.paper import PARAMETERS, PEERS, Peer, make_peer, parameters_of
from bdpi.baselines.prioritized import PrioritizedReplayBuffer, SumTree

__all__ = [
    "ACER",
    "ACKTR",
    "KFAC",
    "PARAMETERS",
    "PEERS",
    "Peer",
    "PrioritizedDuelingDQN",
    "PrioritizedReplayBuffer",
    "SumTree",
    "make_peer",
    "parameters_of",
]
