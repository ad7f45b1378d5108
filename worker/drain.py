"""One pass over the queue: admit under pacing, create concurrently, report back, until nothing waits or the time is up.

Everything it holds is in the ledger as a claim with an end, so it may vanish at any line. A create that comes back after its sandbox
was given up is not undone here: letting go of the claim is what allows the cleanup to remove it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable

import structlog

from app.ledger.errors import LedgerError, LedgerUnavailable
from app.ledger.ledger import Ledger
from app.ledger.model import PaceSample, Reason, Record
from app.ledger.settings import Settings
from app.ledger.tokens import sandbox_token, token_sha256
from worker.providers.base import Provider, ProviderError

log = structlog.get_logger(__name__)

_BEAT_SECONDS_MAX = 1.0
"""How often claims are extended and cancelled creates noticed; with short claims, each third of one."""
_STALE_LOOK_SECONDS = 0.5
_POLL_SECONDS = 0.05
"""A create that arrives while a job works waits at most this long for being seen."""
_PACE_REPORT_SECONDS = 0.25
_STOP_GRACE_SECONDS = 3.0
"""What a stop lets creates in flight take to finish; `sandman up` allows the worker 5 s in all."""
_HAND_OVER_SECONDS = 1.0
"""At the end of a job's time nothing new is taken for this long; if what is in flight has not ended by then, the job goes on."""
_LONGEST_SECONDS, _LONGEST_GRACE_SECONDS = 480.0, 60.0
"""Together below the time-out of the RQ job, whose alarm would break the loop at any line."""
_RETRY_DELAY_SECONDS = (0.5, 15.0)
_RETRY_AFTER_SECONDS_MAX = 60.0
"""However long a pause the backend asks for: its next answer says it again."""
_THROTTLED_DELAY_SECONDS = 1.0
_AWAY_PAUSE_SECONDS = 0.5
_PERSIST_SECONDS = 5.0
"""How long a result is offered to a Redis that is away; afterwards the claim lapses and the create is repeated."""


