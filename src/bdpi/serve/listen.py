"""Listening: a socket, a token where others can reach it, and uvicorn between."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from bdpi.runs.errors import RunError
from bdpi.serve.app import make_app
from bdpi.serve.connections import PATIENCE, bounded
from bdpi.serve.guard import LARGEST, Guard, address
from bdpi.serve.run import served
from bdpi.serve.task import RobotTask
from bdpi.storage.atomic import replacing
from bdpi.storage.reading import Damaged, read_bytes

_TOKEN = 24  # random bytes
_LOOPBACK = "127.0.0.1"
_WATCHERS = 16  # connections to the page of a run
_IDLE = 60  # seconds that a connection without requests is kept


def serve(
    task: RobotTask,
    folder: Path,
    host: str,
    port: int,
    say: Callable[[str], None],
    patience: float = PATIENCE,
    origins: Sequence[str] = (),
) -> None:
    """Serve a task until the process is asked to end.

    :param folder: of the run
    :param say: is told the address, and the token where there is one
    :param patience: seconds that a request may take to come
    :param origins: of pages that may ask beside the server's own: robots in a browser
    :raises RunError: when the address cannot be listened at, or the run cannot be gone on with
    """
    for origin in origins:
        _check_origin(origin)
    listening = _listen(host, port)
    with listening, served(task, folder) as service:
        token = None if _is_loopback(host) else token_of(folder / "token", say)
        guarded = _for_pages_of(origins, Guard(make_app(service), token, patience, origins))
        shown = reachable(host)
        shown = f"[{shown}]" if ":" in shown else shown
        shown = f"http://{shown}:{listening.getsockname()[1]}/"
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
        say(f"Listening: {shown}{'' if token is None else f'#token={token}'}")
        server.run(sockets=[listening])
    say(f"Saved: {folder}")


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


def _config(app: Any, connections: int, patience: float, **more: Any) -> uvicorn.Config:
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
        remedy = "another --port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise RunError(f"{host}:{port} cannot be listened at: {error.strerror or error}; choose {remedy}") from None
    return listening


def reachable(host: str) -> str:
    """An address that others can open, also where ``host`` stands for all that this machine has."""
    try:
        version = ipaddress.ip_address(host).version if ipaddress.ip_address(host).is_unspecified else 0
    except ValueError:
        version = 0
    if not version:
        return host
    family, other = (socket.AF_INET, "192.0.2.1") if version == 4 else (socket.AF_INET6, "2001:db8::1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as line:
            line.connect((other, 9))  # sends nothing: says which address would be used
            return str(line.getsockname()[0])
    except OSError:  # no network
        return socket.gethostname()


def _check_origin(origin: str) -> None:
    """:raises RunError: for what no browser names a page's origin"""
    parts = address(origin)
    if (
        parts.scheme not in ("http", "https")
        or not parts.netloc
        or origin != f"{parts.scheme}://{parts.netloc.lower()}"
    ):
        raise RunError(f"--origin is {origin!r:.100}: write http://192.168.0.5:8000, without a path or a last /")


def _for_pages_of(origins: Sequence[str], app: Any) -> Any:
    """Browsers ask first whether a page may send what it sends, and need to be told."""
    headers = ["Authorization", "Content-Type"]
    return (
        CORSMiddleware(app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=headers)
        if origins
        else app
    )


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
