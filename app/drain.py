"""Shutting down in order: who is told, and when the server may stop.

On SIGTERM or SIGINT (0.0 s) the drain starts: new requests get 503, waiting creates are answered with 202 and a claimed
sandbox, WebSockets are closed with 1012 (come back), streams end. Short requests finish. At `DRAIN_SECONDS` at the latest the
server itself is told to stop; what is open then is cut, and after `KILL_SECONDS` the process is killed. The server alone would
cut WebSockets without a word and wait for long answers for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

DRAIN_SECONDS: Final = 2.5
KILL_SECONDS: Final = 5


class Drain:
    """One for a process. `started` is set once and never unset."""

    def __init__(self) -> None:
        self.started = False
        self._event: asyncio.Event | None = None
        self._busy = 0
        self._idle: asyncio.Event | None = None
        self._finishing: asyncio.Future[None] | None = None

    def bind(self) -> None:
        """Called once inside the running loop."""
        self._event = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        self.started = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Until the drain starts."""
        assert self._event is not None, "bind() comes first"
        await self._event.wait()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Something that should be let finish, within the bound."""
        self._busy += 1
        if self._idle is not None:
            self._idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if self._busy == 0 and self._idle is not None:
                self._idle.set()

    def begin(self, stop: Callable[[], None]) -> None:
        """From a signal handler in the loop: `finish` in the background."""
        self._finishing = asyncio.ensure_future(self.finish(stop))

    async def finish(self, stop: Callable[[], None]) -> None:
        """Start the drain, wait until nothing is busy or the time is over, and call `stop`."""
        self.start()
        assert self._idle is not None, "bind() comes first"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                # One turn of the loop for every waiter to notice and to send its last words.
                await asyncio.sleep(0.1)
                await self._idle.wait()
        stop()
