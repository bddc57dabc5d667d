"""Server and robots are killed at any moment, and nothing is lost or doubled."""

from pathlib import Path

from serve_kills import Killed


def test_twenty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    try:
        killed.kill(20)
    finally:
        killed.end()
    found = killed.check()
    assert found["answered"] > 10
    assert {name: found[name] for name in ("lost", "doubled", "unknown", "disordered")} == dict.fromkeys(
        ("lost", "doubled", "unknown", "disordered"), 0
    )
    assert found["answered"] <= found["stored"] <= found["answered"] + found["unanswered"]
