"""No version with a known hole is allowed."""

import re
from pathlib import Path

import pytest

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("torch", (2, 6)),  # CVE-2025-32434: torch.load runs code in spite of weights_only
        ("pyarrow", (14, 0, 1)),  # CVE-2023-47248: reading Parquet runs code
    ],
)
def test_versions_with_known_holes_are_not_allowed(name: str, floor: tuple[int, ...]) -> None:
    found = re.search(rf'"{name}>=([\d.]+)"', PROJECT)
    assert found is not None
    assert tuple(map(int, found[1].split("."))) >= floor
