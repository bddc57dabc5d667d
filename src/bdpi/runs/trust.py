"""What a file may ask for: a module that it names is imported, which runs it, only where the user says so."""

from __future__ import annotations

import re
import sys
from typing import Any

from bdpi.runs.config import BaseConfig
from bdpi.runs.errors import RunError

#: Modules that register environments, and do nothing else.
KNOWN = ("bdpi", "gymnasium", "minigrid", "miniworld", "ale_py")


_WORD = re.compile(r"[\w-]{0,64}", re.ASCII)
_LARGEST = 1000


def check_environment(config: BaseConfig, source: object, trust: bool) -> None:
    """Whether the environment that a file describes may be made: its module, its arguments and its wrappers.

    :raises RunError: naming what needs trust
    """
    check_module(config.environment, source, trust)
    check_around(config, source, trust)


def check_around(config: BaseConfig, source: object, trust: bool) -> None:
    """The same, of arguments and wrappers alone.

    Without trust, arguments are small numbers, truths and words: no path, and nothing that takes much memory.
    """
    for name in config.wrappers:
        check_module(name, source, trust, "wrapper")
    for name, value in config.env_kwargs.items():
        if not (trust or _is_plain(value)):
            raise RunError(
                f"{source} gives the environment {config.environment} the argument {name}={value!r:.80}: if you trust "
                "the file, give --trust"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, list | dict):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return len(parts) <= 64 and all(map(_is_plain, parts))
    return value is None or abs(value) <= _LARGEST


def check_module(environment: str, source: object, trust: bool, what: str = "environment") -> None:
    """Whether a module that a file names for its environment, or a wrapper, may be imported.

    :param environment: ``"CartPole-v1"``, or ``"my_module:MyEnv-v0"``, which imports ``my_module``
    :param source: the file that names it, for the message
    :param trust: the user trusts the file. A module that is imported already needs no trust.
    :raises RunError: naming the module
    """
    module = environment.rpartition(":")[0]
    if not _is_foreign(environment) or trust or module in sys.modules:
        return
    raise RunError(
        f"{source} names the {what} {environment}, for which the module {module} would be imported, and run: if "
        "you know that module and trust the file, give --trust"
    )


def _is_foreign(name: str) -> bool:
    module = name.rpartition(":")[0]
    return bool(module) and module.partition(".")[0] not in KNOWN


def option_for(config: BaseConfig) -> str:
    """What a later command needs that reads this configuration from its file: ``" --trust"``, or nothing."""
    named = any(map(_is_foreign, (config.environment, *config.wrappers)))
    return " --trust" if named or not all(map(_is_plain, config.env_kwargs.values())) else ""
