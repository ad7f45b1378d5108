"""Renews what this process holds: one task for all open sandboxes and runs of a client.

Objects are held weakly. One that the program has lost is no longer renewed and its sandbox is taken back when its lease ends:
the same that happens when the whole process dies.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import weakref
from contextlib import suppress
from typing import Protocol

from sandman.errors import Gone, NotFound, SandboxLost, SandmanError

RENEW_AT = 1 / 3
"""Of the lease: two renewals may fail entirely before it ends."""
RETRY_AT_MOST_SECONDS = 2.0
ASSUMED_LEASE_SECONDS = 30.0
"""When the service has not said how long the lease is: short enough for any lease that makes sense."""


class Leased(Protocol):
    async def _renew_lease(self) -> float | None:
        """Renew once; the seconds granted. None: nothing to renew any more."""

    def _lease_lost(self, error: SandmanError) -> None: ...


class LeaseKeeper:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, weakref.ref[Leased]]] = []
        self._order = itertools.count()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def keep(self, held: Leased, lease_seconds: float | None) -> None:
        self._schedule(weakref.ref(held), pause(lease_seconds))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sandman-leases")

    async def close(self) -> None:
        tasks = [task for task in (self._task, *self._renewals) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _schedule(self, held: weakref.ref[Leased], after: float) -> None:
        due = asyncio.get_running_loop().time() + after
        heapq.heappush(self._due, (due, next(self._order), held))
        self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            wait = self._due[0][0] - loop.time() if self._due else None
            if wait is None or wait > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                continue
            _, _, held = heapq.heappop(self._due)
            if held() is not None:
                task = loop.create_task(self._renew(held))
                self._renewals.add(task)
                task.add_done_callback(self._renewals.discard)

    async def _renew(self, reference: weakref.ref[Leased]) -> None:
        held = reference()
        if held is None:
            return
        try:
            granted = await held._renew_lease()
        except (NotFound, Gone, SandboxLost) as error:
            held._lease_lost(error)
            return
        except SandmanError as error:
            # Whatever it is, the lease may still be there: try until the service itself says that it is over.
            self._schedule(
                reference, RETRY_AT_MOST_SECONDS * (1 if error.retryable else 5) * random.uniform(0.5, 1)
            )
            return
        if granted is not None:
            self._schedule(reference, pause(granted))


def pause(lease_seconds: float | None) -> float:
    """Until the next renewal; a tenth of jitter keeps a thousand leases from one burst apart."""
    return (lease_seconds or ASSUMED_LEASE_SECONDS) * RENEW_AT * random.uniform(0.9, 1.0)
