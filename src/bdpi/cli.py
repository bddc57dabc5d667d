"""The command ``bdpi``: look at an environment, train an agent, play with it, run studies, report on them.

Each command is a file of ``bdpi.commands``, and what it does is in ``bdpi.runs``. Everything heavy is imported by the
command that needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bdpi.commands import journal
from bdpi.commands.check import check
from bdpi.commands.console import BAD_INPUT, complain, say
from bdpi.commands.doctor import doctor
from bdpi.commands.envs import envs
from bdpi.commands.export import export
from bdpi.commands.play import play
from bdpi.commands.report import report
from bdpi.commands.serve import serve
from bdpi.commands.study import study
from bdpi.commands.train import train
from bdpi.commands.tune import tune


class _OneLineErrors(TyperGroup):
    """A group of commands whose complaints are one line, with the command's own errors and typer's alike."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        from bdpi.runs.errors import RunError, one_line

        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except RunError as error:
            complain(str(error))
            status = BAD_INPUT
        except OSError as error:  # files that may not be read or written, a full disk
            complain(one_line(error))
            status = BAD_INPUT
        except typer.Abort:  # Ctrl-C, with some versions of typer; training itself has its own way
            status = 130
        except Exception as error:
            # Typer's own errors (a missing argument, text instead of a number) know how to describe themselves. Where
            # their classes live differs between versions of typer.
            if not hasattr(error, "format_message"):
                raise
            complain(f"{one_line(error.format_message())} (bdpi --help shows examples)")
            status = BAD_INPUT
        if standalone_mode:
            sys.exit(status or 0)
        return status


app = typer.Typer(
    cls=_OneLineErrors,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import bdpi

        say(f"bdpi {bdpi.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _bdpi(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sample-efficient reinforcement learning for Gymnasium environments with discrete or continuous actions.

    [bold]Try this first[/bold] (two minutes):

    $ bdpi train FrozenLake8x8-v1 --seed 1
    """
    if context.invoked_subcommand is None:
        help_text = context.get_help()  # with rich, this has printed it
        if help_text:
            say(help_text)


for command in (train, play, serve, check, export, tune, study, report, envs, doctor):
    app.command()(command)
app.add_typer(journal.app, name="journal")


def main() -> None:
    """The entry point of the ``bdpi`` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe that knows no Unicode gets question marks, not an exception in the middle of a run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="bdpi")


if __name__ == "__main__":
    main()
