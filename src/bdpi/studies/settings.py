"""The hyper-parameters of a study, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bdpi.runs.errors import RunError

_ACTOR_AND_VALUES = ("ppo", "a2c", "acktr", "acer")  # SB3 calls their second network vf, not qf


def check_settings(agent: str, values: Mapping[str, Iterable[Any]], where: str, key: str = "set") -> None:
    """Names and kinds of values; whether a number is in its range is for the agent to say.

    :param values: all that each hyper-parameter may have
    :param where: for messages
    :param key: there, which has the hyper-parameters
    :raises RunError: when there is no such agent, it has no such hyper-parameter, or a value is of the wrong kind
    """
    from bdpi.agents.schema import PATHS
    from bdpi.runs.build import agent_class
    from bdpi.runs.settings import parse_settings

    if "seed" in values:
        raise RunError(f"{where} sets 'seed': runs have the seeds 0, 1, 2 and so on, leave it out")
    if path := next((name for name in PATHS if name in values), None):
        raise RunError(f"{where} sets {path!r}: the runs of a study write into their own folders only, leave it out")
    try:
        cls = agent_class(agent)
        for name, choices in values.items():
            # As texts, which is how --set has them: the same names and kinds, and the same words about them.
            parse_settings([f"{name}={_as_typed(name, value, agent)!r}" for value in choices], cls)
    except RunError as error:
        raise RunError(f"{where}: {error}".replace("--set knows no", f"{key!r} knows no")) from None


def _as_typed(name: str, value: Any, agent: str) -> Any:
    if isinstance(value, str) and _is_number(value):
        raise RunError(f"{name} is the text {value!r} for YAML, which takes numbers such as 1.0e-4 or 0.0001")
    if name == "net_arch" and isinstance(value, dict) and agent in _ACTOR_AND_VALUES:
        if set(value) != {"pi", "vf"}:
            raise RunError(
                f"net_arch of {agent} must be a list such as [64,64], or {{pi: [32], vf: [64]}}, not {value!r}"
            )
        return {"pi": value["pi"], "qf": value["vf"]}
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
