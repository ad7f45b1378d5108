"""WS …/connect: one socket of a caller to one of the daemon, frames passed on as they are.

Back-pressure goes through in both directions: a frame is read from one side only when the one before was taken by the other. The
daemon's own heartbeat passes through too, so a proxy in between sees traffic. When one side ends, the other is told why: a lost
daemon as an error frame and code 1012 (come back), a leaving caller as a close of the daemon's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

import msgspec
import structlog
from litestar.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from app import metrics
from app.drain import Drain
from app.gateway.gateway import Gateway
from app.gateway.routes import Route
from app.gateway.samples import outcome_of
from app.ledger.tasks import end_tasks
from app.problems import Problem
from app.sockets import INTERNAL, NORMAL, POLICY, SERVICE_RESTART, SUBPROTOCOL, Socket

log = structlog.get_logger("sandman.socket")

CONNECT_SECONDS: Final = 5.0
# What the daemon sends is cut into frames of at most 64 KiB; results carry no output. A larger one is not from our daemon.
DAEMON_FRAME_MAX: Final = 1024 * 1024
# A start frame may carry a script of 8 MiB in JSON.
CALLER_TEXT_MAX: Final = 12 * 1024 * 1024
CALLER_BINARY_MAX: Final = 256 * 1024 + 5
# Frames between two callers' sockets that may wait in memory here.
QUEUE_FRAMES: Final = 16
CLOSE_SECONDS: Final = 1.0

_EXIT: Final = '{"op":"exit"'


async def open_daemon(route: Route) -> ClientConnection:
    """Raises OSError, TimeoutError or WebSocketException."""
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {route.token}"},
        "subprotocols": [Subprotocol(SUBPROTOCOL)],
        "compression": None,
        "max_size": DAEMON_FRAME_MAX,
        "max_queue": QUEUE_FRAMES,
        "open_timeout": CONNECT_SECONDS,
        "close_timeout": CLOSE_SECONDS,
        # The daemon's heartbeat each 15 s is proof of life; a ping of ours would only end a socket that waits for a slow caller.
        "ping_interval": None,
        "user_agent_header": None,
        "proxy": None,
    }
    if route.address.startswith("unix:"):
        return await unix_connect(route.address.removeprefix("unix:"), "ws://sandbox/v1/connect", **options)
    address = route.address.removeprefix("http://").rstrip("/")
    return await connect(f"ws://{address}/v1/connect", **options)


async def connect_through(
    gateway: Gateway, drain: Drain, scope: Scope, receive: Receive, send: Send, route: Route
) -> None:
    """Serve one caller's socket to its end. Raises Problem only before the socket was accepted."""
    daemon = await _reach(gateway, route)
    try:
        peer = await Socket.accept(scope, receive, send)
        with gateway.holder.hold(route), metrics.SOCKETS.labels("connect").track_inprogress():
            await _Passage(gateway, drain, route, peer, daemon).run()
    finally:
        with contextlib.suppress(TimeoutError, OSError, WebSocketException):
            async with asyncio.timeout(CLOSE_SECONDS * 2):
                await daemon.close()


async def _reach(gateway: Gateway, route: Route) -> ClientConnection:
    for attempt in range(3):
        try:
            return await open_daemon(route)
        except InvalidStatus as error:
            log.warning("daemon refused the socket", sandbox=route.id, status=error.response.status_code)
            raise Problem("daemon-lost", "the daemon refused the socket", sandbox_id=route.id) from error
        except (OSError, TimeoutError, WebSocketException) as error:
            if attempt == 2:
                raise await gateway.lost(route, error) from error
            await asyncio.sleep(0.1)
    raise AssertionError("unreachable")


class _Passage:
    """Both directions of one socket."""

    def __init__(
        self, gateway: Gateway, drain: Drain, route: Route, peer: Socket, daemon: ClientConnection
    ) -> None:
        self._gateway = gateway
        self._drain = drain
        self._route = route
        self._peer = peer
        self._daemon = daemon
        self._started: dict[int, float] = {}

    async def run(self) -> None:
        up = asyncio.create_task(self._up())
        down = asyncio.create_task(self._down())
        draining = asyncio.create_task(self._drain.wait())
        tasks = (up, down, draining)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                return  # the caller has left or was refused; it knows
            if down.done():
                await self._daemon_ended(down)
            else:
                await self._peer.close(SERVICE_RESTART, "the server is restarting")
        finally:
            await end_tasks(*tasks)

    async def _up(self) -> None:
        """From the caller to the daemon, until the caller leaves."""
        while (message := await self._peer.receive()) is not None:
            limit = CALLER_TEXT_MAX if isinstance(message, str) else CALLER_BINARY_MAX
            if len(message) > limit:
                await self._peer.send_problem(
                    Problem("frame-too-large", f"a frame has at most {limit} bytes; nothing of it was used"),
                    _channel_of(message),
                )
                continue
            if isinstance(message, str) and '"start"' in message[:64]:
                self._note_start(message)
            try:
                await self._daemon.send(message)
            except ConnectionClosed:
                await asyncio.Event().wait()  # `_down` tells why, and ends this task

    async def _down(self) -> None:
        """From the daemon to the caller, until the daemon's socket ends."""
        try:
            while True:
                message = await self._daemon.recv()
                if isinstance(message, str) and message.startswith(_EXIT):
                    self._note_exit(message)
                await self._peer.send(message)
        except ConnectionClosed:
            return

    async def _daemon_ended(self, down: asyncio.Task[None]) -> None:
        if (error := down.exception()) is not None:
            log.error("passing frames failed", sandbox=self._route.id, error=repr(error))
            await self._peer.close(INTERNAL, "the service failed")
            return
        code = self._daemon.close_code
        if code in (NORMAL, POLICY, 1002, 1003, 1007, 1009):
            # The daemon's own word to this caller.
            await self._peer.close(code, self._daemon.close_reason or "")
            return
        problem = await self._gateway.lost(self._route, ConnectionError(str(code)))
        for _ in self._started:
            self._gateway.samples.add(self._route.id, self._route.run, "lost", 0.0)
        await self._peer.send_problem(problem)
        await self._peer.close(SERVICE_RESTART, problem.slug)

    def _note_start(self, message: str) -> None:
        channel = _channel_of(message)
        if channel is not None and len(self._started) < 10_000:
            self._started[channel] = time.perf_counter()

    def _note_exit(self, message: str) -> None:
        try:
            result = msgspec.json.decode(message, type=dict[str, Any])
        except msgspec.MsgspecError:
            return
        started = self._started.pop(result.get("ch", -1), None)
        if started is not None:
            seconds = time.perf_counter() - started
            self._gateway.samples.add(self._route.id, self._route.run, outcome_of(result), seconds)


class _Channel(msgspec.Struct):
    ch: int | None = None
    op: str | None = None


_channels: Final = msgspec.json.Decoder(_Channel)


def _channel_of(message: str | bytes) -> int | None:
    if isinstance(message, bytes):
        return int.from_bytes(message[1:5], "big") if len(message) >= 5 else None
    try:
        return _channels.decode(message).ch
    except msgspec.MsgspecError:
        return None
