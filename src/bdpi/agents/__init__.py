"""Agents: Stable-Baselines3 algorithms, what users import."""

from bdpi.agents.abcdqn import ABCDQN
from bdpi.agents.actor_mimic import ActorMimic
from bdpi.agents.bdpi import BDPI
from bdpi.agents.bootstrapped_dqn import BootstrappedDQN
from bdpi.agents.ensemble import Ensemble
from bdpi.agents.evaluation import evaluate_policy
from bdpi.agents.health import Finding, HealthWarning
from bdpi.agents.logs import configure_logger
from bdpi.agents.paper import CODE, PAPER, PAPER_AGENTS
from bdpi.agents.population import Population
from bdpi.agents.tabular_bdpi import TabularBDPI

#: By the name they have on the command line.
AGENTS: dict[str, type[Ensemble]] = {
    "bdpi": BDPI,
    "abcdqn": ABCDQN,
    "actor-mimic": ActorMimic,
    "bootstrapped-dqn": BootstrappedDQN,
    "tabular-bdpi": TabularBDPI,
}

__all__ = [
    "ABCDQN",
    "AGENTS",
    "BDPI",
    "CODE",
    "PAPER",
    "PAPER_AGENTS",
    "ActorMimic",
    "BootstrappedDQN",
    "Ensemble",
    "Finding",
    "HealthWarning",
    "Population",
    "TabularBDPI",
    "configure_logger",
    "evaluate_policy",
]
