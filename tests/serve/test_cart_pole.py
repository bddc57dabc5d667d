"""The robots in C and JavaScript that come with the clients: what they did is in the journal, and is CartPole."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml
from serving import Server, running, until

from bdpi.agents.journal import Journal

CLIENTS = Path(__file__).parents[2] / "clients"


def robot_in(language: str, folder: Path) -> list[str]:
    """The command of a robot."""
    needed = {"c": "cc", "javascript": "node"}[language]
    if shutil.which(needed) is None:
        pytest.skip(f"needs {needed}")
    if language == "javascript":
        return ["node", str(CLIENTS / "javascript" / "cart_pole.mjs")]
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{CLIENTS / 'c'}"]
    program = folder / "cart_pole"
    subprocess.run(["cc", *flags, str(CLIENTS / "c" / "cart_pole.c"), "-lm", "-o", str(program)], check=True)
    return [str(program)]


@pytest.mark.parametrize("language", ["c", "javascript"])
def test_a_robot_balances_a_pole(language: str, tmp_path: Path) -> None:
    robot = robot_in(language, tmp_path)
    with running(tmp_path, **yaml.safe_load((CLIENTS / "cart_pole.yaml").read_text())) as server:
        done = subprocess.run([*robot, str(server.port), "4", "0"], stdout=subprocess.PIPE, text=True)
        assert done.returncode == 3  # it has not learned in four episodes
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        steps = list(journal.steps())
    ends = np.flatnonzero([step.terminated or step.truncated for step in steps]) + 1
    assert np.diff([0, *ends]).tolist() == [int(line) for line in done.stdout.split()]
    assert len(ends) == 4
    assert ends[-1] == len(steps)
    for step in steps:
        env = gym.make("CartPole-v1").unwrapped
        env.reset()
        env.state = step.observation.astype(np.float64)  # type: ignore[attr-defined]
        after, reward, terminated, _, _ = env.step(step.action)
        np.testing.assert_allclose(step.next_observation, after, rtol=1e-5, atol=1e-6)
        assert (step.reward, step.terminated) == (reward, terminated)


@pytest.mark.parametrize("language", ["c", "javascript"])
def test_a_robot_stands_still_while_it_is_stopped(language: str, tmp_path: Path) -> None:
    robot = robot_in(language, tmp_path)
    with running(tmp_path, **yaml.safe_load((CLIENTS / "cart_pole.yaml").read_text())) as server:
        assert server.send("/v1/person", {"command": "stop"})[0] == 200
        with subprocess.Popen([*robot, str(server.port), "2", "0"], stdout=subprocess.DEVNULL) as running_robot:
            asked = [until(lambda: told(server))]
            while len(asked) < 4:  # it asks again and again
                asked.append(until(lambda: (seq := told(server)) > asked[-1] and seq))
            assert server.send("/v1/state")[1]["steps"] == 0
            server.send("/v1/person", {"command": "clear"})
            assert running_robot.wait(60) == 3
        assert server.send("/v1/state")[1]["steps"] > 0


def told(server: Server) -> int:
    """Number of the last request of the only robot, which was told to stop; 0: none."""
    robots = [robot["told"] for robot in server.send("/v1/state")[1]["robots"] if robot["told"] is not None]
    assert {each["status"] for each in robots} <= {"stopped"}
    return robots[0]["seq"] if robots else 0
