"""Server and robots are killed at any moment, and nothing is lost or doubled."""

from pathlib import Path

import pytest

from serve import TASK
from serve_kills import Killed


def check(killed: Killed, answered: int) -> None:
    """Whether each answered step is stored once, and each other one at most once."""
    found = killed.check()
    assert found["answered"] > answered
    assert {name: found[name] for name in ("lost", "doubled", "unknown", "disordered")} == dict.fromkeys(
        ("lost", "doubled", "unknown", "disordered"), 0
    )
    assert found["answered"] <= found["stored"] <= found["answered"] + found["unanswered"]


def test_twenty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    try:
        killed.kill(20)
    finally:
        killed.end()
    check(killed, 10)


@pytest.mark.parametrize("times", [3, pytest.param(40, marks=pytest.mark.full)])
def test_four_robots_of_full_size_lose_nothing_when_what_they_use_is_killed_and_started_again(
    times: int, tmp_path: Path
) -> None:
    """50 Hz, LunarLander's network, the default configuration: the robots of benchmarks/serve.py."""
    killed = Killed(tmp_path, robots=4, task=TASK, hertz=50)
    try:
        killed.kill(times, restarts=True)
    finally:
        killed.end()
    check(killed, 4 * times)
