"""The thread that answers robots is woken at once, although others learn on all cores."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys

_SLICE = 100_000  # nanoseconds, the shortest that Linux knows
_RESET_ON_FORK = 1  # threads that this one starts are as all others
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # the system call sched_setattr, which has no function in C's library


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def wake_at_once() -> None:
    """Ask for short slices of time for the calling thread. Elsewhere than on Linux from 6.12 on, nothing happens.

    A thread with longer slices, one that learns, is then interrupted when this one has something to do; otherwise, it
    goes on for 3 milliseconds first, whatever its niceness. What share of the time each gets does not change. While an
    agent learned on both cores of a machine, nine in ten sleeps of 5 ms ended at most 0.2 ms late; without this, 2.8.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _Attributes(ctypes.sizeof(_Attributes), os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, _SLICE, 0, 0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0)
