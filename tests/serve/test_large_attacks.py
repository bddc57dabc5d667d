"""What must not work, at its full size; each attack has a smaller one in ``make test``. Only loopback is used."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bdpi_robot import Robot
from serving import Server, running, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from bdpi.agents.journal import Journal
from bdpi.serve.guard import LARGEST

SIZES = [8 << 20, pytest.param(1 << 30, marks=pytest.mark.full)]
_HEAD = b"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_MOST_MEMORY = 64 << 20  # bytes that a server may need more


def memory_of(server: Server) -> int:
    """The most that the server's process has had."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("needs Linux")
    (line,) = (each for each in status.read_text().splitlines() if each.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


@contextlib.contextmanager
def robot_that_goes_on(server: Server) -> Iterator[list[float]]:
    """It is answered all the time; how long it waited for each answer."""
    robot, waited, stop = Robot(port=server.port, name="honest", patience=10), [], threading.Event()
    robot.begin()
    robot.act([0, 0])

    def work() -> None:
        while not stop.wait(0.02):
            start = time.monotonic()
            robot.step(0, 1.0, [0, 0])
            waited.append(time.monotonic() - start)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield waited
    finally:
        done = len(waited)
        until(lambda: len(waited) > done)  # afterwards, too
        stop.set()
        thread.join()
        robot.close()


def pour(connection: socket.socket, size: int, chunked: bool) -> bytes:
    """Send a body until the server takes no more; what was answered."""
    block = b"x" * (1 << 20)
    with contextlib.suppress(OSError):
        for _ in range(size // len(block)):
            connection.sendall(b"100000\r\n" + block + b"\r\n" if chunked else block)
    answer = b""
    with contextlib.suppress(OSError):
        while found := connection.recv(4096):
            answer += found
    return answer


@pytest.mark.parametrize("size", SIZES)
def test_large_bodies_are_cut_off(size: int, tmp_path: Path) -> None:
    """Whether they say their size or not; on a WebSocket, too."""
    with running(tmp_path, patience=600.0) as server, robot_that_goes_on(server):
        before = memory_of(server)
        heads = {False: b"Content-Length: %d\r\n\r\n" % size, True: b"Transfer-Encoding: chunked\r\n\r\n"}
        for chunked, head in heads.items():
            for _ in range(4):
                with socket.create_connection(("127.0.0.1", server.port), timeout=180) as connection:
                    connection.sendall(_HEAD + head + (b"" if chunked else b"{"))
                    answer = pour(connection, size, chunked)
                    assert answer == b"" or b" 413 " in answer[:20]  # empty: it was closed while we sent
        with connect(f"ws://127.0.0.1:{server.port}/v1/ws", max_size=None) as ws:
            with contextlib.suppress(ConnectionClosed):
                ws.send(b"x" * (1 << 20) for _ in range(size >> 20))
            with pytest.raises(ConnectionClosed):
                ws.recv(timeout=180)
        assert memory_of(server) - before < _MOST_MEMORY


@pytest.mark.parametrize(("number", "patience"), [(20, 2.0), pytest.param(200, 10.0, marks=pytest.mark.full)])
def test_slow_requests_end_in_time_and_nobody_waits_for_them(number: int, patience: float, tmp_path: Path) -> None:
    """A byte now and then, of the head or of the body."""
    with running(tmp_path, patience=patience) as server, robot_that_goes_on(server) as waited:
        body = _HEAD + b"Content-Length: 1000\r\n\r\n"
        slow = [socket.create_connection(("127.0.0.1", server.port), timeout=180) for _ in range(number)]
        for each, part in zip(slow, [b"POST /v1/act HTT", body] * number, strict=False):
            each.sendall(part)
        end = time.monotonic() + 3 * patience + 30
        left = set(slow)
        while left and time.monotonic() < end:
            time.sleep(0.2)
            for each in tuple(left):
                try:
                    each.sendall(b"x")
                except OSError:
                    left.discard(each)
        for each in slow:
            each.close()
        assert not left
        assert len(waited) > 20
        assert max(waited) < patience


@pytest.mark.parametrize("number", [20, pytest.param(200, marks=pytest.mark.full)])
def test_clients_that_do_not_read_cost_little(number: int, tmp_path: Path) -> None:
    with running(tmp_path) as server, robot_that_goes_on(server) as waited:
        before = memory_of(server)
        page = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200
        deaf = [socket.create_connection(("127.0.0.1", server.port), timeout=180) for _ in range(number)]
        for each in deaf:
            each.settimeout(0.01)
            with contextlib.suppress(OSError):
                each.sendall(page)
        done = len(waited)
        until(lambda: len(waited) > done + 100)
        assert memory_of(server) - before < _MOST_MEMORY + number * (1 << 20)
        for each in deaf:
            each.close()


@pytest.mark.full
def test_ten_thousand_connections(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 500), hard))
    opened: list[socket.socket] = []
    try:
        with running(tmp_path, limits={"connections": 64}) as server:
            before = memory_of(server)
            with robot_that_goes_on(server) as waited:
                for _ in range(number):
                    opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=180))
                files = Path(f"/proc/{server.process.pid}/fd")
                until(lambda: len(list(files.iterdir())) < 64 + 100)
                for each in opened:
                    each.close()
            assert len(waited) > 10
            assert memory_of(server) - before < _MOST_MEMORY
            until(lambda: server.send("/v1/state")[0] == 200)
    finally:
        for each in opened:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


