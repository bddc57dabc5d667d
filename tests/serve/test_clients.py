"""Robots in C and in JavaScript, against a real server."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from serving import png, running

from bdpi.agents.journal import Journal

CLIENTS = Path(__file__).parents[2] / "clients"
LAMP = """
import { Robot } from "%s";
const picture = "%s";
const robot = new Robot(`http://127.0.0.1:${process.argv[2]}`, "js");
let step = 0;
while (step < 30) {
  await robot.begin();
  let answer = await robot.act([0, 0], null, picture);
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
    picture = base64.b64encode(png(3, 2)).decode()
    script.write_text(LAMP % ((CLIENTS / "javascript" / "bdpi_robot.mjs").as_uri(), picture))
    with running(tmp_path) as server:
        assert subprocess.run([str(program), str(server.port)], timeout=180).returncode == 0
        assert subprocess.run([node, str(script), str(server.port)], timeout=180).returncode == 0
        _, state = server.send("/v1/state")
        assert state["policy_version"] > 0
        sizes = {}
        for robot in state["robots"]:
            content = base64.b64decode(robot["picture"].removeprefix("data:image/png;base64,"))
            sizes[robot["name"]] = Image.open(io.BytesIO(content)).size
        assert sizes == {"c": (2, 3), "js": (3, 2)}
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        steps = list(journal.steps())
    for robot in (0, 1):
        assert [step.reward for step in steps if step.environment == robot] == list(range(30))
