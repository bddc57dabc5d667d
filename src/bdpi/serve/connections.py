"""Connections are few, and none is kept open by a client that says nothing: for uvicorn."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds for the head of a request, and as many for its body.
PATIENCE = 10.0


def bounded(most: int, patience: float = PATIENCE) -> type[H11Protocol]:
    """A protocol class that ends connections beyond a number, and those whose request does not come.

    :param most: connections at the same time
    """

    class Bounded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._timer = self.loop.call_later(patience, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._calm()
            elif self._timer is None and self.transport.get_protocol() is self:
                self._timer = self.loop.call_later(patience, self.transport.abort)

        def handle_websocket_upgrade(self, event: Any) -> None:
            self._calm()
            super().handle_websocket_upgrade(event)

        def connection_lost(self, exc: Exception | None) -> None:
            self._calm()
            super().connection_lost(exc)

        def _calm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Bounded
