"""A line now and then while something takes long."""

from __future__ import annotations

import contextlib
import sys
import time

from bdpi.runs.formatting import duration

SECONDS = 4.0  # between two lines, and before the first one


class Ticker(contextlib.AbstractContextManager["Ticker"]):
    """Says how far something is, on standard error: standard output is for results.

    On a terminal, the line is redrawn in place; elsewhere, such as in a log file, a new one is written every few
    seconds. On exit, the line is ended.

    :param what: is counted, in the plural
    """

    def __init__(self, what: str = "") -> None:
        self._what = what
        self._began = self._said = time.monotonic()
        self._is_open = False

    def __call__(self, done: int, total: int, what: str | None = None) -> None:
        """Tell it.

        :param what: is counted now; None: the same as before
        """
        now = time.monotonic()
        if what not in (None, self._what):
            self.end()
            self._what, self._began, self._said = str(what), now, now
        on_terminal = sys.stderr.isatty()
        if now - self._said < (0.2 if self._is_open and on_terminal else SECONDS):
            return
        self._said = now
        elapsed = now - self._began
        left = duration(elapsed * (total - done) / done) if done else "-"
        text = f"{done} of {total} {self._what}   {done / elapsed:.3g} per second   {left} left"
        with contextlib.suppress(OSError):  # the reader of a pipe may be gone
            line, end = (f"\r{text}\x1b[K", "") if on_terminal else (text, "\n")
            print(line, end=end, file=sys.stderr, flush=True)
        self._is_open = True

    def end(self) -> None:
        """End the line, so that something else can be printed."""
        if self._is_open and sys.stderr.isatty():
            with contextlib.suppress(OSError):
                print(file=sys.stderr, flush=True)
        self._is_open = False

    def __exit__(self, *_: object) -> None:
        self.end()
