"""The one border to Redis: running a script, and translating the client's errors.

A script is retried once, and only where the caller says that running it twice is the same as once; every wait has an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import redis.asyncio as aioredis
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from app.ledger.errors import LedgerCorrupt, LedgerUnavailable
from app.ledger.scripts import script_text
from app.ledger.settings import RedisSettings

_RETRY_PAUSE_SECONDS = 0.05
"""Long enough for a restarted Redis to accept again when it was the connection that was stale; a longer outage is the caller's."""

Reply = list[Any]


def make_client(settings: RedisSettings, *, timeout_seconds: float | None = None) -> aioredis.Redis:
    """A client whose every answer is bounded in time and that never retries on its own."""
    timeout = settings.timeout_seconds if timeout_seconds is None else timeout_seconds
    pool = aioredis.BlockingConnectionPool.from_url(
        settings.url,
        max_connections=settings.connections,
        timeout=settings.timeout_seconds,
        socket_timeout=timeout,
        socket_connect_timeout=min(settings.timeout_seconds, 2.0),
        health_check_interval=30,
        decode_responses=True,
        # A single byte that is no text must not make a record, and all that is read along with it, unreadable.
        encoding_errors="replace",
        retry=Retry(NoBackoff(), 0),
    )
    return aioredis.Redis(connection_pool=pool)


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Turn what the Redis client raises into the ledger's own errors, and give back a cancellation that it lost.

    The client sends through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that arrives just when the send is done:
    most of them, under load. A loop that was ended would then go on for ever.
    """
    task = asyncio.current_task()
    cancelled = 0 if task is None else task.cancelling()
    try:
        yield
        if task is not None and task.cancelling() > cancelled:
            raise asyncio.CancelledError
    except (
        redis.exceptions.OutOfMemoryError,
        redis.exceptions.ReadOnlyError,
        redis.exceptions.MasterDownError,
    ) as error:
        # The client cuts their code words off the text.
        raise LedgerUnavailable(f"Redis takes no writes: {type(error).__name__}: {error}") from error
    except redis.exceptions.ResponseError as error:
        text = str(error)
        if "SANDMAN-CORRUPT" in text:
            raise LedgerCorrupt(text) from error
        if text.startswith(("BUSY", "MISCONF", "NOREPLICAS")):
            raise LedgerUnavailable(text) from error
        raise LedgerCorrupt(f"Redis refused a script: {text}") from error
    except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
        raise LedgerUnavailable(f"Redis does not answer: {type(error).__name__}: {error}") from error


class Connection:
    """Runs the ledger's scripts in one namespace."""

    def __init__(self, client: aioredis.Redis, namespace: str) -> None:
        self.client = client
        self.prefix = f"{namespace}:"
        self._scripts: dict[str, Any] = {}

    async def aclose(self) -> None:
        await self.client.aclose()

    async def run(self, name: str, *args: str | int | float, again: bool = True) -> Any:
        """Run a script. `again`: it may run twice, because the second run finds what the first has done."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.client.register_script(script_text(name))
        try:
            async with translated():
                return await script(keys=[self.prefix], args=list(args))
        except LedgerUnavailable:
            if not again:
                raise
        await asyncio.sleep(_RETRY_PAUSE_SECONDS)
        async with translated():
            return await script(keys=[self.prefix], args=list(args))

    async def run_list(self, name: str, *args: str | int | float, again: bool = True) -> Reply:
        return cast(Reply, await self.run(name, *args, again=again))


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
