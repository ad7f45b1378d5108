"""Compares everything in the backend with everything in the ledger, regularly, and settles what differs.

What the ledger holds and the backend lost has failed. What the backend holds and no live record claims is an orphan, and is removed
only when the ledger can be trusted about it: it is older than the last full comparison and than a grace, and was made in this epoch
of the ledger. An empty, foreign or rolled-back Redis begins a new epoch and so deletes nothing that is alive.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import structlog

from app.ledger.ledger import Ledger
from app.ledger.model import Brief, State, is_sandbox_id
from app.ledger.settings import Settings
from worker.providers.base import Observed, Provider, ProviderError
from worker.watch import note_gone

log = structlog.get_logger(__name__)

_CHUNK = 200
_LIST_SECONDS = 60.0
_REMOVE_SECONDS = 20.0
"""A few that hang may delay the next comparison, not prevent it."""
_PLACED_MARGIN_MS = 2_000
"""A sandbox placed while the listing ran may be missing from it."""


@dataclass(frozen=True, slots=True)
class Trust:
    """From when on the ledger's silence about an object means something, all in ms."""

    now: int
    born: int
    """Begin of this epoch."""
    agreement: int | None
    """Last full comparison in this epoch."""
    grace: int
    settle: int
    """How long after the end of a record a late create may still be on its way."""


def is_orphan(observed: Observed, record: Brief | None, trust: Trust) -> bool:
    """Whether it may be removed although no live record asks for that. Pure."""
    if record is not None:
        # The ledger knows that it is over and was cleaned up: a create that came late has made it again.
        cleaned = record.cleaned_ms
        return not record.live and cleaned is not None and trust.now - cleaned > trust.settle
    old = trust.now - observed.created_ms > trust.grace
    if observed.phase == "gone":
        return old
    agreed = trust.agreement is not None and trust.born <= observed.created_ms < trust.agreement
    return old and agreed


def is_stray(record: Brief | None) -> bool:
    """No live record and no cleanup under way claims it."""
    return record is None or (not record.live and record.cleaned_ms is not None)


class Reconciler:
    def __init__(
        self, ledger: Ledger, provider: Provider, settings: Settings, leader: str, token: int
    ) -> None:
        self._ledger = ledger
        self._provider = provider
        self._settings = settings.worker
        self._leader = leader
        self._token = token
        self._audited = -1
        self._slots = asyncio.Semaphore(settings.worker.delete_concurrency)

    async def run(self) -> None:
        while True:
            await self._audit()
            await self.compare()
            await asyncio.sleep(self._settings.relist_seconds)

    async def _audit(self) -> None:
        """Once for each leader, and whenever something was found wrong: what else is?"""
        if self._audited < 0 and (policy := await self._ledger.eviction_policy()) not in ("noeviction", ""):
            log.error("ledger.may_be_evicted", maxmemory_policy=policy, wanted="noeviction")
        if await self._ledger.anomaly_count() != self._audited:
            await self._ledger.audit()
            self._audited = await self._ledger.anomaly_count()

    async def compare(self) -> None:
        """One full comparison."""
        attestation = await self._ledger.attest()
        if attestation.alarming:
            log.error("ledger.not_the_same", verdict=attestation.verdict, epoch=attestation.epoch)
        agreement = await self._ledger.agreement_ms()
        listed_at = await self._ledger.now_ms()
        async with asyncio.timeout(_LIST_SECONDS):
            listed = await self._provider.list()
        objects = {found.id: found for found in listed if is_sandbox_id(found.id)}
        trust = Trust(
            now=listed_at,
            born=attestation.born_ms,
            agreement=agreement,
            grace=round(self._settings.orphan_grace_seconds * 1000),
            settle=round(self._settings.claim_seconds * 1000),
        )
        strays, orphans = await self._sort(objects, trust)
        await self._find_lost(objects, listed_at)
        # Not always the same ones first: some may never go.
        chosen = random.sample(orphans, min(len(orphans), self._settings.orphan_batch))
        gone = await asyncio.gather(*(self._remove(found.id) for found in chosen))
        removed = [found.id for found, is_gone in zip(chosen, gone, strict=True) if is_gone]
        await self._ledger.note_orphans(strays - len(removed), removed)
        await self._ledger.set_agreement(listed_at, self._leader, self._token)

    async def _sort(self, objects: dict[str, Observed], trust: Trust) -> tuple[int, list[Observed]]:
        strays, orphans = 0, []
        ids = list(objects)
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            for sandbox_id, record in zip(chunk, await self._ledger.briefs(chunk), strict=True):
                found = objects[sandbox_id]
                if found.phase == "gone" and record is not None:
                    await note_gone(self._ledger, found)
                strays += is_stray(record)
                if is_orphan(found, record, trust):
                    orphans.append(found)
        return strays, orphans

    async def _find_lost(self, objects: dict[str, Observed], listed_at: int) -> None:
        cursor = 0
        while True:
            cursor, held = await self._ledger.held(cursor)
            missing = [sandbox_id for sandbox_id in held if sandbox_id not in objects]
            for start in range(0, len(missing), _CHUNK):
                chunk = missing[start : start + _CHUNK]
                for sandbox_id, record in zip(chunk, await self._ledger.briefs(chunk), strict=True):
                    if record is None or record.state not in (State.STARTING, State.READY):
                        continue
                    if (record.starting_ms or 0) < listed_at - _PLACED_MARGIN_MS:
                        lost = Observed(sandbox_id, "gone", 0, detail="the backend does not list it any more")
                        await note_gone(self._ledger, lost)
            if cursor == 0:
                return

    async def _remove(self, sandbox_id: str) -> bool:
        try:
            async with self._slots, asyncio.timeout(_REMOVE_SECONDS):
                await self._provider.delete(sandbox_id)
        except (ProviderError, TimeoutError) as error:
            log.warning("orphan.stays", sandbox=sandbox_id, detail=str(error) or type(error).__name__)
            return False
        except Exception:
            # Also what no provider should raise: one that cannot be removed must not keep the comparison from its end.
            log.exception("orphan.stays", sandbox=sandbox_id)
            return False
        log.warning("orphan.removed", sandbox=sandbox_id)
        return True
