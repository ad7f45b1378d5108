"""Waiting for a record to change, without polling it.

One reader per process follows the event stream and wakes whoever waits for that id; the woken one reads the record again, so an
event only ever means "look". Because events can be missed (a trimmed stream, a Redis that was away), the revisions of all awaited
records are compared every other second, in a few round trips for thousands of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, cast

import redis.exceptions

from app.ledger.connection import make_client, translated
from app.ledger.errors import LedgerError, LedgerUnavailable, NotFound
from app.ledger.ledger import Ledger
from app.ledger.model import Record, State
from app.ledger.tasks import end_tasks

WAITERS_MAX = 50_000
_BLOCK_MS = 5_000
_BATCH = 1_000
_RECHECK_SECONDS = 1.5
_RECHECK_CHUNK = 500
_READS = 12
"""Records read at once for those who wait: a burst that becomes ready must leave connections to everybody else."""
_OVERTIME_SECONDS = 1.0
"""For the last look, when the time is already up."""
_BACKOFF_SECONDS = (0.1, 2.0)

_log = logging.getLogger(__name__)


class TooManyWaiters(LedgerError):
    retryable = True


class _Waiter:
    __slots__ = ("rev", "woken")

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.rev = -1


class EventFeed:
    """Belongs to one event loop: `start` it once per process, `aclose` it at the end."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiters: defaultdict[str, set[_Waiter]] = defaultdict(set)
        self._count = 0
        self._reads = asyncio.Semaphore(_READS)
        self._signals: list[tuple[frozenset[str], asyncio.Event]] = []
        self._listeners: list[Callable[[str | None], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._recheck())]

    async def aclose(self) -> None:
        await end_tasks(*self._tasks)
        self._tasks = []

    async def __aenter__(self) -> EventFeed:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def wait_for(self, sandbox_id: str, predicate: Callable[[Record], bool], timeout: float) -> Record:
        """Wait until the record satisfies the predicate, or for `timeout` seconds; gives the record as it was read last.

        Rides over a Redis that is away, until the time is up (then LedgerUnavailable). Raises NotFound for an id that is unknown or
        has been forgotten. Safe to cancel.
        """
        if self._count >= WAITERS_MAX:
            raise TooManyWaiters(f"{WAITERS_MAX} callers wait already")
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        waiter = _Waiter()
        self._waiters[sandbox_id].add(waiter)
        self._count += 1
        try:
            while True:
                waiter.woken.clear()
                left = end - loop.time()
                try:
                    # A Redis that hangs answers nobody: neither the read nor the wait for one's turn may outlast the caller's time.
                    async with asyncio.timeout(max(left, 0.0) + _OVERTIME_SECONDS), self._reads:
                        record = await self._ledger.get(sandbox_id)
                except TimeoutError:
                    raise LedgerUnavailable("Redis does not answer in time") from None
                except LedgerUnavailable:
                    if left <= 0:
                        raise
                    await asyncio.sleep(min(left, 0.5))
                    continue
                if record is None:
                    raise NotFound(sandbox_id)
                waiter.rev = record.rev
                if predicate(record) or left <= 0:
                    return record
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waiter.woken.wait(), left)
        finally:
            self._count -= 1
            own = self._waiters[sandbox_id]
            own.discard(waiter)
            if not own:
                del self._waiters[sandbox_id]

    def signal(self, states: Iterable[State | str]) -> asyncio.Event:
        """An event that is set whenever some record enters one of these states ("run_ended" for runs). The owner clears it, and
        looks at the ledger after each wake; it is set once after every interruption of the feed too."""
        event = asyncio.Event()
        self._signals.append((frozenset(str(state) for state in states), event))
        return event

    def listen(self, callback: Callable[[str | None], None]) -> None:
        """Call it with the id of each record that changes, and with None after an interruption, when any may have. For caches."""
        self._listeners.append(callback)

    def _wake(self, sandbox_id: str, state: str) -> None:
        for listener in self._listeners:
            listener(sandbox_id)
        for waiter in self._waiters.get(sandbox_id, ()):
            waiter.woken.set()
        for states, event in self._signals:
            if state in states:
                event.set()

    def _wake_all(self) -> None:
        for listener in self._listeners:
            listener(None)
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.woken.set()
        for _states, event in self._signals:
            event.set()

    async def _follow(self) -> None:
        connection, settings = self._ledger.connection, self._ledger.settings.redis
        stream = f"{connection.prefix}events"
        backoff = _BACKOFF_SECONDS[0]
        while True:
            # A blocking read needs a time-out longer than its block, or a quiet service looks like a dead one.
            client = make_client(settings, timeout_seconds=_BLOCK_MS / 1000 + settings.timeout_seconds)
            try:
                last = "$"
                newest = cast(list[Any], await client.xrevrange(stream, count=1))
                if newest:
                    last = str(newest[0][0])
                # Whatever happened while nobody read is found by looking.
                self._wake_all()
                while True:
                    reply = await client.xread({stream: last}, count=_BATCH, block=_BLOCK_MS)
                    backoff = _BACKOFF_SECONDS[0]
                    for _name, entries in _streams(reply):
                        for entry, found in entries:
                            last = str(entry)
                            self._wake(str(found.get("id", "")), str(found.get("state", "")))
            except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
                _log.warning("the event feed lost Redis: %s", type(error).__name__)
            except Exception:
                # Such as a listener's fault: whoever waits must not be forgotten because of it.
                _log.exception("the event feed broke")
            finally:
                with contextlib.suppress(Exception):
                    await client.aclose()
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _BACKOFF_SECONDS[1])

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            ids = list(self._waiters)
            for start in range(0, len(ids), _RECHECK_CHUNK):
                chunk = ids[start : start + _RECHECK_CHUNK]
                try:
                    revs = await self._revisions(chunk)
                except LedgerError as error:
                    _log.warning("awaited records cannot be compared: %s", error)
                    break
                for sandbox_id, rev in zip(chunk, revs, strict=True):
                    for waiter in self._waiters.get(sandbox_id, ()):
                        if waiter.rev >= 0 and waiter.rev != rev:
                            waiter.woken.set()

    async def _revisions(self, ids: list[str]) -> list[int]:
        prefix = self._ledger.connection.prefix
        async with translated():
            pipe = self._ledger.connection.client.pipeline(transaction=False)
            for sandbox_id in ids:
                pipe.hget(f"{prefix}sb:{sandbox_id}", "rev")
            return [int(rev) if rev else 0 for rev in await pipe.execute()]


def _streams(reply: Any) -> list[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """XREAD answers a map under RESP3 and a list of pairs under RESP2."""
    if not reply:
        return []
    pairs = list(reply.items()) if isinstance(reply, dict) else list(reply)
    return [(str(name), _entries(entries)) for name, entries in pairs]


def _entries(entries: Any) -> list[tuple[str, dict[str, str]]]:
    # redis-py nests the entries of a RESP3 answer one list deeper.
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], (list, tuple)):
        entries = entries[0]
    return [(str(entry), dict(found)) for entry, found in entries]
