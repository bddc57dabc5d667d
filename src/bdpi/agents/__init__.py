"""Agents: Stable-Baselines3 algorithms, what users import."""

from bdpi.agents.base import EnsembleAlgorithm
from bdpi.agents.bdpi import BDPI

#: By the name they have on the command line.
AGENTS: dict[str, type[EnsembleAlgorithm]] = {"bdpi": BDPI}

__all__ = ["AGENTS", "BDPI", "EnsembleAlgorithm"]
