"""A TCP proxy that misbehaves on purpose: it cuts connections at a byte, stalls them, or answers in the server's place.

It runs in its own thread with its own loop, so that tests of the blocking client can use it as well.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

READ_BYTES = 16 * 1024


@dataclass
class Fault:
    """What happens to one connection. The default passes everything on."""

    cut_after: int | None = None
    """Bytes towards the client after which the connection is reset."""
    cut_upstream_after: int | None = None
    """Bytes towards the server after which it is reset."""
    stall_after: int | None = None
    """Bytes towards the client after which nothing moves any more, and nobody is told."""
    answer: bytes | None = None
    """Sent instead of talking to the server at all; then the connection is closed."""
    refuse: bool = False


@dataclass
class Seen:
    connections: int = 0
    cuts: int = 0
    requests: list[bytes] = field(default_factory=list)
    """The first bytes of each connection, as far as they were read."""


class FaultProxy:
    """`with FaultProxy(host, port) as proxy:`; `proxy.faults(n)` decides for the n-th connection, counted from 0."""

    def __init__(self, host: str, port: int, faults: Callable[[int], Fault] | None = None) -> None:
        self._target = (host, port)
        self.faults: Callable[[int], Fault] = faults or (lambda _: Fault())
        self.seen = Seen()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def cut_all(self) -> None:
        """Reset every connection that is open now."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def _cut_all(self) -> None:
        for writer in list(self._open):
            reset(writer)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._cut_all()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self.faults(self.seen.connections)
        self.seen.connections += 1
        self._open.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if fault.refuse:
                reset(writer)
                return
            if fault.answer is not None:
                self.seen.requests.append(await reader.read(READ_BYTES))
                writer.write(fault.answer)
                await writer.drain()
                return
            back, upstream = await asyncio.open_connection(*self._target)
            self._open.add(upstream)
            there = asyncio.create_task(self._pump(reader, upstream, fault.cut_upstream_after, None, writer))
            here = asyncio.create_task(self._pump(back, writer, fault.cut_after, fault.stall_after, upstream))
            await asyncio.wait([there, here], return_when=asyncio.FIRST_COMPLETED)
            for task in (there, here):
                task.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._open.discard(each)
                    with suppress(Exception):
                        each.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut_after: int | None,
        stall_after: int | None,
        other: asyncio.StreamWriter,
    ) -> None:
        moved = 0
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if stall_after is not None and moved + len(data) > stall_after:
                    await asyncio.Event().wait()
                if cut_after is not None and moved + len(data) >= cut_after:
                    writer.write(data[: cut_after - moved])
                    await writer.drain()
                    self.seen.cuts += 1
                    reset(writer)
                    reset(other)
                    return
                writer.write(data)
                moved += len(data)
                await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST where the kernel lets us: what is on its way is lost, as when a cable is pulled."""
    with suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    writer.transport.abort()
