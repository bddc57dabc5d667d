"""What a file may ask for: a module that it names is imported, which runs it, only where the user says so."""

from __future__ import annotations

import sys

from bdpi.runs.errors import RunError

#: Modules that register environments, and do nothing else.
KNOWN = ("bdpi", "gymnasium", "minigrid", "miniworld", "ale_py")


def check_module(environment: str, source: object, trust: bool) -> None:
    """Whether an environment that a file names may be made.

    :param environment: ``"CartPole-v1"``, or ``"my_module:MyEnv-v0"``, which imports ``my_module``
    :param source: the file that names it, for the message
    :param trust: the user trusts the file. A module that is imported already needs no trust.
    :raises RunError: naming the module
    """
    module = environment.rpartition(":")[0]
    if not module or trust or module in sys.modules or module.partition(".")[0] in KNOWN:
        return
    raise RunError(
        f"{source} names the environment {environment}, for which the module {module} would be imported, and run: if "
        "you know that module and trust the file, give --trust"
    )
