"""``bdpi serve``: robots in any language learn over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpi.commands.console import say


def serve(
    task: Annotated[Path, typer.Argument(metavar="TASK.yaml", help="What the robot sees and can do.")],
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free.")] = 8088,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; other than loopback, a token is needed.")
    ] = "127.0.0.1",
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder of the run.", show_default="runs/serve/NAME")
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Pages from there may ask, too: robots in a browser. Several times, if needed."
        ),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Ask the advisors that the task names.")] = False,
) -> None:
    """Let robots act and learn over HTTP, with a page on which a person can watch and take over.

    If the folder has a run of this task, it goes on.

    [bold]Examples[/bold]

    $ bdpi serve lamp.yaml

    $ bdpi serve lamp.yaml --host 0.0.0.0 --out runs/lamp
    """
    need_server("bdpi serve")
    from bdpi.runs.build import warnings_as_notes
    from bdpi.serve.listen import serve as listen
    from bdpi.serve.task import read_task

    chosen = read_task(task, trust)
    with warnings_as_notes(say):
        listen(chosen, out or Path("runs") / "serve" / task.stem, host, port, say, origins=origin or ())


def need_server(what: str) -> None:
    """:raises RunError: where what is needed for ``what`` is not installed"""
    from bdpi.runs.errors import RunError

    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise RunError(f"{what} needs {error.name}: pip install 'bdpi[serve]'") from None
