"""``bdpi report``: what a study, or a run, has found."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bdpi.commands.console import complain, say


class Axis(str, Enum):
    """What curves are drawn over."""

    episodes = "episodes"
    steps = "steps"


def report(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            help="The folder of a study, an archive of one, or the folder of one run, also of a served one.",
            show_default=False,
        ),
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
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="Compare with the curves of the paper, where it has any.")
    ] = True,
    x: Annotated[
        Axis, typer.Option("--x", help="What curves are drawn over: episodes, or environment steps of training.")
    ] = Axis.episodes,
) -> None:
    """Draw a study: figure (PNG, PDF), tables with intervals, and a page for the browser.

    Figures are for papers: TrueType fonts, 300 dots per inch, colours that all eyes can tell apart. Intervals are a
    bootstrap's over runs, of four runs or more.

    [bold]Examples[/bold]

    $ bdpi report runs/figure2

    $ bdpi report runs/mine --no-paper --x steps

    $ bdpi report runs/CartPole-v1/bdpi-seed0-20250131-120000

    $ bdpi report runs/figure2 --archive results/figure2 --out results/figure2
    """
    from bdpi.report.write import write_report
    from bdpi.runs.errors import RunError
    from bdpi.runs.results import read_runs, with_archived, write_archive

    if out is None and (runs / "report").is_symlink():
        raise RunError(f"{runs / 'report'} is a link: choose a folder by --out, or remove it")
    if (runs / "task.json").exists():
        from bdpi.serve.run import read_served

        title, found, problems = read_served(runs)
    else:
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
    command, out = shlex.join(["bdpi", *sys.argv[1:]]), out or runs / "report"
    how = {"title": title, "command": command, "problems": problems, "with_paper": paper, "x": x.value}
    for path in write_report(found, out, **how):  # type: ignore[arg-type]
        say(f"  {path}")
