"""``bdpi train --watch``: a page that shows a run, and changes nothing about it."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import line, until
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from bdpi.agents import AGENTS
from bdpi.cli import app
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.folder import RunFolder
from bdpi.runs.logs import log_to, read_log
from bdpi.runs.train import prepare
from bdpi.serve.watch import Watch, watched

QUICK = {"n_critics": 2, "fit_steps": 2, "batch_size": 16, "learning_starts": 16, "n_threads": 1}


def plan(environment: str = "CartPole-v1", **more: Any) -> RunConfig:
    settings: dict[str, Any] = {"seed": 3, "episodes": 25, "hyperparameters": QUICK, **more}
    return RunConfig(environment=environment, **settings)


def get(address: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(f"{address}{path}", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=180) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextlib.contextmanager
def somebody_who_looks(address: str, port: int) -> Iterator[list[dict[str, Any]]]:
    """As often as possible, in two ways; what was seen."""
    seen: list[dict[str, Any]] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            seen.append(json.loads(get(address, "v1/state")[1]))

    def listen() -> None:
        with connect(f"ws://127.0.0.1:{port}/v1/live", ping_interval=None) as socket:
            while not stop.is_set():
                socket.send('{"type": "person", "command": "stop"}')
                seen.append(json.loads(socket.recv(timeout=180)))

    threads = [threading.Thread(target=work) for work in (ask, listen)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def result(folder: Path) -> tuple[Any, ...]:
    """All that a run has learned and done."""
    run = RunFolder(folder)
    agent = AGENTS["bdpi"].load(run.agent)
    parameters = {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}
    episodes = read_monitor(run.monitor)
    return parameters, agent._generator.bit_generator.state, episodes.returns, episodes.lengths


def global_generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.random(), torch.rand(1).item()  # noqa: NPY002


def test_watching_changes_no_bit(tmp_path: Path) -> None:
    found = []
    for name in ("alone", "watched"):
        random.seed(1)
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        session = prepare(plan(), tmp_path / name)
        if name == "alone":
            session.run()
        else:
            with watched(session, 0) as address:
                port = int(address.split(":")[2].strip("/"))
                with somebody_who_looks(address, port) as seen:
                    until(lambda: len(seen) > 3)
                    session.run()
            steps = [each["steps"] for each in seen if "error" not in each]
            assert steps[-1] > steps[0] == 0
            assert any(each.get("error") for each in seen)  # what a person wanted
        found.append((result(tmp_path / name), global_generators()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("environment", "more", "n_seen", "n_actions"),
    [
        ("CartPole-v1", {}, 4, 2),
        ("CartPole-v1", {"n_envs": 3}, 4, 2),
        ("CartPole-v1", {"agent": "dqn", "hyperparameters": {}}, 4, 2),
        ("CartPole-v1", {"agent": "ppo", "hyperparameters": {"n_steps": 16}}, 4, 2),
        ("FrozenLake-v1", {"agent": "tabular-bdpi", "hyperparameters": {}}, 1, 4),
        ("FrozenLake-v1", {"agent": "abcdqn"}, 1, 4),
        ("Pendulum-v1", {}, None, None),
    ],
)
def test_all_kinds_of_runs_are_shown(
    environment: str, more: dict[str, Any], n_seen: int | None, n_actions: int | None, tmp_path: Path
) -> None:
    session = prepare(plan(environment, steps=60, **{**more, "episodes": None}), tmp_path)
    watch, seen = Watch(session), []
    known = watch.describe()
    json.dumps([known, watch.state()], allow_nan=False)  # before it has begun

    def look() -> bool:
        watch.look()
        seen.append(watch.state())
        return False

    assert session.run(should_stop=look).status == "finished"
    json.dumps(seen, allow_nan=False)
    for robot in seen[-1]["robots"]:
        if n_seen is not None:
            assert len(known["observations"]) == len(robot["observation"]) == n_seen
            assert len(known["actions"]) == n_actions
            assert robot["told"]["name"] in known["actions"]
            assert len(robot["told"]["probabilities"]) in (0, n_actions)
    assert len(seen[-1]["robots"]) == session.agent.n_envs
    assert seen[-1]["steps"] >= 60
    if more.get("agent") not in ("dqn", "ppo"):
        assert line(seen[-1]["curves"], "rewards")


def test_what_critics_expect_is_shown(tmp_path: Path) -> None:
    session = prepare(plan("FrozenLake-v1", steps=150, episodes=None), tmp_path)
    log_to(session.status, ["csv"])
    watch = Watch(session)
    assert session.run().status == "finished"
    log = read_log(session.folder.progress)
    for series, logged in (("run", log.followed), ("critics expect", log.expected)):
        known = logged[np.isfinite(logged)]
        assert len(known)
        np.testing.assert_allclose(line(watch.state()["curves"], "values", series), known, rtol=1e-3)


def test_a_watched_run_on_the_command_line(tmp_path: Path) -> None:
    settings = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "bdpi.cli", "train", "CartPole-v1", "--steps", "1000000", *settings]
    command += ["--out", str(tmp_path / "run"), "--watch", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        lines = iter(run.stdout)
        (address,) = next(found.groups() for line in lines if (found := re.search(r"(http://127\.0\.0\.1:\d+/)", line)))
        port = int(address.split(":")[2].strip("/"))
        until(lambda: json.loads(get(address, "v1/state")[1])["steps"] > 5)
        assert b"<title>" in get(address, "")[1]
        assert get(address, "v1/state", {"Host": "evil.example"})[0] == 403
        assert get(address, "v1/state", {"Origin": "http://evil.example"})[0] == 403
        assert get(address, "v1/person", {"Content-Type": "application/json"}, b'{"command": "stop"}')[0] == 404
        assert get(address, "v1/state", {"Content-Type": "application/json"}, b"{}")[0] == 405
        with pytest.raises(InvalidStatus):
            connect(f"ws://127.0.0.1:{port}/v1/live", origin="http://evil.example").__enter__()  # type: ignore[arg-type]
        with connect(f"ws://127.0.0.1:{port}/v1/live") as socket:
            socket.send('{"type": "person", "command": "stop"}')
            until(lambda: "only shows" in str(socket.recv(timeout=180)))
            run.send_signal(2)
            with contextlib.suppress(ConnectionClosed):
                until(lambda: socket.recv(timeout=180) is None)
        assert "Interrupted" in "".join(lines)
        assert run.wait(180) == 130
    with pytest.raises((OSError, http.client.HTTPException)):
        get(address, "")


def test_a_page_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for options, says in (
        (["CartPole-v1", "--port", "9"], "--port is for --watch"),
        (["--offline", "none.sqlite", "--watch"], "leave --watch out"),
    ):
        outcome = CliRunner().invoke(app, ["train", *options])
        assert outcome.exit_code != 0
        assert says in " ".join(str(outcome.exception or outcome.output).split()) + outcome.output


def test_the_page_of_a_finished_run_is_one_file_with_what_was_watched(tmp_path: Path) -> None:
    settings = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "FrozenLake-v1", "--steps", "150", *settings, "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, [*command, "--watch", "--port", "0"]).exit_code == 0
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    page = (tmp_path / "run" / "report" / "index.html").read_text("utf-8")
    _, learning = json.loads(page.split('id="data">')[1].split("</script>")[0])["rows"]
    for panel, series in (("entropy", "run"), ("disagreement", "run"), ("values", "run"), ("values", "critics expect")):
        assert line(learning, panel, series)
    named = re.findall(r"""(?:src|href)=["']([^"']*)""", page)
    assert [each for each in named if not each.startswith(("#", "data:"))] == []
    assert "data:image/gif;base64," in page
    assert not re.search(r"@import|url\(['\"]?http|fetch\(|XMLHttpRequest|WebSocket", page)
