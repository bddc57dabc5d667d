"""Two views of a run: a live one for terminals, and lines now and then for log files.

Both look at the run's progress from a thread of their own, so they also move while one step or episode takes long, and
cost the training nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bdpi.runs.formatting import duration, number
from bdpi.runs.progress import Observer, Progress, RunInfo
from bdpi.storage.reading import printable

if TYPE_CHECKING:
    from bdpi.agents.health import Finding

PLAIN_SECONDS = 4.0
_SPEED_WINDOW = 10.0  # seconds
_PLOT_HEIGHT = 6
_STOPPING = "stopping after this step; the same signal again exits at once, without saving"


class Speed:
    """Steps per second over the last ten seconds or so."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, steps: int, now: float | None = None) -> float | None:
        """:returns: the speed; ``None`` as long as it is not known."""
        now = time.monotonic() if now is None else now
        self._samples.append((now, steps))
        while len(self._samples) > 2 and self._samples[1][0] < now - _SPEED_WINDOW:
            self._samples.popleft()
        earlier, earlier_steps = self._samples[0]
        return (steps - earlier_steps) / (now - earlier) if now > earlier and steps > earlier_steps else None


def position(progress: Progress) -> str:
    """``episode 12/300``, the one that is going on, or ``step 120/5000``."""
    if progress.episodes_wanted is not None:
        going_on = min(len(progress.episodes) + 1, progress.episodes_wanted)
        return f"episode {going_on}/{progress.episodes_wanted}"
    return f"step {progress.steps}/{progress.steps_wanted}"


def time_left(progress: Progress, speed: float | None) -> str:
    steps = progress.steps_left
    return duration(steps / speed if steps is not None and speed else None)


def facts(progress: Progress, speed: float | None) -> list[tuple[str, str]]:
    """The numbers that both views show, with their names."""
    episodes = progress.shown
    shown = [
        ("test return" if progress.tests else "return", number(episodes.returns[-1] if len(episodes) else None)),
        ("average", number(episodes.averages[-1] if len(episodes) else None)),
        ("best", number(episodes.best_average)),
        ("steps/s", "-" if speed is None else f"{speed:.1f}" if speed < 100 else f"{speed:.0f}"),
    ]
    if progress.episodes_wanted is None:
        return [("episodes", str(len(progress.episodes))), *shown]
    return [*shown, ("steps", str(progress.steps))]


