"""The command ``bdpi export``: a trained policy as a file for other programs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpi.commands.console import say

if TYPE_CHECKING:
    from bdpi.agents import Ensemble

N_COMPARED = 1000


class FormatName(str, Enum):
    """What can be written."""

    onnx = "onnx"
    c = "c"


_ENDINGS = {".onnx": FormatName.onnx, ".h": FormatName.c}


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, or a saved agent.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: policy.onnx, or policy.h for C.")],
    format: Annotated[
        FormatName | None, typer.Option("--format", help="What to write.", show_default="by OUT's ending")
    ] = None,
) -> None:
    """Write the policy of a trained agent as a file that other programs can run, without Python.

    ONNX files run in ONNX Runtime and many others; a C header needs only a C compiler, and suits microcontrollers. Both
    take observations as the environment gives them, and return the most probable action; where that is one number, all
    probabilities, too. ONNX files are compared with the agent itself on 1,000 observations where ONNX Runtime is
    installed. The environment is not needed: what comes before the policy is in the agent's file.

    [bold]Examples[/bold]

    $ bdpi export runs/docking policy.onnx

    $ bdpi export runs/docking policy.h

    $ bdpi export robot.zip policy.h

    $ bdpi export runs/docking src/controller.inc --format c
    """
    from bdpi.runs.errors import RunError
    from bdpi.runs.folder import RunFolder

    chosen = format or _ENDINGS.get(out.suffix.lower())
    if chosen is None:
        raise RunError(f"the format of {out} is unknown: name it .onnx or .h, or give --format onnx or --format c")
    if out.is_dir():
        raise RunError(f"{out} is a folder: name the file to write, for example {out / f'policy{_ending(chosen)}'}")
    file = run if run.is_file() else RunFolder.open(run).agent

    from bdpi.export.inputs import decisions_of, note_on_masks
    from bdpi.runs.build import warnings_as_notes

    with warnings_as_notes(say):
        agent = _load(file)
        said = _write(agent, out, chosen)
    say(f"Wrote {out} ({out.stat().st_size} bytes){said}")
    if note := note_on_masks(agent):
        say(note)
    if decisions_of(agent).is_plain and _is_searched(file.parent):
        say(
            "Its actions are the single decisions, 0 down and 1 up, of Binary Action Search, and its observations are "
            "those of bdpi.envs.wrappers.BinaryActionSearch"
        )


def _is_searched(folder: Path) -> bool:
    """Whether it is the folder of a run whose actions are the decisions of Binary Action Search."""
    from bdpi.runs.errors import RunError
    from bdpi.runs.folder import RunFolder

    try:
        return RunFolder(folder).read().config.action_bits is not None
    except RunError:
        return False


def _load(file: Path) -> Ensemble:
    """An agent of any class, as ``agent.save`` wrote it."""
    from bdpi.agents import AGENTS
    from bdpi.agents.files import class_of
    from bdpi.runs.errors import RunError, one_line

    try:
        name = class_of(file)
        classes = {known.__name__: known for known in AGENTS.values()}
        if name not in classes:
            raise ValueError(f"{file} holds an agent of class {name}, which is not one of {', '.join(classes)}")
        return classes[name].load(file)
    except (ValueError, OSError) as error:
        raise RunError(one_line(error)) from None


def _write(agent: Ensemble, out: Path, chosen: FormatName) -> str:
    """Write the file.

    :return: how it compares with the agent
    :raises RunError: when the agent cannot be exported
    """
    from bdpi.export import check_onnx, export_c, export_onnx
    from bdpi.runs.errors import RunError, one_line

    try:
        if chosen is FormatName.c:
            export_c(agent, out)
            return ""
        export_onnx(agent, out)
    except (ValueError, ImportError) as error:
        raise RunError(one_line(error)) from None
    try:
        difference = check_onnx(agent, out, N_COMPARED)
    except ImportError:
        return "; it was not compared with the agent, because ONNX Runtime is not installed (pip install onnxruntime)"
    except Exception as error:  # ONNX Runtime has exceptions of its own
        raise RunError(f"{out} was written, but do not use it: {one_line(error)}") from None
    close = f" (probabilities +- {difference:.0e})" if difference else ""  # of whole actions and votes, there are none
    return f"; in {N_COMPARED} random observations it acts as the agent does{close}"


def _ending(chosen: FormatName) -> str:
    return next(ending for ending, name in _ENDINGS.items() if name is chosen)
