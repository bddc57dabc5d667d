"""Which software made a run, for those who repeat it."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

#: What this code learns: the fingerprint of all cases of tests/golden that learn, which the tests compare with this.
#: Runs of different commits with the same one may stand together.
LEARNING = "210960206ffe"
PACKAGES = ("bdpi", "numpy", "torch", "gymnasium", "stable-baselines3")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on. Imports none of them."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def origin() -> dict[str, str]:
    """The same, what the code learns, and the commit, where this is a clone of the repository."""
    found = _commit()
    return {**versions(), "learning": LEARNING} | ({"commit": found} if found else {})


@functools.cache
def _commit() -> str:
    """In short, with ``-dirty`` behind it where something was changed since; empty in an installed package.

    Where there are files without a repository, the variable BDPI_COMMIT says of which commit they are.
    """
    import bdpi

    root = Path(bdpi.__file__).parents[2]
    if not (root / ".git").exists():
        given = os.environ.get("BDPI_COMMIT", "")
        return given if re.fullmatch("[0-9a-f]{7,40}(-dirty)?", given) else ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no git, or not a repository that it trusts
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""


@functools.cache
def version(package: str) -> str:
    if package == "bdpi":
        import bdpi

        return bdpi.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
