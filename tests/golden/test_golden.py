"""Same seed, same bits: what users get is what golden.json says, whatever is rebuilt inside.

record.py says when golden.json may be written anew.
"""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bdpi.learner import native
from bdpi.runs import versions
from golden_cases import CASES, learning, play

STORED: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text())

pytestmark = [
    pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="rounding depends on the processor"),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="PyTorch rounds first weights by AVX2's FMA"
    ),
]


def check(found: Any, stored: Any, where: str) -> None:
    """Equal, but for ``numbers``: within 1e-5, and Adam's moments, which are small, within 2e-4 of their size."""
    if where.endswith("/numbers"):
        assert found.keys() == stored.keys(), where
        for name, (projection, size) in stored.items():
            allowed = min(1e-5, 2e-4 * size) if "moment" in name else 1e-5
            np.testing.assert_allclose(found[name], [projection, size], rtol=1e-6, atol=allowed, err_msg=name)
    elif isinstance(stored, dict) and isinstance(found, dict):
        assert found.keys() == stored.keys(), where
        for name, value in stored.items():
            check(found[name], value, f"{where}/{name}")
    else:
        assert found == stored, where


def test_every_case_is_recorded() -> None:
    assert list(CASES) == list(STORED)


def test_runs_say_what_made_them_learn() -> None:
    assert learning(STORED) == versions.LEARNING


@pytest.mark.parametrize("name", CASES)
def test_users_get_what_they_always_got(name: str, tmp_path: Path) -> None:
    check(play(name, tmp_path), STORED[name], name)
