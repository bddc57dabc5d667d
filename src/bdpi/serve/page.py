"""The live page, and what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse, Response

import bdpi
from bdpi.serve.guard import PROTOCOL

#: Seconds between two pictures of the page.
LIVE = 0.2
_CURVES = 5  # pictures, the first of which has the curves
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_page(
    app: FastAPI,
    describe: Callable[[], dict[str, Any]],
    state: Callable[[bool], dict[str, Any]],
    answer: Callable[[str], Awaitable[str]],
) -> None:
    """Add the page, and all that it asks for, to an application.

    :param describe: what does not change: names of observations and actions
    :param state: how learning goes, and what robots do, with curves or without; in JSON's types
    :param answer: to a message of a person
    """

    @app.get("/v1/task")
    async def task() -> dict[str, Any]:
        """What is seen and done."""
        return describe()

    @app.get("/v1/state")
    async def current() -> dict[str, Any]:
        """How learning goes, and what robots do."""
        return state(True)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        return HTMLResponse(_page(), headers=headers)

    @app.websocket("/v1/live")
    async def live(socket: WebSocket) -> None:
        """State, five times a second; commands of a person the other way."""
        await socket.accept(chosen(socket))
        showing = asyncio.create_task(_show(state, socket))
        try:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                while True:
                    await socket.send_text(await answer(await socket.receive_text()))
        finally:
            showing.cancel()


def chosen(socket: WebSocket) -> str | None:
    """The subprotocol, where it is offered; never the token."""
    return PROTOCOL if PROTOCOL in socket.scope.get("subprotocols", []) else None


@functools.cache
def _page() -> str:
    """What draws curves, and its looks, are those of the page of a report."""
    package = Path(bdpi.__file__).parent
    report, live = package / "report" / "templates", package / "serve" / "templates"
    page = (live / "live.html").read_text("utf-8")
    for place, files in (
        ("/*STYLE*/", (report / "page.css", live / "live.css")),
        ("/*SCRIPT*/", (report / "curves.js", live / "live.js")),
    ):
        page = page.replace(place, "".join(file.read_text("utf-8") for file in files))
    return page


async def _show(state: Callable[[bool], dict[str, Any]], socket: WebSocket) -> None:
    sent: dict[str, str | None] = {}  # pictures, each of which is sent once
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        for number in itertools.count():
            now = state(number % _CURVES == 0)
            for robot in now["robots"]:
                picture = robot.pop("picture", None)
                if picture != sent.get(robot["name"]):
                    robot["picture"] = sent[robot["name"]] = picture
            await socket.send_text(json.dumps({"type": "state", **now}))
            await asyncio.sleep(LIVE)
