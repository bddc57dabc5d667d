"""Server and robots are killed at any moment, and nothing is lost or doubled."""

from pathlib import Path

import pytest

from serve_kills import Killed


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.full)])
def test_kills_lose_and_double_nothing(kills: int, tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    try:
        killed.kill(kills)
    finally:
        killed.end()
    found = killed.check()
    assert found["answered"] > 10
    assert {name: found[name] for name in ("lost", "doubled", "unknown", "disordered")} == dict.fromkeys(
        ("lost", "doubled", "unknown", "disordered"), 0
    )
    assert found["answered"] <= found["stored"] <= found["answered"] + found["unanswered"]
