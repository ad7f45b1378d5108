"""Keep-alive connections to many daemons, bounded in total.

Ten thousand sandboxes cannot each keep a connection, so idle ones are kept in one list in order of last use; the oldest gives
way. A connection that the daemon closed while idle is noticed by the loop and never handed out; the race that is left (closing
just as a request goes out) is the caller's to repeat where that is safe.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from typing import Final

from app import metrics
from app.gateway.wire import Wire, connect
from app.problems import Problem

OPEN_MAX: Final = 8_192
"""In all, busy ones included. With as many callers' connections it stays below the usual limit of 20,000 files."""
IDLE_MAX: Final = 1_024
# A rollout thinks for seconds between two commands; a connection that was idle for longer is worth less than its memory.
IDLE_SECONDS: Final = 45.0
CONNECT_SECONDS: Final = 5.0


class Pool:
    """`take` and then `give` back or abort. One event loop only."""

    def __init__(self, open_max: int = OPEN_MAX, idle_max: int = IDLE_MAX) -> None:
        self._open_max = open_max
        self._idle_max = idle_max
        self._idle: OrderedDict[Wire, str] = OrderedDict()
        self._by_address: dict[str, deque[Wire]] = {}
        self._busy = 0

    @property
    def busy(self) -> int:
        return self._busy

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def take(self, address: str, *, fresh: bool = False) -> Wire:
        """A connection to this daemon; `fresh` when the request cannot be repeated on a stale one. Raises OSError, TimeoutError,
        or the `gateway-busy` problem."""
        if not fresh:
            waiting = self._by_address.get(address)
            while waiting:
                wire = waiting.pop()
                del self._idle[wire]
                if not waiting:
                    del self._by_address[address]
                if not wire.closed:
                    self._busy += 1
                    return wire
        while self._busy + len(self._idle) >= self._open_max:
            if not self._idle:
                raise Problem("gateway-busy", headers={"retry-after": "1"})
            self._evict()
        self._busy += 1
        try:
            return await connect(address, CONNECT_SECONDS)
        except BaseException:
            self._busy -= 1
            raise

    def give(self, address: str, wire: Wire) -> None:
        """Take it back: kept when it can be used again, else closed. Each wire that was taken comes back once."""
        self._busy -= 1
        if not wire.reusable:
            wire.abort()
            return
        wire.rest()
        wire.idle_since = time.monotonic()
        self._idle[wire] = address
        waiting = self._by_address.get(address)
        if waiting is None:
            waiting = self._by_address[address] = deque()
        waiting.append(wire)
        if len(self._idle) > self._idle_max:
            self._evict()

    def forget(self, address: str) -> None:
        """Close what is idle to this daemon: its sandbox has ended."""
        for wire in self._by_address.pop(address, ()):
            del self._idle[wire]
            wire.abort()

    def sweep(self) -> None:
        """Close what was idle for too long."""
        limit = time.monotonic() - IDLE_SECONDS
        while self._idle:
            wire = next(iter(self._idle))
            if wire.idle_since > limit and not wire.closed:
                return
            self._evict()

    def report(self) -> None:
        metrics.DAEMON_CONNECTIONS.labels("busy").set(self._busy)
        metrics.DAEMON_CONNECTIONS.labels("idle").set(len(self._idle))

    async def close(self) -> None:
        while self._idle:
            self._evict()
        await asyncio.sleep(0)

    def _evict(self) -> None:
        wire, address = self._idle.popitem(last=False)
        waiting = self._by_address[address]
        waiting.remove(wire)
        if not waiting:
            del self._by_address[address]
        wire.abort()
