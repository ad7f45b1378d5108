"""The one place where requests are let in: around every route, unless the route says `opt={"public": True}`.

It runs after routing, so no spelling of a path (double slashes, encodings) can reach a handler past it, and a route that
somebody adds later is closed until it says otherwise. OPTIONS and WebSocket upgrades are closed as well.
"""

from __future__ import annotations

from typing import Any, cast

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from app.answers import send_problem
from app.auth.keys import Caller, KeyRing
from app.problems import Problem

PUBLIC = "public"
"""Key in a route's `opt`: the route needs no key, or checks a session of its own."""

READ_ONLY_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Authentication:
    """ASGI middleware: 401 without a valid key, 403 for a viewer that would change something."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["route_handler"].opt.get(PUBLIC):
            await self.app(scope, receive, send)
            return
        key = presented_key(scope["headers"])
        caller = None if key is None else self.keys.find(key)
        if caller is None:
            await send_problem(scope, receive, send, unauthenticated(key is not None))
            return
        # A WebSocket is never only a look: it runs commands or holds a run.
        writes = scope["type"] == ScopeType.WEBSOCKET or scope.get("method") not in READ_ONLY_METHODS
        if writes and not caller.may_write:
            await send_problem(scope, receive, send, Problem("forbidden", "a viewer's key changes nothing"))
            return
        cast("dict[str, Any]", scope)["caller"] = caller
        await self.app(scope, receive, send)


def presented_key(headers: Any) -> bytes | None:
    """The key from `Authorization: Bearer` or, without that header, from `X-API-Key`."""
    other: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = bytes(value).partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
        if name == b"x-api-key":
            other = bytes(value).strip()
    return other


def caller_of(scope: Scope) -> Caller:
    """Who makes this request; only behind `Authentication`."""
    return cast("Caller", cast("dict[str, Any]", scope)["caller"])


def unauthenticated(presented: bool) -> Problem:
    detail = (
        "the API key is not valid"
        if presented
        else "send an API key as Authorization: Bearer KEY or as X-API-Key: KEY"
    )
    return Problem("unauthenticated", detail, headers={"www-authenticate": "Bearer"})
