"""What the commands have in common: how they print, and what they exit with."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

BAD_INPUT = 2
FAILED = 1


def say(text: str = "") -> None:
    """Print, unless the reader is gone."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def complain(text: str) -> None:
    """One line on standard error."""
    print(f"bdpi: {text}", file=sys.stderr, flush=True)


def program() -> str:
    """What to type to get this program again: its name, or its path where the shell would not find it."""
    import shutil

    called = Path(sys.argv[0])
    if called.name != "bdpi" or shutil.which("bdpi"):
        return "bdpi"
    here = Path.cwd()
    return shlex.quote(str(called.relative_to(here) if called.is_relative_to(here) else called))
