"""Ctrl-C, ``kill`` and a lost connection end training after the current step, instead of losing it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_LEFT_TO_PARENT = {getattr(signal, name) for name in _NAMES[1:] if hasattr(signal, name)}


@contextlib.contextmanager
def left_to_parent() -> Iterator[None]:
    """A process that is started meanwhile gets none of the signals that are sent to a whole group of processes.

    Ctrl-C, ``timeout`` and a lost connection reach all processes of a study; its parent decides, and the others have to
    live until they have saved their runs. So has the server that forks them: it has no handlers of ours, but what is
    blocked when it is started stays so. Processes of runs call :func:`leave_to_parent`.
    """
    resource_tracker.ensure_running()  # would unblock them, if it were started meanwhile
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """In a process that :func:`left_to_parent` has started: do nothing when a signal comes.

    Programs that an environment starts can be ended by these signals: unlike what is blocked or ignored, a handler is
    not passed on to them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _LEFT_TO_PARENT:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_PARENT)


def leave_group() -> None:
    """In a process that :func:`left_to_parent` has started, and that lives as long as its parent wants it to.

    It gets none of the signals that are sent to the whole group; one that is sent to it alone still ends it.
    """
    os.setpgid(0, 0)
    before = {number: signal.signal(number, lambda number, frame: None) for number in _LEFT_TO_PARENT}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_PARENT)  # what came before it had left is forgotten
    for number, handler in before.items():
        signal.signal(number, handler)


class Stop:
    """Whether a signal has asked for the end.

    :param signal: its number, or ``None``.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def requested(self) -> bool:
        return self.signal is not None

    @property
    def exit_status(self) -> int:
        """What shells expect of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """While this lasts, the first signal is only noted, and a second one ends the process at once."""
        previous: dict[signal.Signals, Any] = {}
        for name in _NAMES:
            number = getattr(signal, name, None)
            # Under nohup, SIGHUP is ignored, and must stay so.
            if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # a live view has hidden the cursor
            with contextlib.suppress(OSError):  # a terminal that is gone
                os.write(2, b"bdpi: ended at once; what came after the last checkpoint is lost\n")
            os._exit(128 + number)
        self.signal = number
