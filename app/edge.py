"""The outermost layer: request ids, access log, counts, and what a request gets while the server shuts down.

Plain ASGI around the framework, so that answers which the framework makes by itself (404, 405) are logged and counted like all
others, and so that a failure after the answer began ends the connection instead of ending the answer as if it were whole (the server cuts a
connection whose handler returns in mid-answer).
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Final

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from app import metrics
from app.answers import send_problem
from app.body import AnswerCut, Disconnected
from app.drain import Drain
from app.problems import Problem

log = structlog.get_logger("sandman.access")

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z")
# Answered while draining too: a load balancer must learn that this server goes, and an orchestrator that it still lives.
_ALWAYS: Final = ("/health/",)
# What one answers when the caller is gone; nobody reads it, but the log needs a word for it (nginx's convention).
_CALLER_LEFT: Final = 499


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        with self.drain.busy():
            await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request_id = _request_id(scope["headers"])
        view: Any = scope
        view["request_id"] = request_id
        id_header = (b"x-request-id", request_id.encode())
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            kind: str = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                answer: Any = message
                status = answer["status"]
                answer["headers"] = [*answer.get("headers", ()), id_header]
            elif kind == "websocket.accept":
                status = 101
            elif kind == "websocket.close" and not status:
                # The framework's way to refuse a socket; the server would answer it with an empty 403.
                slug = "internal" if view.get("path_template") else "not-found"
                await send_problem(scope, receive, send_marked, Problem(slug))
                return
            await send(message)

        is_http = scope["type"] == ScopeType.HTTP
        if is_http:
            metrics.IN_FLIGHT.inc()
        try:
            if self.drain.started and not scope["path"].startswith(_ALWAYS):
                problem = Problem("shutting-down", headers={"connection": "close", "retry-after": "1"})
                await send_problem(scope, receive, send_marked, problem)
            else:
                await self.app(scope, receive, send_marked)
        except Disconnected:
            # The framework hands this on as it is: see `handle` in app/errors.py. The server says "disconnected" for a body that
            # is malformed, too, and then somebody may still be there to be told.
            if not status:
                problem = Problem("malformed", "the body ended early", headers={"connection": "close"})
                await send_problem(scope, receive, send_marked, problem)
                status = _CALLER_LEFT
            metrics.HANG_UPS.labels(_route(view)).inc()
        except Exception as error:
            ending = ending_of(error)
            if isinstance(ending, Disconnected):
                metrics.HANG_UPS.labels(_route(view)).inc()
            elif ending is not None:
                log.warning("cut", why=str(ending), request_id=request_id, route=_route(view))
            else:
                log.exception(
                    "unhandled", request_id=request_id, route=_route(view), method=view.get("method")
                )
            if not status:
                await send_problem(scope, receive, send_marked, Problem("internal"))
        finally:
            seconds = time.perf_counter() - started
            self._record(view, status, seconds, request_id)
            if is_http:
                metrics.IN_FLIGHT.dec()

    @staticmethod
    def _record(scope: Any, status: int, seconds: float, request_id: str) -> None:
        route = _route(scope)
        method = scope.get("method", "WS")
        if method not in _METHODS:
            method = "other"
        request_counter(method, route, status).inc()
        if method != "WS":
            request_histogram(method, route).observe(seconds)
        log.info(
            "request",
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1000, 2),
            request_id=request_id,
        )


def ending_of(error: BaseException) -> AnswerCut | Disconnected | None:
    """The expected end inside an error: the framework wraps what is raised after an answer began."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (AnswerCut, Disconnected)):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "WS"})
_counters: dict[tuple[str, str, int], Any] = {}
_histograms: dict[tuple[str, str], Any] = {}


def request_counter(method: str, route: str, status: int) -> Any:
    """The series, looked up once: prometheus_client's own lookup takes a lock and several microseconds."""
    key = (method, route, status)
    child = _counters.get(key)
    if child is None:
        child = _counters[key] = metrics.REQUESTS.labels(method, route, str(status))
    return child


def request_histogram(method: str, route: str) -> Any:
    key = (method, route)
    child = _histograms.get(key)
    if child is None:
        child = _histograms[key] = metrics.REQUEST_SECONDS.labels(method, route)
    return child


def _route(scope: Any) -> str:
    route: str = scope.get("path_template") or "unmatched"
    return route


def _request_id(headers: Any) -> str:
    for name, value in headers:
        if name == b"x-request-id":
            if _REQUEST_ID.match(value):
                return bytes(value).decode("ascii")
            break
    return os.urandom(8).hex()
