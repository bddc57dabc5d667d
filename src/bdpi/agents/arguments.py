"""Arguments of agents: what their constructors take, shown in full, and what was meant by a name that they do not."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterable
from typing import Any, TypedDict

import torch

from bdpi.agents.journal import Journal
from bdpi.learner.arrangement import Precision
from bdpi.learner.registry import LearnerChoice


class CommonSettings(TypedDict, total=False):
    """Arguments that mean the same to all agents, see :class:`~bdpi.agents.ensemble.Ensemble`."""

    buffer_size: int
    batch_size: int
    gamma: float
    train_freq: int | tuple[int, str]
    gradient_steps: int
    n_critics: int
    fit_steps: int | None
    policy_kwargs: dict[str, Any] | None
    stats_window_size: int
    tensorboard_log: str | None
    verbose: int
    seed: int | None
    device: torch.device | str
    learner: LearnerChoice
    precision: Precision
    n_threads: int | None
    journal: str | os.PathLike[str] | Journal | None
    autosave: str | os.PathLike[str] | None
    autosave_minutes: float
    asynchronous: bool
    _init_setup_model: bool


class Settings(CommonSettings, total=False):
    """All arguments of :class:`~bdpi.agents.ensemble.Ensemble`."""

    critics_per_step: int | None
    critic_iterations: int
    critic_step_size: float
    scale_observations: bool
    return_size: float | None


def show_all(agent_class: type[Any], passes_on: bool = True) -> None:
    """Have the signature of a constructor show, in place of ``**settings``, what it passes on to its base class.

    :param passes_on: no: it takes no others
    """
    constructor = vars(agent_class).get("__init__")
    if constructor is None:
        return
    signature = inspect.signature(constructor)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    inherited = inspect.signature(super(agent_class, agent_class).__init__).parameters.values()
    others = [each.replace(kind=each.KEYWORD_ONLY) for each in inherited if each.kind not in _VARIABLE]
    passed_on = (
        [each for each in others if each.name not in signature.parameters and each.name != "self"] if passes_on else []
    )
    constructor.__signature__ = signature.replace(parameters=[*own, *passed_on])
    explained = {name: text for base in reversed(agent_class.__mro__) for name, text in _explained(base).items()}
    texts = [explained[each.name] for each in passed_on if each.name in explained]
    if texts and agent_class.__doc__ and "\n    :param settings:" in agent_class.__doc__:
        agent_class.__doc__ = "\n    ".join([agent_class.__doc__.partition("\n    :param settings:")[0], *texts, ""])


def _explained(agent_class: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of each argument."""
    parts = (agent_class.__doc__ or "").rstrip().split("\n    :param ")[1:]
    return {part.partition(":")[0]: f":param {part.rstrip()}" for part in parts}


_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def settings_of(agent_class: type[Any]) -> dict[str, inspect.Parameter]:
    """What a constructor can be told, beside policy, environment and device."""
    parameters = inspect.signature(agent_class.__init__).parameters
    beside = {"self", "policy", "env", "device", "_init_setup_model"}
    return {name: each for name, each in parameters.items() if each.kind not in _VARIABLE and name not in beside}


def unknown(agent_class: type[Any], names: Iterable[str], taken_by: str) -> str:
    """Says that an agent does not take arguments of these names, and which were meant, perhaps."""
    known = sorted(settings_of(agent_class))
    close = [match for name in names for match in difflib.get_close_matches(name, known, n=1, cutoff=0.5)]
    hint = f"did you mean {' and '.join(close)}? " if close else ""
    given = ", ".join(map(repr, sorted(names)))
    return f"{agent_class.__name__} has no argument {given}: {hint}{taken_by} takes {', '.join(known)}"
