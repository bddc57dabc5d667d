"""What docs/serve.md shows is run as it is printed, but for ports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import running

from bdpi.agents.journal import Journal

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "serve.md").read_text()


def block(language: str, holds: str) -> str:
    (found,) = (each for each in re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL) if holds in each)
    return str(found)


def test_the_client_in_ten_lines(tmp_path: Path) -> None:
    left = iter(range(50))

    def switch(action: int) -> tuple[float, list[int], bool]:
        return float(action), [0, action], next(left) % 10 == 9  # ends the loop after 50 steps

    code = block("python", "from bdpi_robot")
    with running(tmp_path) as server:
        given: dict[str, Any] = {"sensors": lambda: [0, 0], "switch": switch}
        with pytest.raises(StopIteration):
            exec(compile(code.replace("8088", str(server.port)), "serve.md", "exec"), given)
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        assert [step.truncated for step in journal.steps()] == 5 * [*[False] * 9, True]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_three_requests(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        code = block("sh", "post()").replace("8088", str(server.port)).replace('-d "$2"', '-d "$2"; echo')
        done = subprocess.run(["sh", "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["seq"] for answer in answers] == [1, 2, 3]
    assert (answers[1]["status"], answers[2]["stored"]) == ("policy", 1)


def test_the_other_way_round() -> None:
    code = block("python", "agent.learn").replace("10_000", "300")
    given: dict[str, Any] = {}
    command = [sys.executable, "-m", "bdpi.envs.remote", "CartPole-v1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as robot:
        try:
            assert robot.stdout is not None
            address = robot.stdout.readline().removeprefix("Listening: ").strip()
            exec(compile(code.replace("http://192.168.0.7:8089", address), "serve.md", "exec"), given)
        finally:
            robot.terminate()
    assert given["agent"].num_timesteps == 300
