"""Listening: a socket, a token where others can reach it, and uvicorn between."""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from bdpi.runs.errors import RunError
from bdpi.serve.app import make_app
from bdpi.serve.connections import PATIENCE, bounded
from bdpi.serve.guard import LARGEST, Guard
from bdpi.serve.run import served
from bdpi.serve.task import RobotTask

_IDLE = 60  # seconds that a connection without requests is kept


def serve(
    task: RobotTask, folder: Path, host: str, port: int, say: Callable[[str], None], patience: float = PATIENCE
) -> None:
    """Serve a task until the process is asked to end.

    :param folder: of the run
    :param say: is told the address, and the token where there is one
    :param patience: seconds that a request may take to come
    :raises RunError: when the address cannot be listened at, or the run cannot be gone on with
    """
    listening = _listen(host, port)
    with listening, served(task, folder) as service:
        token = None if _is_loopback(host) else _token(folder / "token")
        guarded = Guard(make_app(service), token, patience)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/"
        config = uvicorn.Config(
            guarded,
            http=bounded(task.limits.connections, patience),
            ws="websockets-sansio",
            ws_max_size=LARGEST,
            ws_per_message_deflate=False,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=2,
        )
        say(f"{task.name}: {folder} has {service.agent.num_timesteps} transitions")
        if token is not None:
            say(f"Token: {token} (also in {folder / 'token'})")
            say("Others on the network see what is sent: use it in a network that you trust, or behind TLS.")
        server = uvicorn.Server(config)

        def end(*_: object) -> None:
            """Also comes when uvicorn has ended, which sends itself again what has ended it."""
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        say(f"Listening: {address}{'' if token is None else f'#token={token}'}")
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        (family, kind, number, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listening = socket.socket(family, kind, number)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise RunError(f"{host}:{port} cannot be listened at: {error.strerror or error}; choose --port") from None
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(path: Path) -> str:
    """Of this run; robots keep theirs when the server is started again."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(24))
    return path.read_text("utf-8")
