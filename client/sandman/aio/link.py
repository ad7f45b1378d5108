"""The exec connection of one sandbox: opened with the first exec, remade when it breaks, closed when it has been idle.

A thin shell around `sandman.mux`: it moves messages and decides when to connect. While execs are open it keeps trying for a
bounded time; the mux then repeats each exec's opening message from the offsets that are held, so nothing is lost or doubled.
A connection that stays silent past the heartbeats counts as broken, for a vanished peer never says so.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from sandman import problem
from sandman.aio.http import caused_by, out_of_files
from sandman.aio.slots import Slots
from sandman.channel import Channel
from sandman.config import Settings
from sandman.errors import ClosedError, ConnectError, ConnectionLost, ProblemError, SandmanError
from sandman.frames import MESSAGE_MAX, SUBPROTOCOL, FrameError
from sandman.mux import Mux

CLOSE_HANDSHAKE_SECONDS = 0.5
"""A polite close; a peer that does not answer in this time is cut."""
RECEIVE_QUEUE = 32
"""Messages that websockets reads ahead of us (about 2 MiB of output), over all execs of a sandbox."""

HEARTBEAT_SECONDS = 20.0
"""The service sends one each 15 s."""
USEFUL_SECONDS = 1.0
"""A connection that stood this long was no mere flicker, even when the commands had nothing to say."""

Explain = Callable[[], Callable[[ProblemError], Awaitable[SandmanError]] | None]
"""A weak reference to what knows more about a refusal: the link must not keep its sandbox object alive."""


class Link:
    def __init__(self, path: str, settings: Settings, slots: Slots, explain: Explain) -> None:
        self._url = settings.websocket_url + path
        self._settings = settings
        self._slots = slots
        self._explain = explain
        self._mux = Mux()
        self._news: dict[Channel, asyncio.Event] = {}
        self._room: dict[Channel, asyncio.Event] = {}
        self._to_send = asyncio.Event()
        self._flushed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._socket: ClientConnection | None = None
        self._heard = 0.0
        self._unused_since = 0.0
        self._closed = False

    @property
    def active(self) -> bool:
        """It has, or is making, a connection."""
        return self._runner is not None

    @property
    def heard_lately(self) -> bool:
        """What is sent now can be trusted to arrive: no heartbeat is missing, as on a connection whose peer has vanished."""
        return (
            self._socket is not None and asyncio.get_running_loop().time() - self._heard < HEARTBEAT_SECONDS
        )

    # For the execs

    def open(self, channel: Channel) -> None:
        """Carry the channel until it is over or detached. Does not wait; connects in the background when it must."""
        if self._closed:
            raise ClosedError("the sandbox object has been closed")
        self._slots.busy(self)
        self._news[channel] = asyncio.Event()
        self._room[channel] = asyncio.Event()
        self._mux.open(channel)
        self._to_send.set()
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run(), name="sandman-link")

    async def wait(self, channel: Channel) -> None:
        """Until the channel has events. Cancellable."""
        if channel.events or channel.over:
            return
        news = self._news[channel]
        news.clear()
        await news.wait()

    async def wait_room(self, channel: Channel) -> None:
        """Until the channel's stdin may have room again, or it is over. Cancellable."""
        room = self._room.get(channel)
        if room is None or channel.over or channel.stdin.room:
            return
        room.clear()
        await room.wait()

    def consumed(self, channel: Channel) -> None:
        self._mux.consumed(channel)
        if self._mux.has_outgoing:
            self._to_send.set()

    def wrote(self, channel: Channel) -> None:
        self._mux.wrote(channel)
        self._to_send.set()

    def signal(self, channel: Channel, name: str, scope: str) -> bool:
        queued = self._mux.signal(channel, name, scope)
        self._to_send.set()
        return queued

    def resize(self, channel: Channel, rows: int, cols: int) -> bool:
        queued = self._mux.resize(channel, rows, cols)
        self._to_send.set()
        return queued

    def detach(self, channel: Channel) -> None:
        self._mux.detach(channel)
        self._drop(channel)
        self._to_send.set()

    def _drop(self, channel: Channel) -> None:
        for waiting in (self._news, self._room):
            event = waiting.pop(channel, None)
            if event is not None:
                event.set()
        if not self._mux.busy:
            self._unused_since = asyncio.get_running_loop().time()
            if self._socket is not None:
                self._slots.idle(self)

    # The connection

    def give_up(self) -> None:
        if self._socket is not None and not self._mux.busy:
            self._socket.transport.abort()

    async def close(self) -> None:
        """Fail what is open, say goodbye, at most CLOSE_HANDSHAKE_SECONDS. Idempotent."""
        self._closed = True
        self._fail_all(ClosedError("the sandbox object was closed while this exec was open"))
        runner = self._runner
        if runner is None:
            return
        # What was queued last (a kill, a detach) still goes out before the goodbye.
        if self._mux.has_outgoing and self._socket is not None:
            self._flushed.clear()
            self._to_send.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_HANDSHAKE_SECONDS / 2):
                    await self._flushed.wait()
        runner.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([runner], timeout=2 * CLOSE_HANDSHAKE_SECONDS)

    async def _run(self) -> None:
        try:
            while self._mux.busy and not self._closed:
                await self._slots.acquire()
                try:
                    await self._connect_and_serve()
                finally:
                    self._slots.busy(self)
                    self._slots.release()
        except SandmanError as error:
            self._fail_all(error)
        except asyncio.CancelledError:
            self._closed = True
            self._fail_all(ClosedError("the event loop ended while this exec was open"))
            raise
        except Exception as error:  # a fault of ours must end the execs, not leave them waiting
            failure = ConnectionLost(f"the exec connection failed: {error!r}", retryable=False)
            failure.__cause__ = error
            self._fail_all(failure)
        finally:
            self._runner = None
            if self._mux.busy and not self._closed:
                # Opened between the last look and here.
                self._runner = asyncio.get_running_loop().create_task(self._run(), name="sandman-link")

    async def _connect_and_serve(self) -> None:
        """Connect, serve, and remake what breaks, holding one slot, until no exec is open and the connection has gone."""
        policy = self._settings.retry
        backoff = policy.start()
        stood = False
        while self._mux.busy and not self._closed:
            try:
                socket = await self._connect()
            except SandmanError as error:
                if not error.retryable:
                    raise await self._explained(error)  # noqa: B904 - it carries its own cause
                delay = backoff.next_delay(error.retry_after if isinstance(error, ProblemError) else None)
                if delay is None and stood:
                    # Not a ConnectError, which says that nothing was begun: the commands may be running on.
                    raise ConnectionLost(
                        f"the exec connection broke and could not be resumed: {error}"
                    ) from error
                if delay is None:
                    raise error
                await asyncio.sleep(delay)
                continue
            stood = True
            if await self._serve(socket):
                # It was of use: the time to resume counts from now on.
                backoff = replace(policy, total_seconds=self._settings.timeouts.resume).start()
            if self._mux.busy:
                delay = backoff.next_delay()
                if delay is None:
                    raise ConnectionLost("the exec connection breaks each time before it is of any use")
                await asyncio.sleep(delay)

    async def _explained(self, error: SandmanError) -> SandmanError:
        explain = self._explain()
        return await explain(error) if explain is not None and isinstance(error, ProblemError) else error

    async def _connect(self) -> ClientConnection:
        try:
            return await connect(
                self._url,
                additional_headers={"Authorization": f"Bearer {self._settings.api_key}"},
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                proxy=None if self._settings.is_loopback else True,
                open_timeout=self._settings.timeouts.connect + self._settings.timeouts.request,
                close_timeout=CLOSE_HANDSHAKE_SECONDS,
                ping_interval=None,
                max_size=MESSAGE_MAX,
                max_queue=RECEIVE_QUEUE,
            )
        except InvalidStatus as error:
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            if response.status_code < 300:
                raise ConnectError(f"HTTP {response.status_code} where a WebSocket was asked for") from error
            raise problem.error_from(response.status_code, headers, bytes(response.body or b"")) from error
        except (OSError, WebSocketException, TimeoutError, EOFError) as error:
            lasting = caused_by(error, ssl.SSLError)
            raise out_of_files(error) or ConnectError(
                f"{self._settings.url}: cannot open the exec connection ({error or type(error).__name__})",
                retryable=not lasting,
            ) from error

    async def _serve(self, socket: ClientConnection) -> bool:
        """Move messages until the connection breaks or is no longer needed; whether it brought anything on."""
        loop = asyncio.get_running_loop()
        self._socket = socket
        self._heard = loop.time()
        self._unused_since = self._heard
        since = self._heard
        useful = False
        self._mux.connected()
        self._to_send.set()
        writer = loop.create_task(self._write(socket), name="sandman-link-writer")
        watch = loop.create_task(self._watch(socket), name="sandman-link-watch")
        if not self._mux.busy:
            self._slots.idle(self)
        try:
            while True:
                message = await socket.recv()
                self._heard = loop.time()
                channel = self._mux.receive(message)
                if channel is not None:
                    useful = useful or isinstance(message, bytes) or channel.over
                    self._announce(channel)
        except (ConnectionClosed, FrameError):
            # A frame that makes no sense is a connection that makes no sense; resuming asks again from what is held.
            return useful or loop.time() - since >= USEFUL_SECONDS
        finally:
            self._socket = None
            self._mux.disconnected()
            self._slots.busy(self)
            writer.cancel()
            watch.cancel()
            await self._goodbye(socket)

    def _announce(self, channel: Channel) -> None:
        for waiting in (self._news, self._room):
            event = waiting.get(channel)
            if event is not None:
                event.set()
        if channel.over:
            self._drop(channel)

    async def _goodbye(self, socket: ClientConnection) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_HANDSHAKE_SECONDS):
                    await socket.close()
        finally:
            socket.transport.abort()

    async def _write(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._to_send.wait()
                self._to_send.clear()
                for message in self._mux.take_outgoing():
                    await socket.send(message)
                self._flushed.set()

    async def _watch(self, socket: ClientConnection) -> None:
        """End the connection when it is unused for long, or when the peer has not been heard for long."""
        timeouts = self._settings.timeouts
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.05, min(timeouts.idle, timeouts.silence) / 4))
            now = loop.time()
            if not self._mux.busy and now - self._unused_since >= timeouts.idle:
                self.give_up()
            elif now - self._heard >= timeouts.silence:
                socket.transport.abort()
            elif now - self._heard >= timeouts.silence / 2:
                self._mux.ping()
                self._to_send.set()

    def _fail_all(self, error: SandmanError) -> None:
        for channel in self._mux.channels:
            self._mux.fail(channel, error)
            self._announce(channel)
