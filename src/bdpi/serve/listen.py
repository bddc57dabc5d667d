"""Listening: a socket, a token where others can reach it, and uvicorn between."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from bdpi.runs.errors import RunError
from bdpi.serve.app import make_app
from bdpi.serve.connections import PATIENCE, bounded
from bdpi.serve.guard import LARGEST, Guard
from bdpi.serve.run import served
from bdpi.serve.task import RobotTask
from bdpi.storage.atomic import replacing
from bdpi.storage.reading import Damaged, read_bytes

_TOKEN = 24  # random bytes
_LOOPBACK = "127.0.0.1"
_WATCHERS = 16  # connections to the page of a run
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
        token = None if _is_loopback(host) else token_of(folder / "token", say)
        guarded = Guard(make_app(service), token, patience)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/"
        config = _config(guarded, task.limits.connections, patience)
        say(f"{task.name}: {folder} has {service.agent.num_timesteps} transitions")
        if token is not None:
            say("Others on the network see what is sent: use it in a network that you trust, or behind TLS.")
        server = uvicorn.Server(config)

        def end(*_: object) -> None:
            """Also comes when uvicorn has ended, which sends itself again what has ended it."""
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        say(f"Listening: {address}{'' if token is None else f'#token={token}'}")
        server.run(sockets=[listening])


@contextlib.contextmanager
def beside(app: Any, port: int) -> Iterator[str]:
    """Serve an application on loopback while this lasts, from a thread, and give its address.

    :raises RunError: when the port cannot be listened at
    """
    listening = _listen(_LOOPBACK, port)
    with listening:
        # Pings of WebSockets have random numbers of the module random, which an environment may draw from, too.
        server = uvicorn.Server(_config(Guard(app, None, PATIENCE), _WATCHERS, PATIENCE, ws_ping_interval=None))
        thread = threading.Thread(target=server.run, args=([listening],), name="bdpi page", daemon=True)
        thread.start()
        try:
            yield f"http://{_LOOPBACK}:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def _config(app: Guard, connections: int, patience: float, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded(connections, patience),
        ws="websockets-sansio",
        ws_max_size=LARGEST,
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=2,
        **more,
    )


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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def token_of(path: Path, say: Callable[[str], None]) -> str:
    """Of this run; robots keep theirs when the server is started again.

    :raises RunError: for a file that this did not write
    """
    if not path.exists():
        token = secrets.token_urlsafe(_TOKEN)
        with replacing(path) as partial, open(partial, "w", opener=_private) as file:
            file.write(token)
        say(f"Token: {token} (also in {path})")
        return token
    try:
        token = read_bytes(path, 1000).decode()
    except (Damaged, UnicodeDecodeError):
        token = ""
    if len(token) != len(secrets.token_urlsafe(_TOKEN)) or not re.fullmatch(r"[\w-]+", token, re.ASCII):
        raise RunError(f"{path} holds no token of this program: remove it, and tell robots the new one")
    say(f"Token: {token} (of an earlier start; remove {path} for a new one)")
    return token
