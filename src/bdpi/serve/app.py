"""The service over HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from bdpi.agents.advice import Weights
from bdpi.serve.page import add_page, chosen
from bdpi.serve.protocol import (
    Action,
    ActRequest,
    Begun,
    EpisodeRequest,
    ObserveRequest,
    PersonRequest,
    Refusal,
    Refused,
    StepRequest,
    Stored,
)
from bdpi.serve.service import Service
from bdpi.serve.task import complaint

_REFRESH = 1.0  # seconds


def make_app(service: Service) -> FastAPI:
    """The protocol, version 1. ``/v1/openapi.json`` describes it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(_refresh(service))
        yield
        refreshing.cancel()

    title = f"bdpi serve: {service.task.name}"
    refusals: Any = {status: {"model": Refusal} for status in (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 507)}
    urls: Any = {"responses": refusals, "openapi_url": "/v1/openapi.json", "docs_url": None, "redoc_url": None}
    app = FastAPI(title=title, version="1", lifespan=lifespan, **urls)

    @app.post("/v1/episodes")
    async def episodes(request: EpisodeRequest) -> Begun:
        """Begin an episode; one that was going on is given up."""
        return service.begin(request)

    @app.post("/v1/act")
    async def act(request: ActRequest) -> Action:
        """Ask for an action."""
        return service.act(request, await _advice(service, request))

    @app.post("/v1/observe")
    async def observe(request: ObserveRequest) -> Stored:
        """Tell what happened."""
        return service.observe(request)

    @app.post("/v1/step")
    async def step(request: StepRequest) -> Action:
        """Tell what happened, and ask for the next action."""
        return service.step(request, await _advice(service, request))

    @app.post("/v1/person")
    async def person(request: PersonRequest) -> dict[str, bool]:
        """What a person wants."""
        service.command(request)
        return {"done": True}

    @app.websocket("/v1/ws")
    async def loop(socket: WebSocket) -> None:
        """Messages are the bodies of requests, with a ``type``: episodes, act, observe or step."""
        await socket.accept(chosen(socket))
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await socket.send_text(await _answer(service, await socket.receive_text()))

    async def commanded(text: str) -> str:
        return await _answer(service, text, {"person"})

    add_page(app, service.task.model_dump, service.state, commanded)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse(_error(error.field, error.message), error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            at = first["loc"][-1]
            near = f"{error.body[at : at + 20]!r}" if isinstance(error.body, str) else "its end"
            return JSONResponse(_error("body", f"the body is not JSON from character {at} on, {near}"), 400)
        where = ".".join(str(each) for each in first["loc"][1:]) or "body"
        value = "" if first["type"] == "missing" or isinstance(first["input"], dict) else f" is {first['input']!r:.80}"
        return JSONResponse(_error(where, f"{where}{value}: {first['msg']}"), 422)

    @app.exception_handler(HTTPException)
    async def refused_by_itself(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:
            return JSONResponse(_error("body", "the body is not JSON, or holds too much within itself"), 400)
        message = f"{request.method} {request.url.path!r:.80}: {error.detail}; /v1/openapi.json says what there is"
        return JSONResponse(_error("path", message), error.status_code, error.headers)

    return app


async def _refresh(service: Service) -> None:
    while True:
        await asyncio.sleep(_REFRESH)
        await asyncio.to_thread(service.tidy)


async def _advice(service: Service, request: ActRequest | StepRequest) -> Weights | None:
    """Asked in a thread, so that other requests do not wait for an advisor."""
    return None if service.agent.advice is None else await asyncio.to_thread(service.advice, request)


async def _answer(service: Service, text: str, kinds: set[str] | None = None) -> str:
    """The answer to a message of a WebSocket."""
    works: dict[str, tuple[type[BaseModel], Callable[..., Any]]] = {
        "episodes": (EpisodeRequest, service.begin),
        "act": (ActRequest, service.act),
        "observe": (ObserveRequest, service.observe),
        "step": (StepRequest, service.step),
        "person": (PersonRequest, service.command),
    }
    try:
        message = json.loads(text)
        kind = message.pop("type", None) if isinstance(message, dict) else None
        if not isinstance(kind, str) or kind not in (kinds or works.keys()):
            known = ", ".join(sorted(kinds or works))
            raise Refused(422, "type", f"type is {kind!r:.80}: messages are objects with one of {known}")
        model, work = works[kind]
        request = model.model_validate(message)
        if isinstance(request, ActRequest | StepRequest):
            answer = work(request, await _advice(service, request))
        else:
            answer = work(request)
        return "{}" if answer is None else str(answer.model_dump_json())
    except Refused as error:
        return json.dumps({**_error(error.field, error.message), "status_code": error.status})
    except ValidationError as error:
        return json.dumps({**_error(*complaint(error)), "status_code": 422})
    except (ValueError, RecursionError):
        return json.dumps({**_error("message", "the message is not JSON"), "status_code": 400})


def _error(field: str, message: str) -> dict[str, str]:
    return {"error": message, "field": field}
