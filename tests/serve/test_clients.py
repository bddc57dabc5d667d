"""Robots in C and in JavaScript, against a real server."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import io
import itertools
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from bdpi_robot import Robot, episodes
from PIL import Image
from serving import png, running

from bdpi.agents.journal import Journal

sys.path.append(str(Path(__file__).parents[1] / "report"))
from browser import NAMES, Browser, find_chromium

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


WAITS = {
    "c": """
#define _POSIX_C_SOURCE 200112L
#include "bdpi_robot.h"
int main(int n, char **words) {
    bdpi_robot robot;
    bdpi_open(&robot, "127.0.0.1", n > 1 ? words[1] : "", "c", "");
    robot.patience = 1;
    return bdpi_begin(&robot) == BDPI_LOST && strstr(robot.text, "no answer from 127.0.0.1") ? 0 : 1;
}
""",
    "mjs": """
import { Robot } from "%s";
const robot = new Robot(`http://127.0.0.1:${process.argv[2]}`, "js", "", 1);
await robot.begin().then(() => process.exit(1), () => process.exit(0));
""",
    "py": """
import sys
from bdpi_robot import Robot
try:
    Robot("127.0.0.1", int(sys.argv[1]), patience=1).begin()
except OSError:
    raise SystemExit(0)
raise SystemExit(1)
""",
}


@pytest.mark.parametrize("language", WAITS)
def test_a_robot_gives_up_on_a_server_that_is_silent(tmp_path: Path, language: str) -> None:
    """One that accepts connections and says nothing."""
    program = tmp_path / f"wait.{language}"
    program.write_text(WAITS[language].replace("%s", (CLIENTS / "javascript" / "bdpi_robot.mjs").as_uri()))
    tools = {"c": shutil.which("cc"), "mjs": shutil.which("node"), "py": sys.executable}
    tool = tools[language]
    if tool is None:
        pytest.skip("needs a C compiler and Node.js")
    command = [tool, str(program)]
    if language == "c":
        command = [str(tmp_path / "wait")]
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{CLIENTS / 'c'}"]
        subprocess.run([tool, *flags, str(program), "-o", *command], check=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = subprocess.run(
            [*command, str(silent.getsockname()[1])],
            env={**os.environ, "PYTHONPATH": str(CLIENTS / "python")},
            timeout=60,
        )
    assert asked.returncode == 0


@pytest.mark.skipif(find_chromium() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")
def test_a_robot_in_a_browser_learns(tmp_path: Path) -> None:
    """In a page from elsewhere, which the server was told of; not in another one."""
    pages = tmp_path / "pages"
    pages.mkdir()
    shutil.copy(CLIENTS / "javascript" / "bdpi_robot.mjs", pages)
    (pages / "index.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(pages))
    loop = """(async () => {
      const { Robot } = await import("./bdpi_robot.mjs");
      const robot = new Robot("http://127.0.0.1:%d", "browser", "%s", 1);
      await robot.begin();
      let answer = await robot.act([0, 0]);
      for (let step = 0; answer.status !== "ended"; step++)
        answer = await robot.step(answer.action, step, [0, answer.action], false, step === 29);
      return answer.stored;
    })()"""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site, contextlib.closing(Browser()) as browser:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        own, other = (f"http://{name}:{site.server_port}" for name in ("127.0.0.1", "localhost"))
        with running(tmp_path, origins=[own], host="127.1") as server:
            browser.open(f"{own}/")
            assert browser.run(loop % (server.port, server.token)) == 30
            address, offered = f"ws://127.0.0.1:{server.port}/v1/ws", ["bdpi", f"token.{server.token}"]
            opened = f"new Promise((done) => {{ new WebSocket('{address}', {offered}).onopen = () => done(true); }})"
            assert browser.run(opened)
            assert browser.problems == []
            browser.open(f"{other}/")
            with pytest.raises(AssertionError, match="Failed to fetch"):
                browser.run(loop % (server.port, server.token))
        site.shutdown()
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        assert [step.reward for step in journal.steps()] == list(range(30))


def test_the_lamp_of_the_tutorial_is_on_at_night_in_the_end(tmp_path: Path) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    program, task = tmp_path / "lamp", yaml.safe_load((CLIENTS / "lamp.yaml").read_text())
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{CLIENTS / 'c'}"]
    subprocess.run([compiler, *flags, str(CLIENTS / "c" / "lamp.c"), "-o", str(program)], check=True)
    with running(tmp_path, **{**task, "hyperparameters": {}, "policy_kwargs": {}}) as server:
        done = subprocess.run([program, str(server.port)], stdout=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stdout[:10]) == (0, "learned in")


def test_an_environment_of_gymnasium_is_a_robot(tmp_path: Path) -> None:
    task = yaml.safe_load((CLIENTS / "cart_pole.yaml").read_text())
    with running(tmp_path, **task) as server:
        returns = [*itertools.islice(episodes(gym.make("CartPole-v1"), Robot(port=server.port, name="gym")), 3)]
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        steps = list(journal.steps())
    assert len(steps) == sum(returns)
    assert sum(step.terminated or step.truncated for step in steps) == 3
