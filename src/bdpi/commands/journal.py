"""``bdpi journal``: what a robot has experienced, looked at, exported and imported."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpi.commands.console import say

if TYPE_CHECKING:
    from bdpi.agents.journal_info import JournalInfo
    from bdpi.commands.ticker import Ticker

_DAMAGED = 1
_ENDINGS = (".npz", ".parquet")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The journal.", show_default=False)]


app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def _journal(context: typer.Context) -> None:
    """Look at the journal of a robot, export it, import into it.

    A journal is the file that an agent with journal=FILE writes, one transition after the other. It can be looked at
    and exported while a robot writes it.

    [bold]Examples[/bold]

    $ bdpi journal info robot.sqlite

    $ bdpi journal export robot.sqlite robot.npz

    $ bdpi journal import everything.sqlite robot.npz

    $ bdpi train --offline robot.sqlite
    """
    if context.invoked_subcommand is None:
        help_text = context.get_help()  # with rich, this has printed it
        if help_text:
            say(help_text)


@app.command()
def info(
    file: _File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show how much is in a journal, what of, and whether it is intact.

    Reads every transition, also while a robot writes. If something is damaged, the exit status is 1.

    [bold]Examples[/bold]

    $ bdpi journal info robot.sqlite

    $ bdpi journal info robot.sqlite --json
    """
    with _reading() as progress:
        from bdpi.agents.journal_info import examine

        found = examine(file, progress)
    if as_json:
        say(json.dumps({"path": str(file), **found.as_dict()}, indent=2))
    else:
        _show(found)
    if found.problem is not None:
        raise typer.Exit(_DAMAGED)


def _show(found: JournalInfo) -> None:
    from bdpi.runs.formatting import number

    episodes = f"{len(found.returns)}"
    if found.unfinished:
        which = "one that has" if found.environments == 1 else "some that have"
        episodes += f" complete, and {found.unfinished} transitions of {which} not ended"
    lines = [("transitions", str(found.transitions)), ("episodes", episodes)]
    if found.environments > 1:
        lines.append(("environments", str(found.environments)))
    if found.returns:
        mean = sum(found.returns) / len(found.returns)
        extremes = f"min {number(min(found.returns))}, max {number(max(found.returns))}"
        lines.append(("returns", f"mean {number(mean)}, {extremes}"))
    lines += [
        ("observations", str(found.observation_space)),
        ("actions", str(found.action_space)),
        ("size", _bytes(found.size)),
        ("intact", "yes" if found.problem is None else f"no: {found.problem}"),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        say(f"{name:<{width}}  {value}")
    if found.gaps:
        say(f"{found.gaps} transitions do not begin where the one before ended: of a robot that was stopped")


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


@app.command()
def export(
    file: _File,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The new file, OUT.npz or OUT.parquet.", show_default=False)
    ],
) -> None:
    """Write a journal for other programs: NumPy's NPZ, or Parquet.

    Works while a robot writes. NPZ is for NumPy and has to fit in memory; Parquet is for pandas, DuckDB and
    the like, and needs pip install "bdpi\\[parquet]". A file that is there already is replaced.

    [bold]Examples[/bold]

    $ bdpi journal export robot.sqlite robot.npz

    $ bdpi journal export robot.sqlite robot.parquet
    """
    is_npz = _ending(out) == ".npz"
    with _reading() as progress:
        from bdpi.agents.journal import Journal
        from bdpi.agents.journal_files import export_npz, export_parquet
        from bdpi.runs.errors import RunError

        if out.exists() and file.exists() and out.samefile(file):
            raise RunError(f"{out} is the journal itself: choose another name")
        with Journal(file, read_only=True) as journal:
            n = (export_npz if is_npz else export_parquet)(journal, out, progress)
    say(f"{n} transitions: {out}")


@app.command("import")
def import_(
    file: _File,
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="What export wrote, IN.npz or IN.parquet.", show_default=False)
    ],
) -> None:
    """Append what export wrote to a journal, all or nothing.

    A journal that does not exist is created with the id of the exported one, so that its agent can continue with it. A
    journal of another environment is refused, and so is one that a robot has open.

    [bold]Examples[/bold]

    $ bdpi journal import copy.sqlite robot.npz

    $ bdpi journal import everything.sqlite yesterday.parquet
    """
    is_npz = _ending(source) == ".npz"
    with _reading() as progress:
        from bdpi.agents.journal import Journal
        from bdpi.agents.journal_files import import_npz, import_parquet

        n = (import_npz if is_npz else import_parquet)(source, file, progress)
        with Journal(file) as journal:
            held = len(journal)
    say(f"{n} transitions added to {file}, which has {held} now")


def _ending(path: Path) -> str:
    from bdpi.runs.errors import RunError

    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise RunError(f"{str(path)!r} ends neither in .npz nor in .parquet, which says what kind of file it is")
    return ending


@contextlib.contextmanager
def _reading() -> Iterator[Ticker]:
    """Shows the progress; errors of journals become those of commands."""
    from bdpi.agents.journal import JournalError
    from bdpi.commands.ticker import Ticker
    from bdpi.runs.errors import RunError, one_line

    try:
        with Ticker("transitions") as ticker:
            yield ticker
    except JournalError as error:
        raise RunError(one_line(error)) from None
