"""Robots in C and in JavaScript, against a real server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from serving import running

from bdpi.agents.journal import Journal

CLIENTS = Path(__file__).parents[2] / "clients"
LAMP = """
import { Robot } from "%s";
const robot = new Robot(`http://127.0.0.1:${process.argv[2]}`, "js");
let step = 0;
while (step < 30) {
  await robot.begin();
  let answer = await robot.act([0, 0]);
  while (answer.status !== "ended") {
    answer = await robot.step(answer.action, step, [0, answer.action], false, step %% 10 === 9);
    step++;
  }
}
let message = "";
await robot.act([0]).catch((error) => { message = error.message; });
process.exit(message.includes("has 1 numbers") ? 0 : 4);
"""


def test_robots_in_c_and_javascript_learn(tmp_path: Path) -> None:
    compiler, node = shutil.which("cc"), shutil.which("node")
    if compiler is None or node is None:
        pytest.skip("needs a C compiler and Node.js")
    program = tmp_path / "lamp"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{CLIENTS / 'c'}"]
    subprocess.run([compiler, *flags, str(Path(__file__).parent / "lamp.c"), "-o", str(program)], check=True)
    script = tmp_path / "lamp.mjs"
    script.write_text(LAMP % (CLIENTS / "javascript" / "bdpi_robot.mjs").as_uri())
    with running(tmp_path) as server:
        assert subprocess.run([str(program), str(server.port)], timeout=180).returncode == 0
        assert subprocess.run([node, str(script), str(server.port)], timeout=180).returncode == 0
        assert server.send("/v1/state")[1]["policy_version"] > 0
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        steps = list(journal.steps())
    for robot in (0, 1):
        assert [step.reward for step in steps if step.environment == robot] == list(range(30))