class Drain:
    """Used once. `work` gives how many sandboxes it placed."""

    def __init__(
        self, ledger: Ledger, provider: Provider, secret: bytes, settings: Settings, worker: str
    ) -> None:
        self._ledger = ledger
        self._provider = provider
        self._secret = secret
        self._settings = settings.worker
        self._worker = worker
        self._beat_seconds = min(_BEAT_SECONDS_MAX, self._settings.claim_seconds / 3)
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._suspects = 0
        self._stale_look = 0.0
        self._stopped_at: float | None = None
        self._alone = False
        self._made = 0
        self._ok = 0
        self._throttled = 0
        self._latency_ms = 0.0
        self._retry_after = 0.0

    def stop(self) -> None:
        """Safe in a signal handler: only remembers the moment."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    async def work(self) -> int:
        await self._ledger.drain_begin()
        beat = asyncio.create_task(self._beat())
        try:
            waiting = await self._loop()
        finally:
            beat.cancel()
            await self._cancel_all()
            with contextlib.suppress(asyncio.CancelledError):
                await beat
        await self._report_pace()
        await self._ledger.drain_end()
        if waiting:
            await self._ledger.wake()
        return self._made

    async def _loop(self) -> bool:
        """Give whether more waits."""
        end = time.monotonic() + self._settings.job_seconds
        last_end = time.monotonic() + _LONGEST_SECONDS
        pace_report = 0.0
        while True:
            now = time.monotonic()
            if now > end + _HAND_OVER_SECONDS and self._in_flight and now < last_end:
                # Creates that take long, for example with an image to import, must not keep the others waiting.
                end = now + self._settings.job_seconds
            taking = now < end and self._stopped_at is None
            pause, queued = _POLL_SECONDS, 0
            if taking:
                try:
                    pause, queued = await self._take(now)
                except LedgerUnavailable:
                    # What is in flight is worth more than this pass: the backend goes on with it while Redis is away.
                    if not self._in_flight:
                        raise
                    pause = _AWAY_PAUSE_SECONDS
            if not self._in_flight:
                self._alone = False
                if not taking:
                    return True
                if not queued and not self._suspects:
                    return False
            if self._stopped_at is not None and now - self._stopped_at > _STOP_GRACE_SECONDS:
                return True
            if now > last_end + _LONGEST_GRACE_SECONDS:
                return True
            if now - pace_report >= _PACE_REPORT_SECONDS:
                pace_report = now
                with contextlib.suppress(LedgerUnavailable):
                    await self._report_pace()
            if self._in_flight:
                await asyncio.wait(
                    self._in_flight.values(), timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
            else:
                await asyncio.sleep(pause)

    async def _take(self, now: float) -> tuple[float, int]:
        """Begin what may begin; give how long to pause, and how many still wait."""
        pause, queued = _POLL_SECONDS, 0
        if self._free() > 0 and not self._alone:
            if now - self._stale_look >= _STALE_LOOK_SECONDS or (self._suspects and not self._in_flight):
                self._stale_look = now
                # Its own claims may have lapsed, while Redis was away; they are not those of somebody who died.
                await self._extend()
                takeover = await self._ledger.take_over(self._worker, self._free(), alone=not self._in_flight)
                self._suspects = takeover.suspects
                for record in takeover.records:
                    log.warning("provision.taken_over", sandbox=record.id, attempts=record.attempts)
                    # One that is still being let go of here comes up again when this claim has lapsed.
                    if record.id not in self._in_flight:
                        self._alone = record.crashes >= 2
                        self._begin(record)
            # While a suspect waits for its turn alone, nothing new begins.
            if self._free() > 0 and not self._suspects and not self._alone:
                admission = await self._ledger.admit(self._free(), self._worker)
                queued = admission.queued
                for record in admission.records:
                    self._begin(record)
                if admission.blocked:
                    pause = min(max(admission.retry_after_ms / 1000, 0.005), _POLL_SECONDS * 2)
        return pause, queued

    def _free(self) -> int:
        return self._settings.concurrency - len(self._in_flight)

    def _begin(self, record: Record) -> None:
        task = asyncio.create_task(self._create(record), name=record.id)
        self._in_flight[record.id] = task
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(task.get_name(), None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its claim lapses, and the create is taken over.
            log.error("provision.unrecorded", sandbox=task.get_name(), error=str(error))

    async def _create(self, record: Record) -> None:
        started = time.monotonic()
        try:
            placement = await self._provider.create(
                record, token_sha256(sandbox_token(self._secret, record.id))
            )
        except asyncio.CancelledError:
            # Given up meanwhile, or this job stops: whoever comes next finds what is there by the id.
            await asyncio.shield(self._let_go(record, "interrupted", counts=self._stopped_at is None))
            raise
        except ProviderError as error:
            await self._failed(record, error, started)
        except Exception as error:
            log.exception("provision.create_broke", sandbox=record.id)
            await self._failed(
                record,
                ProviderError(
                    Reason.BACKEND_ERROR, f"internal error: {type(error).__name__}: {error}", retryable=True
                ),
                started,
            )
        else:
            self._measure(started, placement.latency_seconds)
            self._ok += 1
            if await self._persist(
                lambda: self._ledger.mark_starting(record.id, placement.address, placement.enforced)
            ):
                self._made += 1
            else:
                await self._let_go(record, "given up while it was created")

    async def _failed(self, record: Record, error: ProviderError, started: float) -> None:
        self._measure(started)
        retry_after = min(error.retry_after_seconds, _RETRY_AFTER_SECONDS_MAX)
        if error.throttled:
            self._throttled += 1
            self._retry_after = max(self._retry_after, retry_after)
        if error.retryable and (error.throttled or record.attempts < self._settings.attempts_max):
            low, high = _RETRY_DELAY_SECONDS
            delay = _THROTTLED_DELAY_SECONDS if error.throttled else low * 2.0 ** (record.attempts - 1)
            # Spread, or all that were refused together would come back together.
            delay = max(retry_after, min(high, delay)) * random.uniform(1.0, 1.5)
            log.warning(
                "provision.retry", sandbox=record.id, reason=error.reason, detail=error.detail, delay=delay
            )
            # A backend that is busy says nothing about the sandbox: it is tried as long as somebody holds it.
            await self._let_go(record, f"{error.reason}: {error.detail}", delay, counts=not error.throttled)
            return
        log.warning("provision.failed", sandbox=record.id, reason=error.reason, detail=error.detail)
        await self._persist(
            lambda: self._ledger.mark_failed(record.id, error.reason, error.detail, final=error.final)
        )
        await self._let_go(record, error.detail)

    async def _let_go(self, record: Record, error: str, delay: float = 0.0, *, counts: bool = True) -> None:
        await self._persist(
            lambda: self._ledger.release_claim(
                record.id, self._worker, delay_seconds=delay, error=error, counts=counts
            )
        )

    async def _persist(self, call: Callable[[], Awaitable[bool]]) -> bool:
        """Give a result to a ledger that may be away for a moment; False when it stays away: the claim then lapses."""
        end = time.monotonic() + _PERSIST_SECONDS
        while True:
            try:
                return await call()
            except LedgerUnavailable:
                if time.monotonic() > end:
                    return False
                await asyncio.sleep(0.2)

    def _measure(self, started: float, seconds: float | None = None) -> None:
        self._latency_ms += (time.monotonic() - started if seconds is None else seconds) * 1000

    async def _report_pace(self) -> None:
        calls = self._ok + self._throttled
        if not calls:
            return
        sample = PaceSample(self._ok, self._throttled, self._latency_ms / calls, self._retry_after)
        self._ok = self._throttled = 0
        self._latency_ms = self._retry_after = 0.0
        await self._ledger.pace_report(sample)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            try:
                await self._ledger.drain_still()
                await self._extend()
            except LedgerError as error:
                log.warning("provision.beat_missed", error=str(error))

    async def _extend(self) -> None:
        """Keep what is in flight; stop what is no longer this worker's to create."""
        ids = list(self._in_flight)
        for sandbox_id in await self._ledger.extend_claims(self._worker, ids) if ids else []:
            task = self._in_flight.get(sandbox_id)
            if task is not None:
                task.cancel()

    async def _cancel_all(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_GRACE_SECONDS)
