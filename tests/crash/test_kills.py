"""Programs that are killed at any moment go on where they were, with everything that they have seen."""

import shutil
import sys
from pathlib import Path

import pytest
from kills import KILLS, killed

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux's LD_PRELOAD and a C compiler"
)
SMALL = ("robot, background", "run")


@pytest.mark.parametrize(
    ("name", "kills"),
    [(name, 6) for name in SMALL] + [pytest.param(name, 16, marks=pytest.mark.full) for name in KILLS],
)
def test_nothing_is_lost(tmp_path: Path, name: str, kills: int) -> None:
    """``benchmarks/robust.py kills`` kills 1,000 times."""
    found = killed(name, kills, tmp_path)
    assert not found["refused"], found["refused"][0]
    assert found["kills"] >= kills
    assert found["lost"] == found["different"] == 0
    if name.startswith("robot") and kills > 6:  # on a busy machine, lives are short
        assert found["transitions"] > 0
        assert found["epochs"] > 0, "it went on learning from one life to the next"
