"""The paper's one configuration, exact to the bit, whatever the defaults of the agents are; as its text says it, and as
the code that its authors published has it."""

from __future__ import annotations

from typing import Any

#: of the critics, and of all that ABCDQN and ActorMimic have
PAPER_CRITICS: dict[str, Any] = {
    "learning_rate": 1e-4,
    "gamma": 0.99,
    "buffer_size": 20_000,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 1,
    "n_critics": 16,
    "critics_per_step": None,
    "critic_iterations": 4,
    "fit_steps": None,
    "critic_step_size": 0.2,
    "observation_size": None,
    "return_size": None,
    "rare_rewards": 0.0,
}
_ACTOR: dict[str, Any] = {"actor_learning_rate": None, "persistence": 1.0}
#: of BDPI: ``BDPI("MlpPolicy", env, **bdpi.PAPER)``
PAPER: dict[str, Any] = {**PAPER_CRITICS, **_ACTOR, "trust_region": 0.05}

_CODE_CRITICS: dict[str, Any] = {**PAPER_CRITICS, "gamma": 0.999, "repeat_critics": True}
_CODE_ACTOR: dict[str, Any] = {**_ACTOR, "actor_learning_rate": 1e-5}
#: of BDPI, as the code has it: ``BDPI("MlpPolicy", env, **bdpi.CODE)``
CODE: dict[str, Any] = {**_CODE_CRITICS, **_CODE_ACTOR, "trust_region": 0.05}

#: Names on the command line of agents with the paper's configuration: which agent it is, and its settings.
PAPER_AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bdpi-paper": ("bdpi", PAPER),
    "abcdqn-paper": ("abcdqn", PAPER_CRITICS),
    "actor-mimic-paper": ("actor-mimic", {**PAPER_CRITICS, **_ACTOR, "temperature": 0.0}),
    "bdpi-code": ("bdpi", CODE),
    "abcdqn-code": ("abcdqn", _CODE_CRITICS),
    "actor-mimic-code": ("actor-mimic", {**_CODE_CRITICS, **_CODE_ACTOR, "temperature": 0.0}),
    "bootstrapped-dqn-code": ("bootstrapped-dqn", {"gamma": 0.999, "repeat_critics": True, "critic_step_size": 0.2}),
}
