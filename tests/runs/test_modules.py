"""Environments of a module of one's own, in the current folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOM = """
import gymnasium as gym
from neighbour import CartPole

gym.register("Room-v0", entry_point="my_room:CartPole", max_episode_steps=20)
"""


def bdpi(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("bdpi")  # which has its own folder on the path, not the current one
    return subprocess.run([script, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_room.py").write_text(ROOM)
    (tmp_path / "neighbour.py").write_text(
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv as CartPole"
    )
    return tmp_path


def test_it_is_found_with_its_neighbours(folder: Path) -> None:
    trained = bdpi(folder, "train", "my_room:Room-v0", "--episodes", "2", "--out", "run")
    assert trained.returncode == 0, trained.stderr
    assert (folder / "run" / "agent.zip").exists()
    (again,) = re.findall(r"^Watch it: .*bdpi (play .*)$", trained.stdout, re.MULTILINE)
    assert again.endswith(" --trust")
    played = bdpi(folder, *again.split(), "--episodes", "1")
    assert played.returncode == 0, played.stderr


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ("my_room:Attic-v0", "no environment Attic-v0: it registers Room-v0"),
        ("my_rom:Room-v0", "neither my_rom.py in the current folder"),
        ("broken:Room-v0", "broken cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, environment: str, error: str) -> None:
    (folder / "broken.py").write_text("1 / 0")
    trained = bdpi(folder, "train", environment, "--episodes", "2")
    assert trained.returncode != 0
    assert error in " ".join(trained.stderr.split())
    assert "Traceback" not in trained.stderr


def test_a_name_that_files_may_use_is_not_looked_for_here(folder: Path) -> None:
    """ale_py, which is not installed for tests, could be named by the file of a stranger who brings an ale_py.py."""
    (folder / "ale_py.py").write_text("from pathlib import Path; Path('run').touch()")
    assert bdpi(folder, "train", "ale_py:ALE/Pong-v5", "--episodes", "2").returncode != 0
    assert not (folder / "run").exists()
