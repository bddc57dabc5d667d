"""What must not work: each attempt with its answer. The server answers its robot afterwards."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import TASK, Server, running, until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from bdpi.runs.errors import RunError
from bdpi.serve.guard import LARGEST
from bdpi.serve.listen import reachable, serve
from bdpi.serve.task import RobotTask

CONNECTIONS = 64
ACT = {"seq": 1, "observation": [0, 1]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("attacked"), patience=600.0, limits={"connections": CONNECTIONS})
    yield made
    assert made.process.poll() is None
    assert made.send("/v1/state")[1]["steps"] == 0  # nothing of all this was stored
    made.stop()


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "field"),
    [
        ("/v1/act", ACT, {"Origin": "http://evil.example"}, 403, "Origin"),
        ("/v1/act", ACT, {"Origin": "null"}, 403, "Origin"),
        ("/v1/act", ACT, {"Origin": "http://["}, 403, "Origin"),
        ("/v1/act", ACT, {"Host": "["}, 403, "Host"),
        ("/v1/act", ACT, {"Host": "evil.example"}, 403, "Host"),  # a name that was made to lead here
        ("/v1/state", None, {"Host": "evil.example:8088"}, 403, "Host"),
        ("/v1/act", ACT, {"Content-Type": "text/plain"}, 415, "Content-Type"),  # what forms of other sites can send
        ("/v1/act", b"x" * (LARGEST + 1), {}, 413, "body"),
        ("/v1/act", b'{"seq": 1, "observation": [0, NaN]}', {}, 422, "observation.1"),
        ("/v1/act", b'{"seq": 1, "observation": [0, 1e999]}', {}, 422, "observation.1"),
        ("/v1/act", {"seq": 1, "observation": [0, 1e300]}, {}, 422, "observation"),
        ("/v1/act", {"seq": 1, "observation": [0]}, {}, 422, "observation"),
        ("/v1/act", {"seq": 1, "observation": [[0, 1]]}, {}, 422, "observation.0"),
        ("/v1/act", {"seq": 1, "observation": [0, "1; import os"]}, {}, 422, "observation.1"),
        ("/v1/act", {"seq": 1, "observation": [0, 1], "mask": [1]}, {}, 422, "mask"),
        ("/v1/act", {"seq": True, "observation": [0, 1]}, {}, 422, "seq"),
        ("/v1/act", {"seq": 1, "observation": [0, 1], "file": "/etc/passwd"}, {}, 422, "file"),
        ("/v1/act", {"robot": "../../etc", **ACT}, {}, 422, "robot"),
        ("/v1/act", {"robot": "<script>", **ACT}, {}, 422, "robot"),
        ("/v1/observe", {"seq": 1, "executed_action": 0, "reward": 0, "next_observation": [0, 0]}, {}, 409, "seq"),
        ("/v1/person", {"command": "drive", "robot": "robot", "action": 7}, {}, 422, "action"),
        ("/v1/person", {"command": "eval"}, {}, 422, "command"),
        ("/v1/act", b"[" * 50_000, {}, 400, "body"),
        ("/v1/act", b'{"seq": 1, "observation": [0, nan]}', {}, 400, "body"),
        ("/v1/act", None, {}, 405, "path"),
        ("/v1/nothing", {}, {}, 404, "path"),
    ],
)
def test_is_refused(server: Server, path: str, body: Any, headers: dict[str, str], status: int, field: str) -> None:
    found, answer = server.send(path, body, headers)
    assert found == status
    assert answer["field"] == field
    assert answer.keys() == {"error", "field"}


@pytest.mark.parametrize("path", ["/../task.json", "/v1/../../etc/passwd", "/%2e%2e/agent.zip", "/templates/live.js"])
def test_no_file_is_served(server: Server, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=180)
    connection.request("GET", path)
    assert connection.getresponse().status == 404


def test_a_web_socket_of_another_site_is_refused(server: Server) -> None:
    for path in ("/v1/ws", "/v1/live"):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{server.port}{path}", origin="http://evil.example").__enter__()  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "origin", ["*", "null", "localhost:8000", "http://localhost:8000/", "http://", "http://[", "ftp://a"]
)
def test_only_pages_with_an_address_are_let_in(origin: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--origin is"):
        serve(RobotTask.model_validate(TASK), tmp_path / "run", "127.0.0.1", 0, print, origins=[origin])
    assert not (tmp_path / "run").exists()


def test_the_address_that_is_shown_can_be_opened() -> None:
    assert reachable("127.0.0.1") == "127.0.0.1"
    assert reachable("robot.local") == "robot.local"
    for host in ("0.0.0.0", "::"):
        assert reachable(host) not in (host, "")


def test_requests_that_do_not_come_are_given_up(tmp_path: Path) -> None:
    head = b"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    with running(tmp_path, patience=3.0) as server, contextlib.ExitStack() as opened:
        waiting = []
        for beginning, status in ((b"", b""), (head, b""), (head + b"\r\n{", b"408")):
            slow = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=180))
            slow.sendall(beginning)
            waiting.append((slow, status))
        for slow, status in waiting:
            assert status in slow.recv(1000)[:20]


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def answers(server: Server) -> bool:
    try:
        return server.send("/v1/state")[0] == 200
    except OSError:
        return False


def test_connections_are_bounded(server: Server) -> None:
    opened = [socket.create_connection(("127.0.0.1", server.port), timeout=180) for _ in range(300)]
    try:
        for each in opened:
            each.settimeout(0.001)
        until(lambda: sum(map(is_closed, opened)) >= 300 - CONNECTIONS)
    finally:
        for each in opened:
            each.close()
    until(lambda: answers(server))


def test_robots_and_their_requests_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path, limits={"robots": 2, "requests_per_second": 1}) as server:
        for name in ("robot", "second"):
            server.send("/v1/act", {**ACT, "robot": name})
        assert server.send("/v1/act", {**ACT, "robot": "third"})[0] == 403
        for status in (429, 200):  # two within a second; later, one again
            until(lambda status=status: server.send("/v1/episodes", {"robot": "second"})[0] == status)


def test_less_than_a_request_a_second_may_be_allowed(tmp_path: Path) -> None:
    with running(tmp_path, limits={"requests_per_second": 0.5}) as server:
        assert [server.send("/v1/episodes", {})[0] for _ in range(2)] == [200, 429]
        until(lambda: server.send("/v1/episodes", {})[0] == 200)


def test_where_others_listen_a_token_is_needed() -> None:
    """Of the guard alone: the tests listen on loopback only."""
    import asyncio

    from bdpi.serve.guard import Guard

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def status(path: str, token: str | None) -> int:
        sent: list[dict[str, Any]] = []
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
        asyncio.run(Guard(app, "secret", 1.0)(scope, receive, send))
        return int(sent[0]["status"])

    assert [status("/v1/state", token) for token in (None, "", "wrong", "secret")] == [401, 401, 401, 200]
    assert status("/", None) == 200  # the page has nothing in it
