"""One HTTP call through to a daemon, both ways in pieces, with nothing held whole.

The caller's going away ends the call at once: a watcher reads the caller's side and aborts the connection to the daemon, which
wakes whatever waits on it. A short call never starts that watcher. When the daemon is lost before it answered, the call is
repeated only if it cannot have been done, or cannot be done twice; else the caller is told which of the two was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from litestar.types import Receive, Scope, Send

from app.answers import problem_answer, request_id_of
from app.body import AnswerCut, Disconnected
from app.drain import Drain
from app.gateway.http1 import Head
from app.gateway.pool import Pool
from app.gateway.routes import Route
from app.gateway.wire import Wire, WireError
from app.problems import MEDIA_TYPE, Problem

# Below this an answer is sent in one piece, with one message to the server instead of three.
WHOLE_BYTES_MAX: Final = 256 * 1024
# A command's result begins with its figures, in less than this.
BEGINNING_BYTES: Final = 4096
# Commands that end sooner never pay for the task that watches their caller.
WATCH_AFTER_SECONDS: Final = 0.05
# A sender that is alive sends something within this time; the daemon's own patience is the same.
BODY_IDLE_SECONDS: Final = 120.0

PASSED_UP: Final = frozenset(
    {
        b"content-type",
        b"range",
        b"if-none-match",
        b"if-match",
        b"if-modified-since",
        b"if-range",
        b"if-unmodified-since",
    }
)
"""Headers of a request that the daemon sees. Keys and cookies of the service are never among them."""
PASSED_DOWN: Final = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-range",
        b"content-disposition",
        b"accept-ranges",
        b"cache-control",
        b"etag",
        b"last-modified",
        b"retry-after",
        b"allow",
    }
)
_OURS: Final = (b"x-sandman-", b"sandman-")
"""What a file is (X-Sandman-…), and where a piece of output begins and what is missing before it (Sandman-…)."""
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked of the daemon."""

    method: bytes
    target: bytes
    """Path and raw query: names of files stay byte for byte what the caller sent."""
    body: bytes | None = None
    repeatable: bool = False
    """Doing it twice is the same as once."""


def request_head(route: Route, call: Call, headers: list[tuple[bytes, bytes]], length: int | None) -> bytes:
    """The request's head; `length` None means chunks."""
    lines = [b"%b %b HTTP/1.1\r\n" % (call.method, call.target), route.headers]
    lines.extend(b"%b: %b\r\n" % header for header in headers)
    if length is None:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    elif length or call.method not in (b"GET", b"HEAD", b"DELETE"):
        lines.append(b"Content-Length: %d\r\n" % length)
    lines.append(b"\r\n")
    return b"".join(lines)


def passed_up(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name in PASSED_UP or name.startswith(_OURS)]


class HangUp:
    """Watches the caller once nothing more is expected from it; ends the call when it is gone, or when this server must stop."""

    def __init__(self, receive: Receive, wire: Wire, drain: Drain) -> None:
        self._receive = receive
        self._wire = wire
        self._drain = drain
        self._forget: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.gone = False
        self.cut = False

    def watch_soon(self) -> None:
        self._timer = self._loop.call_later(WATCH_AFTER_SECONDS, self.watch)

    def watch(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._watch())
            self._forget = self._drain.on_cut(self._cut)

    def ended(self) -> Exception | None:
        """What to raise instead of the lost connection to the daemon, when it was lost on purpose."""
        if self.gone:
            return Disconnected()
        return Problem("shutting-down", headers={"connection": "close"}) if self.cut else None

    def _cut(self) -> None:
        self.cut = True
        self._wire.abort()

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                self._wire.abort()
                return

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._forget is not None:
            self._forget()


@contextlib.asynccontextmanager
async def connection(pool: Pool, address: str, *, fresh: bool) -> AsyncIterator[Wire]:
    """A connection that goes back to the pool if its answer was taken whole, and is closed otherwise."""
    wire = await pool.take(address, fresh=fresh)
    try:
        yield wire
    finally:
        pool.give(address, wire)


async def send_down(scope: Scope, send: Send, wire: Wire, head: Head, hang_up: HangUp) -> bytes | None:
    """The daemon's answer to the caller. Returns the body, or the beginning of one that streamed. Raises Disconnected or AnswerCut
    once the answer has begun, WireError before."""
    headers = passed_down(head)
    if head.status >= 400 and head.get(b"content-type") == MEDIA_TYPE.encode() and not _is_head(scope):
        await _send_problem_on(scope, send, head, await wire.whole(WHOLE_BYTES_MAX))
        return None
    if _is_head(scope):
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None
    if head.length is not None and head.length <= WHOLE_BYTES_MAX:
        body = await wire.whole(WHOLE_BYTES_MAX)
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
        return body
    hang_up.watch()
    await send({"type": "http.response.start", "status": head.status, "headers": headers})
    beginning = b""
    try:
        async for piece in wire.pieces():
            if len(beginning) < BEGINNING_BYTES:
                beginning += piece[:BEGINNING_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if hang_up.gone:
                raise Disconnected
    except WireError as error:
        if hang_up.gone:
            raise Disconnected from None
        raise AnswerCut(str(error)) from error
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return beginning


def passed_down(head: Head) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in head.headers if name in PASSED_DOWN or name.startswith(_OURS)]
    headers.append(_NOSNIFF)
    return headers


async def send_up(scope: Scope, receive: Receive, wire: Wire, length: int | None, hang_up: HangUp) -> None:
    """The caller's body to the daemon, until it ends or the daemon has answered. Raises Disconnected, WireError, or the
    `body-timeout` problem."""
    answered = asyncio.ensure_future(wire.head())
    try:
        while True:
            arriving = asyncio.ensure_future(cast("Awaitable[Any]", receive()))
            done, _ = await asyncio.wait(
                {arriving, answered}, timeout=BODY_IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if arriving not in done:
                arriving.cancel()
                if answered in done:
                    return  # it refuses the rest
                raise Problem(
                    "body-timeout",
                    f"nothing arrived for {BODY_IDLE_SECONDS:g} s",
                    headers={"connection": "close"},
                )
            message = arriving.result()
            if message["type"] == "http.disconnect":
                hang_up.gone = True
                raise Disconnected
            if chunk := message.get("body", b""):
                await wire.send_body(chunk if length is not None else b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if not message.get("more_body", False):
                if length is None:
                    await wire.send_body(b"0\r\n\r\n")
                wire.sent_all()
                return
    finally:
        if not answered.done():
            answered.cancel()
        elif not answered.cancelled():
            answered.exception()  # the caller asks again, and gets it from there


async def _send_problem_on(scope: Scope, send: Send, head: Head, body: bytes) -> None:
    """A daemon's problem, with our request id in it. The daemon's 401 is about our token, so it is none of the caller's."""
    request_id = request_id_of(scope)
    if head.status == 401:
        answer = problem_answer(Problem("daemon-lost", "the daemon does not know this service"), request_id)
        await answer(scope, cast("Receive", None), send)
        return
    with contextlib.suppress(msgspec.MsgspecError):
        document = msgspec.json.decode(body, type=dict[str, Any])
        document["request_id"] = request_id
        body = msgspec.json.encode(document)
    headers = [(name, value) for name, value in passed_down(head) if name != b"content-length"]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": head.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_head(scope: Scope) -> bool:
    return scope.get("method") == "HEAD"


Finder = Callable[[bool], Awaitable[Route]]
"""Gives the route; True: look again, the cached one led nowhere."""
