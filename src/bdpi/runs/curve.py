"""The learning curve of a run as a picture."""

from __future__ import annotations

from pathlib import Path

from bdpi.runs.episodes import AVERAGE_COEFFICIENT, Episodes
from bdpi.runs.formatting import number
from bdpi.storage.atomic import write_atomically

_FAINT, _STRONG, _TEXT = "#9ec5e8", "#0b5394", "#333333"


def draw_curve(episodes: Episodes, title: str, path: Path, name: str = "episode") -> None:
    """Draw every return faintly, and the moving average on top.

    :param episodes: at least one.
    :param title: one line.
    :param path: the PNG file.
    :param name: of what is drawn, such as ``"test episode"``.
    :raises ValueError: when there is no episode to draw.
    """
    if not len(episodes):
        raise ValueError("no episode has ended, so there is no curve to draw")
    # The object interface: pyplot would keep global state and may open windows.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.0, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    numbers = range(1, len(episodes) + 1)
    axes.plot(
        numbers,
        episodes.returns,
        color=_FAINT,
        linestyle="none",
        marker=".",
        markersize=8 if len(episodes) < 50 else 5 if len(episodes) < 150 else 3,
        alpha=0.75,
        clip_on=False,
        label=f"each {name}",
    )
    smoothed = f"moving average (each episode counts {1 - AVERAGE_COEFFICIENT:.0%})"
    axes.plot(numbers, episodes.averages, color=_STRONG, linewidth=2.2, label=smoothed)
    last = episodes.averages[-1]
    axes.annotate(
        number(last),
        (len(episodes), last),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=_STRONG,
        fontweight="bold",
        annotation_clip=False,
    )
    axes.set_title(title, loc="left", color=_TEXT, fontsize=12, fontweight="bold", pad=26)
    axes.set_xlabel(name, color=_TEXT)
    axes.set_ylabel("return", color=_TEXT)
    axes.set_xlim(1, max(2, len(episodes)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.margins(y=0.06)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_TEXT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.legend(
        frameon=False,
        fontsize=9,
        labelcolor=_TEXT,
        loc="lower left",  # between the title, which may be long, and the curve
        bbox_to_anchor=(0.0, 1.0),
        ncols=2,
        borderpad=0.0,
        borderaxespad=0.6,
    )
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