class PlainView(Observer):
    """A line every few seconds, for output that is no terminal. Plain ASCII, no control characters.

    :param stream: where to write.
    :param stopping: whether the run has been asked to stop.
    :param seconds: between two lines.
    """

    def __init__(
        self, stream: TextIO, stopping: Callable[[], bool] = lambda: False, seconds: float = PLAIN_SECONDS
    ) -> None:
        self._stream, self._stopping, self._seconds = stream, stopping, seconds
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def began(self, info: RunInfo, progress: Progress) -> None:
        self.note(
            f"{info.agent.upper()} on {info.environment}, seed {info.seed}, {info.learner} learner: {info.folder}"
        )
        self._thread = threading.Thread(target=self._report, args=(progress,), daemon=True)
        self._thread.start()

    def _report(self, progress: Progress) -> None:
        speed = Speed()
        speed.update(progress.steps)
        while not self._over.wait(self._seconds):
            steps_per_second = speed.update(progress.steps)
            numbers = "  ".join(f"{name} {value}" for name, value in facts(progress, steps_per_second))
            self.note(f"{position(progress)}  {numbers}  time left {time_left(progress, steps_per_second)}")
            if self._stopping():
                self.note(_STOPPING)

    def doing(self, what: str) -> None:
        self._over.set()

    def note(self, text: str) -> None:
        # Training matters more than its log: a reader that has gone away does not end it.
        with contextlib.suppress(OSError, ValueError):
            print(printable(text), file=self._stream, flush=True)

    def found(self, finding: Finding) -> None:
        self.note(f"may not learn: {finding.message} {finding.remedy}")

    def ended(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


class TerminalView(Observer):
    """A panel that is redrawn in place.

    :param console: of a terminal.
    :param stopping: whether the run has been asked to stop.
    """

    def __init__(self, console: Console, stopping: Callable[[], bool] = lambda: False) -> None:
        self._console, self._stopping = console, stopping
        self._speed = Speed()
        self._steps_per_second: float | None = None
        self._doing: str | None = None  # None: training
        self._live: Live | None = None

    def began(self, info: RunInfo, progress: Progress) -> None:
        self.note(f"Run folder: {info.folder}")
        self._live = Live(
            get_renderable=lambda: self.render(info, progress), console=self._console, refresh_per_second=5
        )
        self._live.start()

    def doing(self, what: str) -> None:
        self._doing = what

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the connection to the terminal may be gone
            self._console.print(printable(text), markup=False, highlight=False, style="dim", soft_wrap=True)

    def ended(self) -> None:
        self._doing = "everything saved"
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def render(self, info: RunInfo, progress: Progress) -> RenderableType:
        """The panel as it should look now."""
        if self._doing is None:
            self._steps_per_second = self._speed.update(progress.steps)
        width = max(24, min(self._console.width, 96))
        return Panel(
            Group(
                self._head(progress),
                self._numbers(progress),
                *self._plot(progress, width - 4),
                *self._findings(progress),
            ),
            title=Text(f"{info.agent.upper()} on {info.environment}", style="bold"),
            title_align="left",
            subtitle=Text(f"seed {info.seed}, {info.learner} learner", style="dim"),
            subtitle_align="right",
            width=width,
            border_style="blue",
        )

    def _head(self, progress: Progress) -> RenderableType:
        if self._doing is not None:
            state = self._doing
        elif self._stopping():
            state = _STOPPING
        else:
            state = f"{time_left(progress, self._steps_per_second)} left"
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(justify="right")
        bar = ProgressBar(total=1.0, completed=progress.fraction, complete_style="blue", finished_style="green")
        head.add_row(Text(position(progress), style="bold"), bar, Text(f"{progress.fraction:.0%}, {state}"))
        return head

    def _numbers(self, progress: Progress) -> RenderableType:
        text = Text()
        for name, value in facts(progress, self._steps_per_second):
            text.append(f"{name} ", style="dim").append(value, style="bold").append("   ")
        return text

    def _findings(self, progress: Progress) -> list[RenderableType]:
        """Why the run may not learn; what to do about it is said in the end."""
        return [Text(f"May not learn: {finding.message}", style="yellow") for finding in progress.findings]

    def _plot(self, progress: Progress, width: int) -> list[RenderableType]:
        """The moving average, with its lowest and highest value: as wide as the run has come, or a dot an episode."""
        averages = list(progress.shown.averages)  # a copy: training may add to it at any moment
        if not averages:
            return [Text("The curve begins when the first episode ends.", style="dim")]
        low, high = min(averages), max(averages)
        labels = [number(high), *[""] * (_PLOT_HEIGHT - 2), number(low)]
        margin = max(len(label) for label in labels)
        room = max(1, width - margin - 2)
        columns = max(1, round(room * progress.fraction), min(room, len(averages) // 2))
        lines = braille_plot(averages, columns, _PLOT_HEIGHT)
        return [
            Text(f"{label:>{margin}} ", style="dim", no_wrap=True).append(line, style="not dim blue")
            for label, line in zip(labels, lines, strict=True)
        ]


def braille_plot(values: Sequence[float], width: int, height: int) -> list[str]:
    """A line through the values, drawn with braille characters: each has 2 by 4 dots.

    :param width: characters a line; the values are spread over all of it.
    :param height: lines, the first is the top.
    """
    n_columns, n_rows = 2 * width, 4 * height
    low, high = min(values), max(values)
    span = high - low
    rows = []
    for column in range(n_columns):
        place = column * (len(values) - 1) / (n_columns - 1)
        before = int(place)
        after = min(before + 1, len(values) - 1)
        value = values[before] + (place - before) * (values[after] - values[before])
        # A line without ups and downs runs along the bottom.
        rows.append(n_rows - 1 - round((value - low) / span * (n_rows - 1)) if span > 0 else n_rows - 1)
    characters = [[0x2800] * width for _ in range(height)]
    for column, row in enumerate(rows):
        previous = rows[column - 1] if column else row
        # Dots between this row and the neighbour's keep a steep line in one piece.
        first, last = (previous + 1, row) if previous < row else (row, max(row, previous - 1))
        for dot in range(first, last + 1):
            characters[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
    return ["".join(map(chr, line)) for line in characters]


# Unicode's bits of a braille character: its left and its right column, from top to bottom.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
