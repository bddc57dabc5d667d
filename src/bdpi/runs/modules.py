"""Modules that the user names for an environment: of installed packages, or in the current folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from bdpi.runs.errors import RunError, named
from bdpi.runs.trust import KNOWN


def import_module(name: str) -> ModuleType:
    """Import a module. One that is not installed is looked for in the current folder, unless files may name it without
    being trusted: such a name stands for the package, not for what happens to lie there.

    :raises RunError: when it is in neither, or cannot be imported
    """
    top, here = name.partition(".")[0], str(Path.cwd())
    is_missing = top not in sys.modules and top not in KNOWN and importlib.util.find_spec(top) is None
    if is_missing and here not in sys.path:
        sys.path.append(here)  # at the end, and for good: it may import its neighbours later
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise RunError(
                f"there is no module {error.name}: neither {error.name.replace('.', '/')}.py in the current folder, "
                f"{Path.cwd()}, nor an installed package"
            ) from None
        raise RunError(f"the module {name} cannot be imported: {named(error)}") from None
    except (Exception, SystemExit) as error:  # a script without a main guard may do anything
        raise RunError(f"the module {name} cannot be imported: {named(error)}") from None


def import_wrapper(name: str) -> Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]:
    """The class that ``"my_module:MyWrapper"`` names; errors of its constructor are one line, too.

    :raises RunError: when there is none, or it is no wrapper
    """
    module, _, attribute = name.rpartition(":")
    if not module or not attribute.isidentifier():
        dotted = ":".join(name.replace(":", ".").rsplit(".", 1))
        meant = f"did you mean {dotted}?" if ":" in dotted else "an example: gymnasium.wrappers:FlattenObservation"
        raise RunError(f"a wrapper is named module:Class, unlike {name!r}: {meant}")
    found = getattr(import_module(module), attribute, None)
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        what = (
            f"there is no {attribute} in {module}" if found is None else f"{name} is no subclass of gymnasium.Wrapper"
        )
        raise RunError(f"{what}: name a class that wraps an environment and needs no other argument")
    wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] = found

    def wrap(environment: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        try:
            return wrapper(environment)
        except Exception as error:  # foreign code
            raise RunError(f"the wrapper {name} cannot be made: {named(error)}") from None

    return wrap


def not_registered(environment: str, before: Iterable[str]) -> str:
    """Why a module that could be imported has no such environment.

    :param environment: ``"my_module:MyEnv-v0"``
    :param before: ids that were registered before the module was imported
    """
    name, _, wanted = environment.rpartition(":")
    own = [each for each, spec in gym.registry.items() if each not in before or str(spec.entry_point).startswith(name)]
    file = getattr(sys.modules[name], "__file__", None)
    here = Path.cwd() / f"{name.replace('.', '/')}.py"
    if here.is_file() and (file is None or not here.samefile(file)):
        return f"the module {name} is {file or 'built in'}, and not {here.name} in the current folder: rename that"
    registered = f"it registers {', '.join(own[:10])}" if own else "it registers none"
    example = wanted.partition("-v")[0]
    return (
        f"the module {name} has no environment {wanted}: {registered}. In the module, call "
        f'gymnasium.register("{wanted}", entry_point="{name}:{example}")'
    )
