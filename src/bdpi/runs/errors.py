"""The error that is meant for the person at the keyboard, not for a debugger."""

import errno
import re

from bdpi.storage.reading import printable

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LONGEST = 10_000  # characters; a name in a file may have millions
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class RunError(Exception):
    """Something that the user can put right. The message is one line: what was wrong, which value, what to do."""

    def __init__(self, message: object) -> None:
        super().__init__(f"{printable(str(message)):.{_LONGEST}}")


class Busy(RunError):
    """Another process works on the run."""


def one_line(message: object) -> str:
    """The message without line breaks, terminal colours (Gymnasium paints its warnings) and control characters."""
    return printable(" ".join(_COLOURS.sub("", str(message)).split()))


def named(error: BaseException) -> str:
    """An unexpected exception in one line, with its type: some messages, such as a KeyError's, say nothing alone."""
    return one_line(f"{type(error).__name__}: {error}") if str(error) else type(error).__name__


def lacks_space(error: BaseException | None) -> bool:
    """Whether an exception, or one that it came from, says that a disk, a quota or a file is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False
