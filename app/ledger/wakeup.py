"""Wakes a worker: one RQ job means "look at the queue", never "make this sandbox".

RQ costs about 2 ms of CPU a job, so a burst must not make one per create. The scripts decide whether a job is needed (a marker with
an expiry in Redis); a job that is lost, doubled or killed does no harm, because the reclaim loop looks after a queue that nobody
drains. The job is named by its dotted name: this package never imports the worker. JSON instead of pickle keeps whoever can write
to Redis from running code in a worker.
"""

from __future__ import annotations

import asyncio
import logging

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue
from rq.serializers import JSONSerializer

from app.ledger.settings import RedisSettings

PROVISION = "worker.provision.run"
WAKE_MS = 5_000
"""How long a pending job is believed in. Shorter than a job may wait behind another one, then a few more pile up; longer, and a
lost job is noticed later."""
_PENDING_MAX = 8
"""Further wake-ups add nothing when so many wait already, for example because no worker runs."""
_JOB_TIMEOUT_SECONDS = 600
"""A drain ends by itself before; so long RQ believes in a job whose worker was killed (nobody waits for that)."""
_FAILURE_TTL_SECONDS = 600

_log = logging.getLogger(__name__)


def queue_name(namespace: str) -> str:
    return f"{namespace}-provision"


def make_sync_client(settings: RedisSettings) -> redis.Redis:
    """RQ is synchronous: a small client of its own."""
    return redis.Redis.from_url(
        settings.url,
        socket_timeout=settings.timeout_seconds,
        socket_connect_timeout=min(settings.timeout_seconds, 2.0),
        retry=Retry(NoBackoff(), 0),
    )


class Waker:
    """Enqueues provision jobs from an event loop."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: redis.Redis | None = None

    def enqueue(self) -> None:
        """Blocks for a round trip or two. Raises what the Redis client raises."""
        if self._client is None:
            self._client = make_sync_client(self._settings)
        queue = Queue(
            queue_name(self._settings.namespace), connection=self._client, serializer=JSONSerializer
        )
        if queue.count < _PENDING_MAX:
            queue.enqueue(
                PROVISION, job_timeout=_JOB_TIMEOUT_SECONDS, result_ttl=0, failure_ttl=_FAILURE_TTL_SECONDS
            )

    async def wake(self) -> None:
        """Never raises for a Redis that is away: the reclaim loop will wake the worker instead."""
        try:
            await asyncio.to_thread(self.enqueue)
        except (redis.exceptions.RedisError, OSError) as error:
            _log.warning("cannot wake a worker: %s", type(error).__name__)

    async def aclose(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None
