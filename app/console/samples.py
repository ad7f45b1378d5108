"""The readings behind the chart: a short ring in Redis for each scope (everything, or one tenant).

Any number of API processes may sample; a guard key with an expiry lets one of them write a reading per interval. Scopes of single
tenants are sampled only while somebody has looked at them lately, so that a thousand tenants cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from app.console.chart import Sample

if TYPE_CHECKING:
    from redis.asyncio import Redis

EVERYTHING: Final = None
# Tenants sampled besides the whole; the least lately seen is dropped first.
SCOPES_MAX: Final = 50

Reader = Callable[[str | None], Awaitable[Sample]]
log = structlog.get_logger("sandman.console")


class SampleRing:
    def __init__(self, redis: Redis, namespace: str, *, interval_seconds: float, span_seconds: int) -> None:
        self._redis = redis
        self._prefix = f"{namespace}:console:samples:"
        self._interval_ms = int(interval_seconds * 1000)
        self._keep = int(span_seconds / interval_seconds) + 2
        self._span_seconds = span_seconds

    async def take(self, scope: str | None, read: Reader) -> bool:
        """Add one reading unless some process added one within the interval."""
        # Expires a little before the interval ends, or every second round would come just too early and be lost.
        guard = await self._redis.set(
            self._key("guard", scope), b"1", nx=True, px=int(self._interval_ms * 0.9)
        )
        if not guard:
            return False
        sample = await read(scope)
        key = self._key("ring", scope)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.rpush(
                key, f"{sample.at_ms},{sample.ready},{sample.starting},{sample.queued},{sample.creating}"
            )
            pipe.ltrim(key, -self._keep, -1)
            pipe.expire(key, self._span_seconds * 2)
            await pipe.execute()
        return True

    async def recent(self, scope: str | None) -> list[Sample]:
        """In order of time, bounded by the ring."""
        entries = await self._redis.lrange(self._key("ring", scope), 0, -1)
        samples: list[Sample] = []
        for entry in entries:
            text = entry.decode() if isinstance(entry, bytes) else str(entry)
            with contextlib.suppress(ValueError):
                at_ms, ready, starting, queued, *more = (int(part) for part in text.split(","))
                # Before there was a fifth one, those that were creating stood among the starting.
                samples.append(Sample(at_ms, ready, starting, queued, *more[:1]))
        samples.sort(key=lambda sample: sample.at_ms)
        return samples

    def _key(self, kind: str, scope: str | None) -> str:
        # The whole and a tenant that is called like it must not meet, hence the two prefixes.
        return f"{self._prefix}{kind}:" + ("all" if scope is None else f"tenant:{scope}")


class Sampler:
    """Takes a reading of every watched scope each interval, for as long as the service runs."""

    def __init__(self, ring: SampleRing, read: Reader, *, interval_seconds: float, span_seconds: int) -> None:
        self._ring = ring
        self._read = read
        self._interval_seconds = interval_seconds
        self._span_seconds = span_seconds
        self._seen: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, scope: str | None) -> None:
        """Somebody looks at this scope: keep its chart going for a while."""
        if scope is None:
            return
        self._seen.pop(scope, None)
        self._seen[scope] = time.monotonic()
        if len(self._seen) > SCOPES_MAX:
            del self._seen[next(iter(self._seen))]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console-sampler")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    async def _run(self) -> None:
        while True:
            oldest = time.monotonic() - self._span_seconds
            self._seen = {scope: at for scope, at in self._seen.items() if at >= oldest}
            for scope in (EVERYTHING, *self._seen):
                try:
                    await self._ring.take(scope, self._read)
                except Exception as error:  # Redis away: the chart shows the hole, the next round tries again
                    log.warning("reading not taken", error=type(error).__name__)
            await asyncio.sleep(self._interval_seconds)
