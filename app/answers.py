"""Answers in plain ASGI: whole ones for handlers that need no framework response, and problems anywhere, before a WebSocket
is accepted as well (then as the HTTP answer to the upgrade)."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send

from app.problems import MEDIA_TYPE, Problem

JSON: Final = b"application/json"
_encoder: Final = msgspec.json.Encoder()


class Answer:
    """A whole answer whose body is bytes. An ASGI application, so a handler can return it."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*self.headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send(
            {
                "type": "http.response.body",
                "body": b"" if scope.get("method") == "HEAD" else self.body,
                "more_body": False,
            }
        )


def json_answer(status: int, value: object, headers: dict[str, str] | None = None) -> Answer:
    encoded = [(b"content-type", JSON), *((k.encode(), v.encode()) for k, v in (headers or {}).items())]
    return Answer(status, encoded, _encoder.encode(value))


def problem_answer(problem: Problem, request_id: str | None) -> Answer:
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"cache-control", b"no-store"),
        *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
    ]
    return Answer(problem.status, headers, problem.encode(request_id))


def request_id_of(scope: Scope) -> str | None:
    return cast("str | None", cast("dict[str, Any]", scope).get("request_id"))


async def send_problem(scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
    """Answer an HTTP request, or refuse a WebSocket before it is accepted, with this problem."""
    answer = problem_answer(problem, request_id_of(scope))
    if scope["type"] == ScopeType.HTTP:
        await answer(scope, receive, send)
        return
    await receive()  # websocket.connect
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    start = {"type": "websocket.http.response.start", "status": answer.status, "headers": headers}
    body = {"type": "websocket.http.response.body", "body": answer.body, "more_body": False}
    await send(cast("Any", start))
    await send(cast("Any", body))
