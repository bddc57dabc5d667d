"""``python -m bdpi.envs.remote``: an environment here, a learner elsewhere, who has :class:`bdpi.envs.Remote`.

python -m bdpi.envs.remote my_module:MyEnv --port 8089

``my_module:MyEnv`` is a class, or a function, that makes an environment; ``CartPole-v1`` or ``my_module:MyEnv-v0``, an
id of Gymnasium. Requests are ``POST`` with JSON:

- ``/v1/session`` ``{}``: ``session``, ``observation_space``, ``action_space``
- ``/v1/reset`` ``{session, seq, seed, options}``: ``observation``, ``info``
- ``/v1/step`` ``{session, seq, action}``: ``observation``, ``reward``, ``terminated``, ``truncated``, ``info``

``seq`` counts the requests of a session from 1. One that is repeated is answered again, and done once.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import importlib
import ipaddress
import json
import os
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gymnasium as gym

from bdpi.envs.descriptions import describe
from bdpi.envs.remote_env import LARGEST, of_json, to_json

_PATIENCE = 60  # seconds for a part of a request, and between two
_CONNECTIONS = 16
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class OfferedEnv:
    """One environment, for one learner at a time.

    :param env: is stepped by one thread at a time
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env, self._lock = env, threading.Lock()
        self._session, self._seq = "", 0
        self._answer: tuple[int, dict[str, Any]] = 200, {}

    def answer(self, kind: str, request: Any) -> tuple[int, dict[str, Any]]:
        """Status and answer to a request."""
        works = {"reset": self._reset, "step": self._step}
        try:
            if not isinstance(request, dict) or kind not in (*works, "session"):
                raise _Refused(404, "requests are objects, to /v1/session, /v1/reset or /v1/step")
            with self._lock:
                if kind == "session":
                    return 200, self._begin()
                if not self._session or request.get("session") != self._session:
                    raise _Refused(409, "this session is over: another learner has come, or the robot was restarted")
                seq = request.get("seq")
                if seq == self._seq and seq != 0:
                    return self._answer
                if seq != self._seq + 1:
                    raise _Refused(409, f"seq is {seq!r:.40}, and {self._seq + 1} comes next")
                self._seq += 1
                try:
                    self._answer = 200, works[kind](request)
                except _Refused as error:
                    self._answer = error.status, {"error": str(error)}
                except Exception as error:  # of the environment, whose step may have been made
                    self._answer = 500, {"error": f"{type(error).__name__}: {error}"}
                return self._answer
        except _Refused as error:
            return error.status, {"error": str(error)}

    def _begin(self) -> dict[str, Any]:
        self._session, self._seq = secrets.token_urlsafe(16), 0
        described = {name: describe(getattr(self._env, name)) for name in ("observation_space", "action_space")}
        return {"session": self._session, **described}

    def _reset(self, request: dict[str, Any]) -> dict[str, Any]:
        seed, options = request.get("seed"), request.get("options")
        if not (seed is None or type(seed) is int) or not isinstance(options, dict | None):
            raise _Refused(422, f"seed is a whole number or null, options an object or null, unlike {seed!r:.40}")
        observation, info = self._env.reset(seed=seed, options=options)
        return {"observation": to_json(observation), "info": to_json(info)}

    def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        space, given = self._env.action_space, request.get("action")
        try:
            action = of_json(space, given)
        except (ValueError, KeyError, TypeError, OverflowError):
            action = None
        if not space.contains(action):
            raise _Refused(422, f"{given!r:.80} is no action of {space}")
        observation, reward, terminated, truncated, info = self._env.step(action)
        ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        return {"observation": to_json(observation), "reward": float(reward), **ends, "info": to_json(info)}


def make_server(offered: OfferedEnv, host: str, port: int, token: str) -> ThreadingHTTPServer:
    """What answers learners.

    :param token: that requests must bear; empty: none, and requests must be to this machine by name
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version, timeout, disable_nagle_algorithm = "HTTP/1.1", _PATIENCE, True

        def do_POST(self) -> None:
            status, answer = self._answered()
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text)

        def _answered(self) -> tuple[int, dict[str, Any]]:
            refusal, size = self._refusal(), self.headers.get("Content-Length", "")
            if refusal is None and not (size.isdecimal() and len(size) < 10 and int(size) <= LARGEST):
                refusal = 413, f"a body has a Content-Length of at most {LARGEST} bytes"
            if refusal is not None:
                self.close_connection = True
                return refusal[0], {"error": refusal[1]}
            try:
                request = json.loads(self.rfile.read(int(size)))
            except (ValueError, RecursionError):
                return 400, {"error": "the body is not JSON"}
            return offered.answer(self.path.removeprefix("/v1/"), request)

        def _refusal(self) -> tuple[int, str] | None:
            if self.headers.get("Origin") is not None:
                return 403, "pages of web sites are not answered"
            if self.headers.get("Content-Type") != "application/json":
                return 415, "the header Content-Type must be application/json"
            if not token:
                name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
                return None if name in _LOOPBACK else (403, f"this is 127.0.0.1, not {name[:100]}")
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if hmac.compare_digest(given.encode(), token.encode()):
                return None
            return 401, "give Remote the token that python -m bdpi.envs.remote printed"

        def log_message(self, *_: Any) -> None:
            """Steps are many."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        free = threading.BoundedSemaphore(_CONNECTIONS)

        def process_request(self, request: Any, client_address: Any) -> None:
            if self.free.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                self.free.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A learner that is gone is no news."""

    return Server((host, port), Handler)


def _make(name: str) -> gym.Env[Any, Any]:
    module, _, attribute = name.rpartition(":")
    maker = getattr(importlib.import_module(module), attribute, None) if module else None
    return gym.make(name) if maker is None else maker()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bdpi.envs.remote", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="my_module:MyEnv, or an id of Gymnasium")
    parser.add_argument("--port", type=int, default=8089, help="0: any that is free")
    parser.add_argument("--host", default="127.0.0.1", help="other than loopback, learners need a token")
    chosen = parser.parse_args()
    sys.path.append(os.getcwd())
    token = "" if _is_loopback(chosen.host) else os.environ.get("BDPI_TOKEN") or secrets.token_urlsafe(24)
    offered = OfferedEnv(_make(chosen.environment))
    try:
        server = make_server(offered, chosen.host, chosen.port, token)
    except OSError as error:
        parser.error(f"{chosen.host}:{chosen.port} cannot be listened at: {error.strerror or error}; choose --port")
    with server, contextlib.suppress(KeyboardInterrupt):
        if token:
            print(f"Token: {token} (BDPI_TOKEN sets another one). There is no encryption: trust your network.")
        print(f"Listening: http://{chosen.host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