VALUES: list[Any] = [
    *(
        None,
        True,
        -1,
        0.5,
        2**63,
        10**400,
        "",
        "1",
        "x" * 100_000,
        [],
        {},
        [[0, 1]],
        [0, 1, 2],
        [0],
        [None, 1],
        ["0", "1"],
    ),
    *(float("nan"), float("inf"), -float("inf"), [float("nan"), 0], [1e300, 0], [float("inf"), 0]),
    *("../../etc/passwd", "..\\..\\x", "/etc/passwd", "C:\\x", "a/b", "a%2fb", "..", ".hidden", "a\0b", "a\nb"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;", "'; DROP TABLE robots; --", "\u202eevil"),
    *("${7*7}", "{{7*7}}", "__import__('os').system('true')", "javascript:alert(1)", {"__class__": "os"}),
]
WHOLE: dict[str, dict[str, Any]] = {
    "episodes": {"robot": "r", "seq": 1},
    "act": {"robot": "r", "seq": 1, "observation": [0, 1], "mask": [1, 1], "picture": ""},
    "observe": {"robot": "r", "seq": 1, "executed_action": 0, "reward": 0.0, "next_observation": [0, 1]},
    "step": {"robot": "r", "seq": 1, "executed_action": 0, "reward": 0.0, "next_observation": [0, 1]},
    "person": {"robot": "r", "command": "drive", "action": 0},
}
for _each in ("observe", "step"):
    WHOLE[_each] |= {"terminated": False, "truncated": False, "next_mask": [1, 1]}


@pytest.mark.full
def test_no_value_in_any_field_is_stored_or_breaks_anything(tmp_path: Path) -> None:
    """Over HTTP and over a WebSocket: an error of the client each time, which names the field."""
    with running(tmp_path, limits={"robots": 1000}) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=180)
        files = {path.name for path in tmp_path.rglob("*")}
        with connect(f"ws://127.0.0.1:{server.port}/v1/ws") as ws:
            for kind, whole in WHOLE.items():
                for field in [*whole, "another"]:
                    for value in VALUES:
                        body = {**whole, field: value}
                        text = json.dumps(body)
                        connection.request("POST", f"/v1/{kind}", text, {"Content-Type": "application/json"})
                        response = connection.getresponse()
                        answer = json.loads(response.read())
                        ws.send(json.dumps({"type": kind, **body}))
                        again = json.loads(ws.recv(timeout=180))
                        if response.status != 200:
                            assert 400 <= response.status < 500, (kind, field, value, answer)
                            assert len(answer["error"]) < 2000
                            assert "error" in again
        _, state = server.send("/v1/state")
        assert state["steps"] == 0
        assert {robot["name"] for robot in state["robots"]} <= {"r", "robot", "1"}
        assert {path.name for path in tmp_path.rglob("*")} - files <= {"agent.zip"}
        assert state["stopped"] is state["paused"] is False


