"""After a power failure at any moment, what was said to be safe is there, and everything can go on."""

import shutil
import sys
from pathlib import Path

import pytest
from scenarios import SCENARIOS

from disk import MODELS, fail, record

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux's LD_PRELOAD and a C compiler"
)


@pytest.mark.parametrize("n", [8, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_that_was_safe_is_lost(tmp_path: Path, name: str, n: int) -> None:
    """``benchmarks/robust.py power`` tries 2,000 states of each."""
    _, check, rounds, _ = SCENARIOS[name]
    root = tmp_path / "root"
    records = record(name, rounds, root, tmp_path)
    assert len(records) > n
    for model in MODELS:
        tally = fail(records, root, model, tmp_path, n, check)
        assert tally.states == n
        assert not tally.lost, (model, tally.lost)
        assert not tally.refused, (model, tally.refused)
