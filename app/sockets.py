"""What all WebSocket handlers share: problems before the accept, one reader of the caller's side, polite ends.

A handler here always reads its caller's side, also when it has nothing to expect from it: only a read notices that the caller is
gone (an idle send succeeds for minutes).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import msgspec
from litestar.types import Receive, Scope, Send

from app.problems import Problem

SUBPROTOCOL: Final = "sandman.v1"
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
SERVICE_RESTART: Final = 1012
INTERNAL: Final = 1011
POLICY: Final = 1008


class Socket:
    """One accepted WebSocket of a caller."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = cast("Any", send)
        self._closed = False
        # Two tasks may want to say something; a frame must not be sent into another one's wait.
        self._lock = asyncio.Lock()

    @classmethod
    async def accept(cls, scope: Scope, receive: Receive, send: Send) -> Socket:
        """Accept the upgrade, with our subprotocol if the caller offered it."""
        await receive()  # websocket.connect
        offered: Any = cast("dict[str, Any]", scope).get("subprotocols") or ()
        accept: dict[str, Any] = {"type": "websocket.accept", "headers": []}
        if SUBPROTOCOL in offered:
            accept["subprotocol"] = SUBPROTOCOL
        await cast("Any", send)(accept)
        return cls(receive, send)

    async def receive(self) -> str | bytes | None:
        """The next message; None when the caller has closed or is gone."""
        message = cast("dict[str, Any]", await self._receive())
        if message["type"] == "websocket.disconnect":
            self._closed = True
            return None
        text = message.get("text")
        if text is not None:
            return cast("str", text)
        return cast("bytes", message.get("bytes") or b"")

    async def send(self, message: str | bytes) -> None:
        """Waits while the caller is slow. Sending to one that has left does nothing."""
        if self._closed:
            return
        kind = "text" if isinstance(message, str) else "bytes"
        async with self._lock:
            try:
                await self._send({"type": "websocket.send", kind: message})
            except Exception:
                # The server's own error for a peer that is gone; its type is private to the server.
                self._closed = True

    async def send_json(self, message: dict[str, Any]) -> None:
        await self.send(msgspec.json.encode(message).decode())

    async def send_problem(self, problem: Problem, channel: int | None = None) -> None:
        """The error frame of the exec protocol."""
        frame: dict[str, Any] = {"op": "error"}
        if channel is not None:
            frame["ch"] = channel
        await self.send_json({**frame, **problem.document()})

    async def close(self, code: int, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        async with self._lock:
            try:
                await self._send({"type": "websocket.close", "code": code, "reason": reason[:120]})
            except Exception:
                return