def scramble(robot: Robot, port: int, seed: int, seen: list[int]) -> None:
    """What a bad network does to the requests of a robot: they come twice, too late, and cut off."""
    generator, old, send = random.Random(seed), [], robot._post

    def raw(kind: str, text: bytes, cut: int | None) -> int | None:
        head = b"POST /v1/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" % kind.encode()
        whole = head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
        with socket.create_connection(("127.0.0.1", port), timeout=180) as connection:
            connection.sendall(whole[:cut])
            if cut is not None:
                return None
            return int(connection.recv(100).split()[1])

    def post(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(body).encode()
        if "seq" in body:
            if generator.random() < 0.3:
                raw(kind, text, generator.randrange(1, 100 + len(text)))
            if generator.random() < 0.3:  # twice at the same time, and the client's own as the third
                threads = [threading.Thread(target=raw, args=(kind, text, None)) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        answer = send(kind, body)
        if "seq" in body and generator.random() < 0.3:
            assert raw(kind, text, None) == 200  # answered again
        if old and generator.random() < 0.3:
            seen.append(raw(*generator.choice(old), None) or 0)
        old.append((kind, text))
        del old[:-20]
        if "seq" in body and old[:-1] and generator.random() < 0.3:
            assert raw(*old[-2], None) in (
                (200, 409) if old[-2] == old[-1] else (409,) if b"seq" in old[-2][1] else (200,)
            )
        return answer

    robot._post = post  # type: ignore[method-assign]


@pytest.mark.parametrize(("robots", "steps"), [(2, 40), pytest.param(4, 1000, marks=pytest.mark.full)])
def test_duplicated_reordered_and_truncated_requests_are_stored_once(robots: int, steps: int, tmp_path: Path) -> None:
    seen: list[int] = []

    def drive(number: int, port: int) -> None:
        robot = Robot(port=port, name=f"r{number}")
        robot.begin()
        scramble(robot, port, number, seen)
        answer = robot.act([0, 0])
        for step in range(steps):
            answer = robot.step(answer["action"], float(step), [step % 2, answer["action"]])

    with running(tmp_path) as server:
        threads = [threading.Thread(target=drive, args=(number, server.port)) for number in range(robots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(seen) <= {200, 409}
    assert 409 in seen  # a late one is refused
    stored: dict[int, list[float]] = {number: [] for number in range(robots)}
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        for step in journal.steps():
            stored[step.environment].append(step.reward)
    assert list(stored.values()) == [[float(step) for step in range(steps)]] * robots


def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    """A server that listens to others, by a name of loopback that is not known as such."""
    with running(tmp_path, host="127.1") as server:
        token = server.token
        assert token
        assert server.send("/v1/state")[0] == 401
        wrong = ["", "x", token[:-1], token + "x", token.swapcase(), f" {token}", "Bearer", "\xe9" * len(token)]
        for path, body in (
            *(
                ("/v1/state", None),
                ("/v1/task", None),
                ("/v1/openapi.json", None),
                ("/v1/live", None),
                ("/nothing", None),
            ),
            *((f"/v1/{kind}", whole) for kind, whole in WHOLE.items()),
        ):
            for given in wrong:
                assert server.send(path, body, {"Authorization": f"Bearer {given}"})[0] == 401
            for given in (token, f"Basic {token}", f"Token {token}", f"Bearer{token}"):
                assert server.send(path, body, {"Authorization": given})[0] == 401
            assert server.send(path, body, {"Authorization": f"Bearer {token}"})[0] not in (401, 403)
        for path in ("/v1/ws", "/v1/live"):
            for given in ("", "x", token[:-1]):
                with pytest.raises(InvalidStatus) as refused:
                    connect(
                        f"ws://127.0.0.1:{server.port}{path}",
                        subprotocols=["bdpi", f"token.{given}"],  # type: ignore[list-item]
                    ).__enter__()
                assert refused.value.response.status_code == 401
        evil = {"Authorization": f"Bearer {token}", "Origin": "http://evil.example"}
        assert server.send("/v1/state", None, evil)[0] == 403
        assert server.send("/v1/state", None, {"Authorization": f"Bearer {token}"})[0] == 200
        assert server.send("/v1/state", None, {"Authorization": f"Bearer {token}"})[1]["steps"] == 0
        assert token not in server.send("/")[1]


def test_pieces_larger_than_allowed_are_counted_together(tmp_path: Path) -> None:
    with running(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port), timeout=180) as connection:
        connection.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"1000\r\n" + b" " * 4096 + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(LARGEST // 4096 + 1):
                connection.sendall(piece)
        assert b" 413 " in connection.recv(100)
