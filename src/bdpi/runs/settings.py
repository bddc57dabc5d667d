"""``name=value`` texts from a command line become hyper-parameters, checked before anything is built."""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

from bdpi.runs.errors import RunError

if TYPE_CHECKING:
    from bdpi.runs.config import BaseConfig

ACTIVATIONS = ("tanh", "relu")
POLICY_SETTINGS = ("net_arch", "activation_fn", "normalize_images", "last_filters")

# Arguments that have an option of their own, that the run decides, or whose values cannot be typed.
_NOT_SETTABLE = {
    "self",
    "policy",
    "env",
    "seed",
    "policy_kwargs",
    "verbose",
    "replay_buffer_class",
    "replay_buffer_kwargs",
    "action_noise",
    "advisors",
    "advice_steps",
}
_WORDS = {"true": True, "false": False, "none": None}


def settable(agent_class: type[Any]) -> dict[str, inspect.Parameter]:
    """The arguments of an agent that ``--set`` may change, those that it only passes on to its base class included."""
    constructors = []
    for cls in inspect.getmro(agent_class):
        if "__init__" in vars(cls):
            parameters = inspect.signature(vars(cls)["__init__"]).parameters
            constructors.append(parameters)
            if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
                break  # what is not an argument here is one nowhere
    merged: dict[str, inspect.Parameter] = {}
    for parameters in reversed(constructors):  # a derived class may have another default
        merged.update(parameters)
    return {
        name: parameter
        for name, parameter in merged.items()
        if name not in _NOT_SETTABLE
        and not name.startswith("_")
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def defaults_of(agent_class: type[Any], given: Container[str] = ()) -> dict[str, Any]:
    """The defaults of an agent's arguments, without those that are given, and those that do nothing unless they are."""
    from bdpi.agents import Ensemble
    from bdpi.agents.arguments import UNLESS_GIVEN

    idle = UNLESS_GIVEN if issubclass(agent_class, Ensemble) else set()
    return {
        name: parameter.default
        for name, parameter in settable(agent_class).items()
        if name not in given and name not in idle and parameter.default is not parameter.empty
    }


def check_names(names: Iterable[str], agent_class: type[Any]) -> None:
    """:raises RunError: for a name that is no argument of the agent."""
    valid = settable(agent_class)
    for name in names:
        if name not in valid:
            raise RunError(f"{agent_class.__name__}: {_unknown(name, [*valid, *POLICY_SETTINGS])}")


def parse_settings(texts: Iterable[str], agent_class: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Turn ``["n_critics=8", "net_arch=[64,64]"]`` into hyper-parameters and ``policy_kwargs``.

    Values are Python literals (``8``, ``1e-4``, ``True``, ``[64, 64]``); anything else is text. Whether a number is in
    its range is for the agent to say.

    :raises RunError: for a text that is no ``name=value``, an unknown name, a value of the wrong kind.
    """
    parameters = settable(agent_class)
    hyperparameters: dict[str, Any] = {}
    policy_kwargs: dict[str, Any] = {}
    for text in texts:
        name, equals, value_text = (part.strip() for part in text.partition("="))
        if not equals or not name or not value_text:
            raise RunError(f"--set {text!r} is not of the form name=value; an example: --set n_critics=8")
        value = _literal(value_text)
        if name in POLICY_SETTINGS:
            policy_kwargs[name] = _checked_policy_setting(name, value)
        elif name in parameters:
            hyperparameters[name] = _checked(parameters[name], value)
        else:
            raise RunError(_unknown(name, [*parameters, *POLICY_SETTINGS]))
    return hyperparameters, policy_kwargs


def parse_env_kwargs(texts: Iterable[str]) -> dict[str, Any]:
    """Turn ``["is_slippery:False", "map_name:4x4"]`` into arguments of an environment; a text of JSON holds several.

    :raises RunError: for a text that is neither.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            arguments |= _mapping(text)
            continue
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not name.isidentifier() or not value:
            raise RunError(f"--env-kwargs {text!r} is not of the form name:value; an example: is_slippery:False")
        arguments[name] = _literal(value)
    if "render_mode" in arguments:
        raise RunError("--env-kwargs knows no render_mode: films and windows choose it (bdpi play --watch)")
    return arguments


def _mapping(text: str) -> dict[str, Any]:
    import yaml

    with contextlib.suppress(yaml.YAMLError, RecursionError):
        given = yaml.safe_load(text)  # JSON is YAML
        if isinstance(given, dict) and all(isinstance(name, str) for name in given):
            return given
    raise RunError(f"--env-kwargs {text!r} is neither JSON nor YAML; an example: {{is_slippery: false}}")


def check_policy_settings(settings: dict[str, Any]) -> None:
    """:raises RunError: for a name or a value that a policy does not take."""
    for name, value in settings.items():
        if name not in POLICY_SETTINGS:
            raise RunError(f"unknown argument {name!r} of the policy: it takes {', '.join(POLICY_SETTINGS)}")
        _checked_policy_setting(name, value)


def _literal(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _unknown(name: str, valid: list[str]) -> str:
    if name == "seed":
        return "the seed has an option of its own: use --seed instead of --set seed"
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"--set knows no {name!r}: {hint}Valid names: {', '.join(valid)}"


def _checked(parameter: inspect.Parameter, value: Any) -> Any:
    """Catch what no range check in an agent can: a value of the wrong kind, judged by the default and annotation."""
    name, default = parameter.name, parameter.default
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise RunError(f"{name} must be True or False, not {value!r}")
    elif isinstance(default, int | float) and isinstance(value, bool):
        raise RunError(f"{name} must be a number (its default is {default!r}), not {value!r}")
    elif isinstance(default, int) and isinstance(value, float) and value.is_integer():
        return int(value)  # buffer_size=1e5
    elif isinstance(value, str) and not _takes_text(parameter):
        example = "" if default in (None, inspect.Parameter.empty) else f" (its default is {default!r})"
        raise RunError(f"{name} must be a number{example}, not the text {value!r}")
    return value


def _takes_text(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.default, str) or "str" in str(parameter.annotation)


def _checked_policy_setting(name: str, value: Any) -> Any:
    if name == "activation_fn":
        if value not in ACTIVATIONS:
            raise RunError(f"activation_fn must be {' or '.join(ACTIVATIONS)}, not {value!r}")
        return value
    if name == "normalize_images":
        if not isinstance(value, bool):
            raise RunError(f"normalize_images must be True or False (pixels as they are, 0 to 255), not {value!r}")
        return value
    if name == "last_filters":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RunError(f"last_filters must be a whole number from 1 on, not {value!r}")
        return value
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, dict):
        if set(value) == {"pi", "qf"} and all(_is_layers(layers) for layers in value.values()):
            return value
    elif _is_layers(value):
        return value
    raise RunError(
        f"net_arch must be a list of layer sizes such as [64,64], or {{'pi':[32],'qf':[64]}} for the actor and the "
        f"critics, not {value!r}"
    )


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value
    )


def policy_arguments(config: BaseConfig) -> dict[str, Any]:
    """The ``policy_kwargs`` of a run, as policies take them: with classes instead of their names."""
    from torch import nn

    activations = {"tanh": nn.Tanh, "relu": nn.ReLU}
    policy_kwargs = dict(config.policy_kwargs)
    if "activation_fn" in policy_kwargs:
        policy_kwargs["activation_fn"] = activations[policy_kwargs["activation_fn"]]
    if "last_filters" in policy_kwargs:
        policy_kwargs["features_extractor_kwargs"] = {"last_filters": policy_kwargs.pop("last_filters")}
    return policy_kwargs
