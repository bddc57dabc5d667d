"""``bdpi envs``: the environments that come with the package, and those of the paper."""

from __future__ import annotations

import contextlib
import sys

import typer

from bdpi.commands.console import say


def register(app: typer.Typer) -> None:
    """Add the command to ``bdpi``."""
    app.command()(envs)


def envs() -> None:
    """List the environments of the paper, and what is changed by itself when an agent is trained on them."""
    from rich.console import Console
    from rich.table import Table

    from bdpi.runs.presets import ALWAYS, PRESETS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("environment", "what it is", "changed by itself", "to install"):
        table.add_column(title, no_wrap=title == "environment")
    for environment, preset in PRESETS.items():
        table.add_row(environment, preset.what, preset.changes or "-", preset.install or "-")
    # In a file or a pipe, lines are not folded, so that they can be searched.
    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False)
    with contextlib.suppress(OSError):
        console.print(table)
    for line in ("", *ALWAYS):
        say(line)
