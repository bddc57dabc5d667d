"""Agents in RL Baselines3 Zoo: importing this adds them to ``rl_zoo3.ALGOS``, with hyper-parameters and values to tune.

``python -m bdpi.zoo train --algo bdpi --env CartPole-v1`` is RL-Zoo's own command; so are ``enjoy``, ``plot_train``,
``all_plots`` and ``plot_from_file``.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import rl_zoo3.train
    from rl_zoo3 import exp_manager, hyperparams_opt, utils
except ImportError as error:
    raise ImportError(f'RL-Zoo is missing ({error}): pip install "bdpi[zoo]"') from error

from bdpi.agents import AGENTS
from bdpi.agents.arguments import DEFAULTS
from bdpi.studies.choices import plain, tuned

if TYPE_CHECKING:
    import optuna

#: What each agent has in each environment, unless ``--conf-file`` names another file.
HYPERPARAMETERS = Path(__file__).with_name("hyperparams.yml")


class ExperimentManager(exp_manager.ExperimentManager):  # type: ignore[misc]  # RL-Zoo may not be installed
    """RL-Zoo's, which looks for our agents' hyper-parameters here."""

    def __init__(self, args: Any, algo: str, *others: Any, config: str | None = None, **settings: Any) -> None:
        if algo in AGENTS:
            config = config or str(HYPERPARAMETERS)
        super().__init__(args, algo, *others, config=config, **settings)


def sample(agent: str, trial: optuna.Trial, *_: Any) -> dict[str, Any]:
    """One of the configurations that ``bdpi tune`` chooses from, too; the agent's defaults are among them."""
    chosen = {}
    for name, values in tuned(agent).items():
        default = DEFAULTS.get(name, values[0])
        choices = values if default in values else (*values, default)
        chosen[name] = trial.suggest_categorical(name, [plain(value) for value in choices])
    return convert(chosen)


def convert(chosen: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an agent, of what was chosen."""
    settings = dict(chosen)
    if "net_arch" in settings:
        settings["policy_kwargs"] = {"net_arch": json.loads(settings.pop("net_arch"))}
    if settings.get("critics_per_step") is not None:
        settings["critics_per_step"] = min(settings["critics_per_step"], settings["n_critics"])
    return settings


utils.ALGOS.update(AGENTS)  # one dictionary, which RL-Zoo's modules share
hyperparams_opt.HYPERPARAMS_SAMPLER.update({name: partial(sample, name) for name in AGENTS})
hyperparams_opt.HYPERPARAMS_CONVERTER.update(dict.fromkeys(AGENTS, convert))
exp_manager.ExperimentManager = rl_zoo3.train.ExperimentManager = ExperimentManager
