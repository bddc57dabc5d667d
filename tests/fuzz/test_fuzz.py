"""Files that fuzzing has found (`python benchmarks/fuzz.py`), and small ones that would take gigabytes or minutes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import bombs
import mutations
import watched
from kinds import KINDS, packed

HERE = Path(__file__).parent
LIMIT_MB, LIMIT_SECONDS = 1024, 10.0


@pytest.mark.parametrize("n", [25, pytest.param(500, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_read(kind: str, n: int, tmp_path: Path) -> None:
    """Those that were found, and some new ones."""
    (tmp_path / "made").mkdir()
    examples = KINDS[kind].examples(tmp_path / "made")
    for example in examples:  # and PyTorch imports what it imports late, with folders of its own
        assert watched.use(kind, example, tmp_path / "use").said == ""
    rng = random.Random(n)
    cases = {case.name: case.read_bytes() for case in sorted((HERE / "corpus" / kind).glob("*.zip"))}
    cases |= {f"file {number}": mutations.mutate(rng.choice(examples), rng, change_with(rng)) for number in range(n)}
    refused = 0
    for name, data in cases.items():
        outcome = watched.use(kind, data, tmp_path / "use")
        assert not outcome.finding, f"{name}: {outcome.finding}"
        refused += bool(outcome.said)
    assert refused or kind == "results"  # a report goes on without what is damaged


def change_with(rng: random.Random) -> mutations.Bytes:
    """Other bytes, or fewer, where libFuzzer is not there to choose them."""

    def change(content: bytes, most: int) -> bytes:
        changed = bytearray(content)
        for _ in range(rng.randint(1, 8) if changed else 0):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.2 else changed)

    return change


def test_code_and_other_files_are_noticed(tmp_path: Path) -> None:
    """The watch itself: it would see what must not be."""
    seen = {}
    for name, act in {
        "code": lambda folder: subprocess.run(["true"]),
        "file": lambda folder: Path(tmp_path / "elsewhere").write_text("x"),
        "error": lambda folder: {}["x"],
        "foreign": lambda folder: int("x"),
    }.items():
        kind = KINDS["study"]
        watched.KINDS["watched"] = type(kind)(kind.make, act, (ValueError,))
        seen[name] = watched.use("watched", packed({"study.yaml": b""}), tmp_path / "use").finding
    del watched.KINDS["watched"]
    assert "subprocess.Popen" in seen["code"]
    assert "elsewhere" in seen["file"]
    assert "KeyError" in seen["error"]
    assert "ValueError" in seen["foreign"]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    "groups",
    [
        [sorted(set(bombs.BOMBS) - bombs.SLOW)],
        pytest.param([[name] for name in sorted(bombs.SLOW)], marks=pytest.mark.full),  # they leave memory behind
    ],
    ids=["quick", "slow"],
)
def test_small_files_take_neither_gigabytes_nor_minutes(groups: list[list[str]], tmp_path: Path) -> None:
    """In processes of their own, whose memory is measured."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BDPI_NUM_THREADS": "1"}
    found = []
    for number, names in enumerate(groups):
        (folder := tmp_path / f"{number}").mkdir()
        command = [sys.executable, str(HERE / "bombs.py"), str(folder), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        found += [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in found] == [name for names in groups for name in names]
    for each in found:
        assert each["size"] < 10e6, each
        assert each["peak"] <= LIMIT_MB, each
        assert each["seconds"] <= LIMIT_SECONDS, each  # of the processor
        assert not each["finding"], each
