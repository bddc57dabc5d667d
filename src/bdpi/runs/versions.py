"""Which software made a run: what somebody needs who wants to repeat it."""

from __future__ import annotations

import functools
import importlib.metadata
import platform

PACKAGES = ("bdpi", "numpy", "torch", "gymnasium", "stable-baselines3")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on. Imports none of them."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@functools.cache
def version(package: str) -> str:
    if package == "bdpi":
        import bdpi

        return bdpi.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
