"""Short slices of time: asked for where they exist, and harmless elsewhere."""

import os
import platform
import sys
import threading
import time

import pytest

from bdpi.serve.waking import wake_at_once

_RESET = 0x40000000  # Linux: threads that this one starts are as all others


def test_a_thread_stays_as_nice_as_it_was_and_others_are_not_touched() -> None:
    found = {}

    def work(name: str) -> None:
        if name == "short":
            wake_at_once()
        if sys.platform == "linux":
            found[name] = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) & ~_RESET

    for name in ("short", "other"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    assert len(set(found.values())) <= 1


@pytest.mark.parametrize("machine", ["riscv64", "x86_64"])
def test_elsewhere_nothing_happens(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", "darwin" if machine == "x86_64" else sys.platform)
    start = time.monotonic()
    wake_at_once()
    assert time.monotonic() - start < 10
