"""How many exec connections one client holds at once: a fair queue that takes idle connections from those who do not need them.

A thousand sandboxes do not need a thousand sockets: those whose exec is over give theirs up when somebody queues, and get a
new one (a few milliseconds) with their next exec.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Protocol

from sandman.errors import ConnectionLimit


class Holder(Protocol):
    def give_up(self) -> None:
        """Close the connection if no exec is open on it, and release its slot."""


class Slots:
    def __init__(self, limit: int, queue_seconds: float) -> None:
        self._limit = limit
        self._queue_seconds = queue_seconds
        self._held = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._idle: OrderedDict[Holder, None] = OrderedDict()

    @property
    def held(self) -> int:
        return self._held

    async def acquire(self) -> None:
        """Wait for a slot, first come first served. Cancellable. Raises ConnectionLimit after `queue_seconds`."""
        if self._held < self._limit and not self._queue:
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._evict()
        try:
            async with asyncio.timeout(self._queue_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release()  # it was handed over in the same moment
            else:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise ConnectionLimit(
                    f"no exec connection became free in {self._queue_seconds:g} s: all {self._limit} are busy. "
                    "Raise `ulimit -n` before the client is made, or pass Limits(channels=…)."
                ) from error
            raise

    def release(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._held -= 1

    def idle(self, holder: Holder) -> None:
        """No exec is open on the holder's connection any more."""
        self._idle[holder] = None
        self._idle.move_to_end(holder)
        if self._queue:
            self._evict()

    def busy(self, holder: Holder) -> None:
        self._idle.pop(holder, None)

    def _evict(self) -> None:
        if self._idle:
            holder, _ = self._idle.popitem(last=False)
            holder.give_up()
