"""Which requests are answered: none from pages of other sites, none without the token, none that are large or slow."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

LARGEST = 256 << 10  # bytes of a body, or of a message
#: The subprotocol of WebSockets; browsers can send the token only as another one, after this prefix.
PROTOCOL, TOKEN = "bdpi", "token."
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def address(url: str) -> SplitResult:
    """The parts of an address; of what is none, all are empty."""
    try:
        return urlsplit(url)
    except ValueError:  # http://[
        return urlsplit("")


class Guard:
    """Around the application: refuses before it sees anything.

    :param app: the ASGI application
    :param token: that every request but that for the page must bear; None: none is needed, and the server is only
        reachable, and only named, as this machine
    :param patience: seconds for a body
    :param origins: of pages that may ask beside the server's own, as browsers name them
    """

    def __init__(self, app: Any, token: str | None, patience: float, origins: Sequence[str] = ()) -> None:
        self._app, self._token, self._patience, self._origins = app, token, patience, origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(scope, send, *refusal)
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            body = await self._body(scope, receive)
            if isinstance(body, bytes):
                await self._app(scope, _replayed(body, receive), send)
            else:
                await _refuse(scope, send, *body)

    def _refusal(self, scope: Any) -> tuple[int, str, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and address(origin).netloc != host and origin not in self._origins:
            own = "open the page of this server, or start it with --origin"
            return 403, "Origin", f"requests from {origin[:100]} are not allowed: {own}"
        if self._token is None:
            name = address(f"//{host}").hostname
            if name not in _LOOPBACK:
                return 403, "Host", f"this server is 127.0.0.1 or localhost, not {host[:100]}"
            return None
        if scope["path"] == "/":
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = ""
        if scope["type"] == "websocket" and not given:
            offered = (each for each in scope.get("subprotocols", []) if each.startswith(TOKEN))
            given = next(offered, "").removeprefix(TOKEN)
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return (
                401,
                "Authorization",
                "Authorization must be Bearer and the token that bdpi serve printed",
            )
        return None

    async def _body(self, scope: Any, receive: Any) -> bytes | tuple[int, str, str]:
        too_large = 413, "body", f"the body has more than {LARGEST} bytes"
        if scope["method"] == "POST":
            kinds = [value for name, value in scope["headers"] if name == b"content-type"]
            if not kinds or kinds[0].split(b";")[0].strip().lower() != b"application/json":
                return 415, "Content-Type", "the header Content-Type must be application/json"
        parts, size = [], 0
        try:
            async with _timeout(self._patience):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return 400, "body", "the body ended early"
                    size += len(message.get("body", b""))
                    if size > LARGEST:
                        return too_large
                    parts.append(message.get("body", b""))
                    if not message.get("more_body"):
                        return b"".join(parts)
        except (TimeoutError, asyncio.TimeoutError):
            return 408, "body", f"the body did not come within {self._patience:g} seconds"


def _replayed(body: bytes, receive: Any) -> Any:
    """A body that was read already, and then what comes after it."""
    is_read = False

    async def replayed() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


class _timeout:
    """``asyncio.timeout``, which Python 3.10 lacks: cancels what takes too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._expired = seconds, False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def expire() -> None:
            self._expired = True
            task.cancel()

        self._timer = asyncio.get_running_loop().call_later(self._seconds, expire)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        if self._expired and kind is asyncio.CancelledError:
            raise TimeoutError from error


async def _refuse(scope: Any, send: Any, status: int, field: str, message: str) -> None:
    body = json.dumps({"error": message, "field": field}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": message[:100]})
            return
        kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
