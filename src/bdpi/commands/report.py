"""``bdpi report``: what a study has found."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bdpi.commands.console import complain, say


def register(app: typer.Typer) -> None:
    """Add the command to ``bdpi``."""
    app.command()(report)


def report(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="The folder of a study, or an archive of one.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write.", show_default="RUNS/report")] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also keep all episodes there, in a few small files that report can read; runs that are there already "
            "stay.",
        ),
    ] = None,
) -> None:
    """Draw a study: figure (PNG, PDF), tables with intervals, and a page for the browser.

    [bold]Examples[/bold]

    $ bdpi report runs/figure2

    $ bdpi report runs/figure2 --archive results/figure2 --out results/figure2
    """
    from bdpi.report.write import write_report
    from bdpi.runs.errors import RunError
    from bdpi.runs.results import read_runs, with_archived, write_archive

    if out is None and (runs / "report").is_symlink():
        raise RunError(f"{runs / 'report'} is a link: choose a folder by --out, or remove it")
    title, found, problems = read_runs(runs)
    for problem in problems:
        complain(problem)
    if not any(len(run.returns) for run in found):
        raise RunError(f"{runs} has no episodes yet")
    if archive is not None:
        new, whole = set(map(id, found)), with_archived(found, archive)
        kept = sum(id(run) not in new for run in whole)
        if kept:
            say(f"also reported on, and kept: what {runs} has not, or not as far, of {archive} (runs: {kept})")
        found = whole
        write_archive(archive, title, found)
    command = shlex.join(["bdpi", *sys.argv[1:]])
    for path in write_report(found, out or runs / "report", title=title, command=command, problems=problems):
        say(f"  {path}")
