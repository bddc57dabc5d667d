"""A real server in a process of its own, on loopback."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

TASK: dict[str, Any] = {
    "name": "lamp",
    "observations": [
        {"name": "night", "low": 0, "high": 1},
        {"name": "lamp", "low": 0, "high": 1, "unit": "on"},
    ],
    "actions": ["off", "on"],
    "hyperparameters": {"n_critics": 2, "batch_size": 16, "learning_starts": 16},
    "policy_kwargs": {"net_arch": [8]},
}
_PROGRAM = (
    "import sys; from pathlib import Path; from bdpi.serve.listen import serve; from bdpi.serve.task import read_task\n"
    "task, out, port, patience, trust, host, *origins = sys.argv[1:]\n"
    "say = lambda text: print(text, flush=True)\n"
    "serve(read_task(Path(task), trust == 'True'), Path(out), host, int(port), say, float(patience), origins)"
)


class Server:
    """``bdpi serve``, until :meth:`stop` or :meth:`kill`.

    :param host: another name of loopback, such as 127.1, makes the server ask for a token
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        patience: float = 10.0,
        trust: bool = False,
        host: str = "127.0.0.1",
        origins: Sequence[str] = (),
        **changes: Any,
    ) -> None:
        self.out = folder / "run"
        task = folder / "task.yaml"
        task.write_text(yaml.safe_dump({**TASK, **changes}))
        command = [sys.executable, "-c", _PROGRAM, str(task), str(self.out), str(port), str(patience), str(trust)]
        command += [host, *origins]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"Listening: http://[\d.]+:(\d+)/(?:#token=(\S+))?", line):
                self.port, self.token = int(found[1]), found[2]
                return
        raise AssertionError(f"the server ended with status {self.process.wait()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=180)

    def send(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and answer; a body makes it a POST."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=180) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("that did not happen in two minutes")


@contextlib.contextmanager
def running(folder: Path, **changes: Any) -> Iterator[Server]:
    server = Server(folder, **changes)
    try:
        yield server
    finally:
        server.stop()


def line(curves: dict[str, Any], panel: str, series: str = "run") -> list[float]:
    """Values that are drawn; none where there is no such line.

    :param curves: of a state, or of a report's page
    """
    lines = [each for found in curves["panels"] if found["environment"] == panel for each in found["curves"]]
    return next((each["y"] for each in lines if each["series"] == series), [])


def png(width: int, height: int) -> bytes:
    """A picture."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(file, "PNG")
    return file.getvalue()
