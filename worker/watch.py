"""Moves records on as the backend shows it: from placed to proven usable, and from alive to gone.

Run by the leader of the loops. Two sources: the ledger's events (something was placed: probe it) and the provider's watch (something
went away). Both may miss something; `worker.reconcile` finds it later.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from app.ledger.errors import LedgerCorrupt, LedgerUnavailable
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.model import Reason, State
from app.ledger.settings import Settings
from app.ledger.tokens import sandbox_token
from worker.probe import ProbeError, probe
from worker.providers.base import Observed, Provider

log = structlog.get_logger(__name__)

_PROBE_TIMEOUT_SECONDS = 10.0
"""One attempt; a daemon on a busy machine may need seconds for its first answer."""
_CHANCE_SECONDS = 5.0
"""What each gets at least, however long ago it was placed: nobody may have probed it meanwhile."""
_PAUSE_SECONDS = (0.02, 0.5)
_LOOK_SECONDS = 2.0
"""Placed sandboxes whose event was missed are found by looking this often."""


class Prober:
    """Proves placed sandboxes usable, each until its deadline and none waiting for another: the ledger bounds how many start at once,
    and a few that hang must not hold up the probes of other tenants."""

    def __init__(self, ledger: Ledger, feed: EventFeed, secret: bytes, settings: Settings) -> None:
        self._ledger = ledger
        self._placed = feed.signal([State.STARTING])
        self._secret = secret
        self._seconds_max = settings.worker.ready_seconds_max
        self._probing: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                self._placed.clear()
                await self._look()
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._placed.wait()
                except TimeoutError:
                    pass
        finally:
            for task in self._probing.values():
                task.cancel()

    async def _look(self) -> None:
        placed = await self._ledger.starting()
        if not placed:
            return
        now = await self._ledger.now_ms()
        for sandbox_id, at in placed:
            if sandbox_id not in self._probing:
                left = max(_CHANCE_SECONDS, self._seconds_max - (now - at) / 1000)
                task = asyncio.create_task(self._prove(sandbox_id, left))
                self._probing[sandbox_id] = task
                task.add_done_callback(partial(self._finished, sandbox_id))

    def _finished(self, sandbox_id: str, done: asyncio.Task[None]) -> None:
        self._probing.pop(sandbox_id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            # The next look tries again; only the ledger being away is expected here.
            log.warning("probe.interrupted", sandbox=sandbox_id, error=str(error))

    async def _prove(self, sandbox_id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        token = sandbox_token(self._secret, sandbox_id)
        pause = _PAUSE_SECONDS[0]
        while True:
            record = await self._ledger.get(sandbox_id)
            if record is None or record.state is not State.STARTING:
                return
            try:
                if not record.address:
                    raise ProbeError("the backend has not given it an address")
                await probe(record.address, token, max(0.1, min(_PROBE_TIMEOUT_SECONDS, end - loop.time())))
            except ProbeError as error:
                if loop.time() >= end:
                    log.warning("probe.gave_up", sandbox=sandbox_id, detail=str(error))
                    await self._ledger.mark_failed(sandbox_id, Reason.DAEMON_UNREADY, str(error))
                    return
                await asyncio.sleep(min(pause, max(0.0, end - loop.time())))
                pause = min(pause * 2, _PAUSE_SECONDS[1])
            else:
                await self._ledger.mark_ready(sandbox_id)
                return


async def follow(ledger: Ledger, provider: Provider) -> None:
    """Turn what the provider's watch says into failures with a reason. Ends only by an error of the watch."""
    async for observed in provider.watch():
        if observed.phase == "gone":
            await note_gone(ledger, observed)


async def note_gone(ledger: Ledger, observed: Observed) -> bool:
    """A placed sandbox that is gone has failed; one that is being deleted, or not placed yet, is other people's business."""
    while True:
        try:
            record = await ledger.get(observed.id)
            if record is None or record.state not in (State.STARTING, State.READY):
                return False
            reason = observed.reason or Reason.DAEMON_LOST
            moved = await ledger.mark_failed(observed.id, reason, observed.detail)
        except LedgerUnavailable:
            await asyncio.sleep(0.5)
            continue
        except LedgerCorrupt as error:
            log.error("sandbox.unreadable", sandbox=observed.id, error=str(error))
            return False
        if moved:
            log.warning("sandbox.gone", sandbox=observed.id, reason=reason, detail=observed.detail)
        return moved
