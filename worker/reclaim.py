"""Takes back what nobody holds: each second one script finds what has expired, and whatever is over is removed from the backend.

A removal is repeated with back-off until the provider confirms it; the record says `deleting` until then, through any number of
restarts. The same tick wakes a provision job when work waits and nobody is at it, so that a lost wake-up costs seconds, not a sandbox.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from app.ledger.errors import LedgerUnavailable
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.model import Cleanup, State
from app.ledger.settings import Settings
from worker.providers.base import Provider, ProviderError

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
_EXPIRE_BATCH = 100
"""About 8 ms in Redis, during which nobody else is served."""
_BACKOFF_SECONDS = (0.5, 30.0)
_REMOVE_SECONDS = 120.0
"""A removal that hangs must not keep its place from the others for ever."""
_ANOMALIES_TOLD = 20
_STOP_SECONDS = 3.0
"""What a stop lets removals in flight take to be confirmed; the next start repeats those that were not."""


class Reclaimer:
    def __init__(self, ledger: Ledger, feed: EventFeed, provider: Provider, settings: Settings) -> None:
        self._ledger = ledger
        self._provider = provider
        self._concurrency = settings.worker.delete_concurrency
        self._over = feed.signal([State.DELETING, State.FAILED, "run_ended"])
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self._anomalies = 0

    async def run(self) -> None:
        try:
            while True:
                self._over.clear()
                busy = await self._tick()
                if busy and len(self._removing) < self._concurrency:
                    # More is due than one batch held.
                    continue
                await self._rest()
        finally:
            if self._removing:
                _done, late = await asyncio.wait(self._removing.values(), timeout=_STOP_SECONDS)
                for task in late:
                    task.cancel()

    async def _tick(self) -> bool:
        """Give whether there is more to do at once."""
        tick = await self._ledger.tick(_EXPIRE_BATCH)
        for expired in tick.expired:
            log.info("reclaimed", id=expired.id, reclaim=expired.reclaim, run=expired.is_run)
        if tick.anomalies > self._anomalies:
            await self._tell(tick.anomalies)
        if tick.wake:
            await self._ledger.wake()
        free = self._concurrency - len(self._removing)
        due = await self._ledger.cleanup_due(free) if tick.cleanup and free > 0 else []
        for record in due:
            if record.id not in self._removing:
                task = asyncio.create_task(self._remove(record))
                self._removing[record.id] = task
                task.add_done_callback(partial(self._removed, record.id))
        return len(tick.expired) >= _EXPIRE_BATCH or tick.cleanup > len(due)

    async def _tell(self, anomalies: int) -> None:
        """What the scripts mended since the last look is a fault of Redis or of ours: somebody should know."""
        new = anomalies - self._anomalies
        for text in await self._ledger.anomalies(min(new, _ANOMALIES_TOLD)):
            log.error("ledger.anomaly", found=text, in_all=anomalies)
        self._anomalies = anomalies

    def _removed(self, sandbox_id: str, done: asyncio.Task[None]) -> None:
        self._removing.pop(sandbox_id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("removal.unrecorded", sandbox=sandbox_id, error=str(error))

    async def _rest(self) -> None:
        """Until something is over, a removal ends, or a second has passed."""
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait(
                {over, *self._removing.values()}, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            over.cancel()

    async def _remove(self, record: Cleanup) -> None:
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                await self._provider.delete(record.id)
        except Exception as error:
            # Also what no provider should raise: the sandbox must not be forgotten because of it.
            if not isinstance(error, (ProviderError, TimeoutError)):
                log.exception("removal.broke", sandbox=record.id)
            await self._again(record.id, str(error) or type(error).__name__)
            return
        self._failures.pop(record.id, None)
        try:
            if await self._ledger.cleanup_done(record.id):
                log.debug("removed", sandbox=record.id, state=record.state, reclaim=record.reclaim)
        except LedgerUnavailable:
            # It comes up again when its cleanup claim lapses, and removing twice is harmless.
            log.warning("removal.unrecorded", sandbox=record.id)

    async def _again(self, sandbox_id: str, error: str) -> None:
        failures = self._failures[sandbox_id] = self._failures.get(sandbox_id, 0) + 1
        low, high = _BACKOFF_SECONDS
        delay = min(high, low * 2.0 ** min(failures - 1, 10))
        log.warning("removal.failed", sandbox=sandbox_id, error=error, failures=failures, delay=delay)
        try:
            await self._ledger.cleanup_retry(sandbox_id, error, delay)
        except LedgerUnavailable:
            log.warning("removal.unrecorded", sandbox=sandbox_id)
