"""What the commands have in common: how they print, and what they exit with."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

#: Of commands that read what others may have written.
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the module that the file names for its environment, which runs it.")
]

#: Of commands that train.
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SERVICE",
        help="Log each episode to tensorboard, wandb (offline unless WANDB_MODE says otherwise), mlflow or csv; may be "
        "repeated, or separated by commas.",
        show_default=False,
    ),
]

BAD_INPUT = 2
FAILED = 1


def say(text: str = "") -> None:
    """Print; if the reader of a pipe is gone, do nothing."""
    from bdpi.storage.reading import printable

    with contextlib.suppress(OSError):
        print("\n".join(map(printable, text.split("\n"))), flush=True)


def say_table(table: Table) -> None:
    """Print a table. In a file or a pipe, its lines are not folded, so that they can be searched."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 300, markup=False, highlight=False)
    with contextlib.suppress(OSError):
        console.print(table)


def complain(text: str) -> None:
    """One line on standard error."""
    from bdpi.storage.reading import printable

    print(f"bdpi: {printable(text)}", file=sys.stderr, flush=True)


def program() -> str:
    """What to type to get this program again: its name, or its path where the shell would not find it."""
    import shutil

    called = Path(sys.argv[0])
    if called.name != "bdpi" or shutil.which("bdpi"):
        return "bdpi"
    here = Path.cwd()
    return shlex.quote(str(called.relative_to(here) if called.is_relative_to(here) else called))
