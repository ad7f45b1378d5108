"""Holding leases for everything that is in use through this process, in batches.

A command, a transfer or an open socket registers here; a waiting create too. One task then extends all leases that need it with
one script call, at most `ROUNDS_A_SECOND` times a second, however many there are. A lease is extended when a third of it has
passed since this process did so last, so no clock is compared with Redis's. Whoever used a sandbox only briefly since the last
round counts as well: every use is a sign of life. When this process dies, nobody extends, and the leases end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog

from app import metrics
from app.gateway.routes import Route, Routes
from app.ledger.errors import LedgerError
from app.ledger.ledger import Ledger

log = structlog.get_logger("sandman.holder")

ROUNDS_A_SECOND: Final = 5
TICK_SECONDS: Final = 1.0
# Leases longer than that are extended as often as if they had this length, so that one failed round never matters.
LEASE_SECONDS_CONSIDERED_MAX: Final = 60.0
# The grace for waiting callers is 10 s: three rounds may fail.
WAITING_SECONDS: Final = 2.5
BATCH_MAX: Final = 2_000


class Holder:
    """`run` is its only task; everything else is plain bookkeeping in the event loop."""

    def __init__(self, ledger: Ledger, routes: Routes, waiting_hold_seconds: float) -> None:
        self._ledger = ledger
        self._routes = routes
        self._waiting_hold_seconds = waiting_hold_seconds
        self._held: Counter[str] = Counter()
        self._used: dict[str, Route] = {}
        self._waiting: Counter[str] = Counter()
        self._waiting_touched: dict[str, float] = {}
        self._due = asyncio.Event()

    @contextlib.contextmanager
    def hold(self, route: Route) -> Iterator[None]:
        """Its sandbox is in use until the block ends."""
        if route.held_by_run:
            yield
            return
        sandbox_id = route.id
        self._held[sandbox_id] += 1
        self._used[sandbox_id] = route
        if time.monotonic() - route.touched >= _interval(route):
            self._due.set()
        try:
            yield
        finally:
            if self._held[sandbox_id] <= 1:
                del self._held[sandbox_id]
            else:
                self._held[sandbox_id] -= 1

    @contextlib.contextmanager
    def hold_waiting(self, sandbox_id: str, *, just_made: bool) -> Iterator[None]:
        """A caller waits for it to become ready. Held for a short grace only, so that a wait that ends without a word (a killed
        process) is noticed soon. `just_made`: the create itself has just set that grace."""
        self._waiting[sandbox_id] += 1
        if sandbox_id not in self._waiting_touched:
            self._waiting_touched[sandbox_id] = time.monotonic() if just_made else float("-inf")
            if not just_made:
                self._due.set()
        try:
            yield
        finally:
            if self._waiting[sandbox_id] <= 1:
                del self._waiting[sandbox_id]
                self._waiting_touched.pop(sandbox_id, None)
            else:
                self._waiting[sandbox_id] -= 1

    @property
    def held(self) -> int:
        return len(self._held) + len(self._waiting)

    async def run(self) -> None:
        """Extend what is due, for ever. Survives an unreachable ledger: leases do not expire meanwhile."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._round()
            except LedgerError as error:
                log.warning("leases could not be extended", error=str(error))
            await asyncio.sleep(1 / ROUNDS_A_SECOND)

    async def _round(self) -> None:
        now = time.monotonic()
        used, self._used = self._used, {}
        # What is still in use goes on being looked at; what was used since the last round is looked at once more.
        for sandbox_id in self._held:
            route = self._routes.cached(sandbox_id) or used.get(sandbox_id)
            if route is not None:
                self._used[sandbox_id] = route
        due = {**used, **self._used}
        routes = [route for route in due.values() if now - route.touched >= _interval(route)]
        for start in range(0, len(routes), BATCH_MAX):
            batch = routes[start : start + BATCH_MAX]
            try:
                touched = await self._ledger.touch([route.id for route in batch])
            except LedgerError:
                for route in batch:
                    self._used.setdefault(route.id, route)
                raise
            metrics.TOUCHES.inc(len(touched))
            for route in batch:
                route.touched = now
                if route.id not in touched:
                    self._routes.drop(route.id)
                    self._used.pop(route.id, None)
        waiting = [
            sandbox_id for sandbox_id, at in self._waiting_touched.items() if now - at >= WAITING_SECONDS
        ]
        for start in range(0, len(waiting), BATCH_MAX):
            ids = waiting[start : start + BATCH_MAX]
            await self._ledger.touch(ids, self._waiting_hold_seconds)
            for sandbox_id in ids:
                if sandbox_id in self._waiting_touched:
                    self._waiting_touched[sandbox_id] = now


def _interval(route: Route) -> float:
    return min(route.lease_seconds, LEASE_SECONDS_CONSIDERED_MAX) / 3
