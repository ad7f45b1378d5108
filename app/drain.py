"""Shutting down in order: who is told, and when the server may stop.

On SIGTERM or SIGINT (0.0 s) the drain starts: new requests get 503, waiting creates are answered with 202 and a claimed
sandbox, WebSockets are closed with 1012 (come back). Short requests finish. At `FINISH_SECONDS` what still runs is cut: commands
are answered with 503 and go on in their sandboxes, streams end. At `DRAIN_SECONDS` at the latest the server itself is told to
stop, and after `KILL_SECONDS` the process is killed. The server alone would cut WebSockets without a word and wait for long
answers for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

FINISH_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 3.0
KILL_SECONDS: Final = 5


class Drain:
    """One for a process. `started` is set once and never unset."""

    def __init__(self) -> None:
        self.started = False
        self._event: asyncio.Event | None = None
        self._busy = 0
        self._idle: asyncio.Event | None = None
        self._finishing: asyncio.Future[None] | None = None
        self._cuts: set[Callable[[], None]] = set()

    @property
    def in_flight(self) -> int:
        """Requests and sockets that are being served."""
        return self._busy

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

    def on_cut(self, cut: Callable[[], None]) -> Callable[[], None]:
        """Call `cut` when time is up; gives what takes that back."""
        self._cuts.add(cut)
        return lambda: self._cuts.discard(cut)

    async def finish(self, stop: Callable[[], None]) -> None:
        """Start the drain, wait until nothing is busy or the time is over, and call `stop`."""
        self.start()
        # One turn of the loop for every waiter to notice and to send its last words.
        await asyncio.sleep(0.1)
        await self._until_idle(FINISH_SECONDS)
        for cut in list(self._cuts):
            cut()
        await self._until_idle(DRAIN_SECONDS - FINISH_SECONDS)
        stop()

    async def _until_idle(self, seconds: float) -> None:
        assert self._idle is not None, "bind() comes first"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
