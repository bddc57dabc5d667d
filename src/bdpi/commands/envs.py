"""``bdpi envs``: the environments that come with the package, and those of the paper."""

from __future__ import annotations

from bdpi.commands.console import say, say_table


def envs() -> None:
    """List the environments of the paper, and what is changed automatically when an agent is trained on them."""
    from rich.table import Table

    from bdpi.runs.presets import ALWAYS, PRESETS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("environment", "what it is", "changed automatically", "to install"):
        table.add_column(title, no_wrap=title == "environment")
    for environment, preset in PRESETS.items():
        table.add_row(environment, preset.what, preset.changes or "-", preset.install or "-")
    say_table(table)
    for line in ("", *ALWAYS):
        say(line)
