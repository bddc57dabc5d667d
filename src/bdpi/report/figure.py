"""The figure in the paper's layout: one row per question, one column per environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bdpi.report import style
from bdpi.report.entropy import entropies_of
from bdpi.report.panels import Panel, Row
from bdpi.report.statistics import learning_curve
from bdpi.runs.results import StoredRun
from bdpi.storage.atomic import write_atomically

TEXT_COLOUR, _GRID, _AXIS = "#333333", "#e6e6e6", "#bbbbbb"
_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_HEIGHT = 3.4, 2.35, 0.55  # inches


def draw_figure(rows: Sequence[Row], paths: Sequence[Path], title: str = "") -> None:
    """Draw all rows into one picture; the suffix of each path (``.png``, ``.pdf``) decides how it is written.

    Bands are 95 % bootstrap intervals of the mean over four runs or more. The paper's curves are thin lines of the same
    colour.

    :param rows: as :func:`bdpi.report.panels.rows_of` makes them; at least one.
    :raises ValueError: when there is nothing to draw.
    """
    if not rows:
        raise ValueError("there are no runs, so there is no figure to draw")
    columns = [_columns(row, rows) for row in rows]
    n_columns = max(len(row) for row in columns)
    # One panel alone would be narrower than the legend above it.
    width = max(_PANEL_WIDTH * n_columns, 2.7 * _PANEL_WIDTH)
    figure = new_figure(width, (_PANEL_HEIGHT + _LEGEND_HEIGHT) * len(rows) + (0.4 if title else 0.0))
    if title:
        figure.suptitle(literal(title), x=0.01, ha="left", color=TEXT_COLOUR, fontsize=12, fontweight="bold")
    for part, row, panels in zip(
        figure.subfigures(len(rows), 1, squeeze=False, hspace=0.04)[:, 0], rows, columns, strict=True
    ):
        _draw_row(part, row, panels, n_columns)
    figure.supxlabel(
        "Lines: mean over runs of the smoothed return. Bands: its 95 % bootstrap interval, of four runs or more.",
        x=0.01,
        ha="left",
        color="#777777",
        fontsize=8,
    )
    save_figure(figure, paths)


def draw_entropy(runs: Sequence[StoredRun], paths: Sequence[Path]) -> None:
    """Draw the entropy of the policy per time-step: running averages of the mean and of the deviation over runs.

    :param runs: those without entropies are left aside.
    :raises ValueError: when no run has entropies.
    """
    panels = entropies_of(runs)
    if not panels:
        raise ValueError("no run has recorded the entropy of its policy, so there is no curve to draw")
    figure = new_figure(7.0, 2.9 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for each, panel in zip(axes, panels, strict=True):
        colours = style.colours([curve.name for curve in panel.curves])
        for curve in panel.curves:
            colour = colours[curve.name][0]
            each.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
            label = f"{literal(curve.name)} ({curve.count} runs)"
            each.plot(curve.steps, curve.mean, color=colour, linewidth=1.6, label=label)
        decorate(each, panel.title)
        each.set_xlabel(f"time-step (running average over {panel.window})", color=TEXT_COLOUR, fontsize=9)
        each.set_ylabel("entropy of the policy, bits", color=TEXT_COLOUR, fontsize=9)
        beside(each, "bands: standard deviation over runs")
        each.set_ylim(bottom=0.0)
        each.set_xlim(0, max(int(curve.steps[-1]) for curve in panel.curves))
    save_figure(figure, paths)


def _columns(row: Row, rows: Sequence[Row]) -> list[Panel | None]:
    """The panels of a row, below those of the same environment in other rows, where they share any."""
    panels = {panel.environment: panel for panel in row.panels}
    neighbours = [other for other in rows if panels.keys() & {panel.environment for panel in other.panels}]
    shared = style.ordered_environments({panel.environment for other in neighbours for panel in other.panels})
    columns = [panels.get(environment) for environment in shared]
    while columns and columns[-1] is None:
        columns.pop()
    return columns


def _draw_row(part: Any, row: Row, panels: Sequence[Panel | None], n_columns: int) -> None:
    colours = style.colours(row.series)
    axes = part.subplots(1, n_columns, squeeze=False)[0]
    drawn: dict[str, Any] = {}
    any_paper = False
    for column, each in enumerate(axes):
        panel = panels[column] if column < len(panels) else None
        if panel is None:
            each.set_visible(False)
            continue
        any_paper = _draw_panel(each, panel, {name: pair[0] for name, pair in colours.items()}, drawn) or any_paper
        if column == 0 or panels[column - 1] is None:
            each.set_ylabel("return (smoothed)", color=TEXT_COLOUR, fontsize=9)
    handles = [drawn[name] for name in row.series if name in drawn]
    if any_paper:
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color="0.45", linewidth=0.8, label="thin: the paper"))
    part.legend(
        handles=handles,
        loc="outside upper left",
        ncols=max(1, len(handles)),
        title=literal(row.title),
        alignment="left",
        title_fontproperties={"weight": "bold", "size": 11},
        fontsize=9,
        labelcolor=TEXT_COLOUR,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.4,
        borderpad=0.1,
    )


def _draw_panel(axes: Any, panel: Panel, colours: dict[str, str], drawn: dict[str, Any]) -> bool:
    """:param drawn: gets one line per series, for the legend.

    :return: whether the paper has curves for it.
    """
    curves = [(series, learning_curve(series, x=panel.x)) for series in panel.series]
    paper = [(series.name, curve) for series in panel.series if (curve := panel.drawn_paper(series.name))]
    ends = [int(ours.episodes[-1]) for _, ours in curves if len(ours.episodes)]
    end = max(1, *(ends or [int(curve.episodes[-1]) for _, curve in paper]), 1)
    for name, curve in paper:
        n = np.searchsorted(curve.episodes, end, side="right")  # what is beyond would widen the other axis
        axes.plot(curve.episodes[:n], curve.returns[:n], color=colours[name], linewidth=0.8, alpha=0.75, zorder=2)
    # The subject last, so that nothing covers it.
    subject = style.subject([series.name for series in panel.series])
    for series, ours in sorted(curves, key=lambda item: item[0].name == subject):
        colour = colours[series.name]
        axes.fill_between(ours.episodes, ours.low, ours.high, color=colour, alpha=0.18, linewidth=0, zorder=3)
        # One episode is a dot, not a line of no length.
        mark = "." if len(ours.episodes) == 1 else None
        (line,) = axes.plot(
            ours.episodes, ours.mean, color=colour, linewidth=1.7, marker=mark, zorder=4, label=literal(series.name)
        )
        drawn.setdefault(series.name, line)
    decorate(axes, style.environment_title(panel.environment))
    counts = _counts_text(panel)
    axes.set_title(counts, loc="right", fontsize=7.5, color="#777777", pad=4)
    axes.set_xlim(0, end)
    axes.set_xlabel(panel.x_label, color=TEXT_COLOUR, fontsize=9)
    return bool(paper)


def _counts_text(panel: Panel) -> str:
    """``8 runs``, or ``4 to 8 runs`` where the series have different numbers of them."""
    counts = sorted({len(series.used) for series in panel.series})
    text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{text} run" if counts == [1] else f"{text} runs"


def decorate(axes: Any, title: str) -> None:
    """Title, grid and ticks, the same in all figures."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(literal(title), loc="left", color=TEXT_COLOUR, fontsize=10, pad=4)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT_COLOUR, length=0, labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.margins(y=0.05)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_AXIS)


def beside(axes: Any, title: str) -> None:
    """A legend outside the axes, where it covers no curve."""
    axes.legend(
        frameon=False, fontsize=8.5, labelcolor=TEXT_COLOUR, title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    axes.get_legend().get_title().set(fontsize=8, color=TEXT_COLOUR)


def literal(text: str) -> str:
    """The text as it is: Matplotlib reads what is between dollars as a formula."""
    return text.replace("$", r"\$")


def new_figure(width: float, height: float) -> Any:
    """A figure without pyplot, which keeps global state and may open windows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, paths: Sequence[Path]) -> None:
    """Write the figure; the suffix of each path decides how. PDFs have TrueType fonts, as publishers ask for, and
    pictures 300 points to an inch."""
    import matplotlib

    for path in paths:
        # Without a date, the same runs give the same bytes.
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else None

        def save(file: Any, path: Path = path, metadata: dict[str, None] | None = metadata) -> None:
            with matplotlib.rc_context({"pdf.fonttype": 42}):
                figure.savefig(file, format=path.suffix[1:], metadata=metadata, dpi=300)

        write_atomically(path, save)
