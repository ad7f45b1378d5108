"""One keep-alive connection to one daemon: one request at a time, both directions under back-pressure.

Small requests go out in one write and small answers arrive in one callback, so a no-op command costs one turn of the event loop
here. What a slow reader has not taken is never read from the socket beyond `BUFFER_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from app.gateway.http1 import AnswerReader, Head, ProtocolViolation

# Enough that a local stream never waits for the next turn of the loop; ten thousand idle streams hold nothing of it.
BUFFER_BYTES: Final = 512 * 1024


class WireError(Exception):
    """The connection to the daemon ended before the answer did. `sent`: whether anything of the request may have arrived;
    `answered`: whether an answer had begun."""

    def __init__(self, message: str, *, sent: bool, answered: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.answered = answered


class Wire(asyncio.Protocol):
    """Made by `connect`. Use: `send` (or `send_head` and `send_body`), `head`, then `pieces` or `whole`, or `abort`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._arrived: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._write_blocked = False
        self._sent = False
        self._owed = False
        self._error: Exception | None = None
        self.closed = False
        self.uses = 0
        self.idle_since = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            # An idle daemon says nothing; if it does, its next answer could be somebody else's.
            self._fail(ProtocolViolation("unasked bytes"))
            return
        try:
            pieces = reader.feed(data)
        except ProtocolViolation as error:
            self._fail(error)
            return
        if pieces:
            self._pieces.extend(pieces)
            self._buffered += sum(map(len, pieces))
            if self._buffered > BUFFER_BYTES and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool | None:
        if self._reader is not None and self._reader.eof():
            self._wake()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._error is None:
            self._error = error
        self._wake()
        self._write_blocked = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # requests

    def send(self, request: bytes, *, no_body: bool = False, more: bool = False) -> None:
        """Begin a request, with all of its bytes unless `more` come by `send_body`. Never blocks: the kernel or the transport
        takes it."""
        self._begin(no_body)
        self._owed = more
        self._write(request)

    async def send_body(self, chunk: bytes) -> None:
        """More of the request's body; waits while the daemon does not take it. Raises WireError."""
        self._write(chunk)
        if self._write_blocked:
            self._writable = asyncio.get_running_loop().create_future()
            try:
                await self._writable
            finally:
                self._writable = None
            if self.closed and not self.answer_begun:
                raise self._lost()

    def sent_all(self) -> None:
        """The request's body has gone out as a whole. Without this the connection is not used again: the daemon may answer
        early, and would take the next request for the rest of the body."""
        self._owed = False

    @property
    def answer_begun(self) -> bool:
        return self._reader is not None and self._reader.head is not None

    async def head(self) -> Head:
        """Wait for the answer's head. Raises WireError."""
        while True:
            reader = self._reader
            assert reader is not None, "send comes first"
            if reader.head is not None:
                return reader.head
            await self._more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises WireError when it ends too early. Abandoning it early needs `abort`."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._buffered -= len(piece)
                if self._paused and self._buffered < BUFFER_BYTES // 2:
                    self._paused = False
                    if self._transport is not None and not self.closed:
                        self._transport.resume_reading()
                yield piece
            assert self._reader is not None
            if self._reader.done:
                return
            await self._more()

    async def whole(self, limit: int) -> bytes:
        """The whole body when it has at most `limit` bytes; for answers that are small by contract."""
        reader = self._reader
        assert reader is not None
        if reader.done and len(self._pieces) == 1:
            self._buffered = 0
            return self._pieces.popleft()
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > limit:
                self.abort()
                raise WireError("the answer is longer than it may be", sent=True, answered=True)
        return bytes(body)

    @property
    def complete(self) -> bool:
        """The answer has arrived and been taken as a whole."""
        return self._reader is not None and self._reader.done and not self._pieces

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        if self.closed or self._owed or not self.complete:
            return False
        reader = self._reader
        return reader is not None and reader.head is not None and reader.head.keep_alive

    def rest(self) -> None:
        """Between two requests."""
        self._reader = None

    def abort(self) -> None:
        """End it now; whatever is under way at the daemon notices."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # inside

    def _begin(self, no_body: bool) -> None:
        assert self._reader is None, "one request at a time"
        self._reader = AnswerReader(no_body)
        self._sent = False
        self.uses += 1

    def _write(self, data: bytes) -> None:
        if self.closed or self._transport is None:
            if self.answer_begun:
                return
            raise self._lost()
        self._sent = True
        self._transport.write(data)

    async def _more(self) -> None:
        if self.closed:
            raise self._lost()
        arrived = self._arrived = asyncio.get_running_loop().create_future()
        try:
            await arrived
        finally:
            # A cancelled wait ends one turn of the loop later, when the next one may have begun already.
            if self._arrived is arrived:
                self._arrived = None

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.abort()
        self._wake()

    def _lost(self) -> WireError:
        what = f": {self._error}" if self._error is not None else ""
        return WireError(
            f"the connection to the daemon ended{what}", sent=self._sent, answered=self.answer_begun
        )


async def connect(address: str, timeout_seconds: float) -> Wire:
    """A new connection to "unix:/path" or "http://host:port". Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_seconds):
        if address.startswith("unix:"):
            _, wire = await loop.create_unix_connection(Wire, address.removeprefix("unix:"))
        else:
            host, port = host_and_port(address)
            _, wire = await loop.create_connection(Wire, host, port)
    return wire


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)
