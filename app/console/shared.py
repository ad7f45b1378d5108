"""Answers that many open pages share for a moment.

Twenty pages that poll must not cost twenty readings: whoever asks first starts the work, everybody who asks meanwhile or within
the age limit gets the same result. Failures are never kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Different questions kept at once; pages deep in a list differ by cursor, so the oldest question goes first.
ENTRIES_MAX: Final = 256


class Shared(Generic[K, V]):
    def __init__(
        self,
        make: Callable[[K], Awaitable[V]],
        *,
        age_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._age_seconds = age_seconds
        self._clock = clock
        self._entries: dict[K, tuple[float, asyncio.Task[V]]] = {}

    async def get(self, key: K) -> V:
        """Cancelling one waiter does not cancel the work that others wait for."""
        entry = self._entries.get(key)
        if entry is None or self._old(entry):
            task = asyncio.create_task(self._call(key))
            task.add_done_callback(_seen)
            self._entries.pop(key, None)
            self._entries[key] = entry = (self._clock(), task)
            self._forget()
        return await asyncio.shield(entry[1])

    async def close(self) -> None:
        """End what is under way; those who wait for it are cancelled."""
        tasks = [task for _, task in self._entries.values()]
        self._entries.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self) -> None:
        """Drop answers that are too old to be given again, oldest first, and more if there are too many all the same."""
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if len(self._entries) <= ENTRIES_MAX and not self._old(entry):
                return
            del self._entries[key]

    def _old(self, entry: tuple[float, asyncio.Task[V]]) -> bool:
        started, task = entry
        if not task.done():
            return False
        return (
            task.cancelled() or task.exception() is not None or self._clock() - started >= self._age_seconds
        )

    async def _call(self, key: K) -> V:
        return await self._make(key)


def _seen(task: asyncio.Task[V]) -> None:
    """Take note of a failure that nobody waits for any more; the waiters that are left get it all the same."""
    if not task.cancelled():
        task.exception()
