"""``bdpi doctor``: what is installed."""

from __future__ import annotations

from bdpi.commands.console import say


def doctor() -> None:
    """Show versions, the native learner, the instruction set, threads, CUDA: what a bug report should contain."""
    from bdpi.runs.doctor import findings

    found = findings()
    width = max(len(name) for name, _ in found)
    for name, value in found:
        say(f"{name:<{width}}  {value}")
