"""A report in a folder: the figure, the tables, the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bdpi.report.configurations import comparisons_of, is_drawn
from bdpi.report.figure import draw_entropy, draw_figure
from bdpi.report.page import make_page
from bdpi.report.panels import rows_of
from bdpi.report.robustness import Robustness, write_robustness
from bdpi.report.tables import TabledRow, escaped, markdown, unfinished, without_paper
from bdpi.runs.errors import RunError
from bdpi.runs.results import StoredRun
from bdpi.storage.atomic import write_atomically

_PANELS, _CURVES = 24, 8  # that are drawn within seconds; curves for each panel


def write_report(
    runs: Sequence[StoredRun],
    folder: Path,
    *,
    title: str,
    command: str,
    problems: Sequence[str] = (),
    with_paper: bool = True,
    x: str = "episodes",
) -> list[Path]:
    """Write ``figure.png``, ``figure.pdf``, ``tables.md`` and ``index.html``; ``entropy.png`` and ``entropy.pdf`` too
    where runs have recorded entropies. Runs with random configurations have no learning curves in common: they are in
    ``robustness.png`` and ``importance.png``, and the same as PDF, instead.

    :param runs: finished or not; at least one.
    :param folder: made where it does not exist; files of an earlier report in it are replaced.
    :param title: of the page, the figure and the tables.
    :param command: what the reader would run to get the report again.
    :param problems: what the reader should know, such as runs that could not be read.
    :param with_paper: draw and table the paper's curves, where it has any.
    :param x: what curves are drawn over: ``"episodes"`` or ``"steps"`` of training.
    :return: the files, in the order in which they were written.
    :raises RunError: when there are no runs, or too many panels or curves; when the folder cannot be made.
    """
    if not runs:
        raise RunError("there are no runs to report on")
    _check_size(runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"the folder {folder} cannot be made: {error.strerror or error}") from None
    rows = rows_of((run for run in runs if not is_drawn(run)), with_paper, x)
    written = []
    if rows:
        written = [folder / "figure.png", folder / "figure.pdf"]
        draw_figure(rows, written, title)
    if any(run.entropies is not None and len(run.entropies) for run in runs):
        entropy = [folder / "entropy.png", folder / "entropy.pdf"]
        draw_entropy(runs, entropy)
        written += entropy
    robustness, drawn = write_robustness(comparisons_of(runs), folder)
    written += drawn
    if not with_paper:
        robustness = replace(robustness, tables=[without_paper(table) for table in robustness.tables])
    tables, page = folder / "tables.md", folder / "index.html"
    tabled = TabledRow.all_of(rows)
    _write(tables, _markdown(tabled, title, command, robustness, problems))
    _write(page, make_page(runs, title=title, command=command, robustness=robustness, rows=tabled, problems=problems))
    return [*written, tables, page]


def _check_size(runs: Sequence[StoredRun]) -> None:
    """A small archive may name thousands of environments, and drawing them takes hours."""
    curves = {(run.place.study, run.place.row, run.place.environment, run.place.series) for run in runs}
    panels = {curve[:3] for curve in curves}
    most = max(_PANELS, int(os.environ.get("BDPI_PANELS", "0")))
    if len(panels) > most or len(curves) > _CURVES * most:
        wanted = max(len(panels), -(-len(curves) // _CURVES))
        raise RunError(
            f"the runs have {len(curves)} curves in {len(panels)} panels, and a report has {_CURVES * most} in {most}: "
            f"BDPI_PANELS={wanted} draws them all, which takes long"
        )


def _markdown(
    rows: Sequence[TabledRow], title: str, command: str, robustness: Robustness, problems: Sequence[str]
) -> str:
    parts = [f"# {escaped(title)}\n", f"Made by `{' '.join(command.split())}`.\n"]
    for each in rows:
        parts.append(f"## {escaped(each.row.title)}\n")
        parts += [markdown(table) for table in each.tables]
    if robustness.tables:
        parts += ["## Robustness to hyper-parameters\n", *(markdown(table) for table in robustness.tables)]
    waiting = unfinished([each.row for each in rows])
    if waiting.rows:
        parts.append(markdown(waiting).replace("### ", "## ", 1))
    if problems:
        parts += ["## Problems\n", "".join(f"- {escaped(' '.join(problem.split()))}\n" for problem in problems)]
    return "\n".join(parts)


def _write(path: Path, text: str) -> None:
    write_atomically(path, text)
