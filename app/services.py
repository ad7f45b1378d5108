"""Everything with a life of its own in this process, made at start-up and closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog
from litestar import Litestar
from litestar.datastructures import State as AppState

from app.auth.keys import KeyRing
from app.collector import Collector
from app.drain import Drain
from app.gateway.gateway import Gateway
from app.gateway.holder import Holder
from app.gateway.pool import Pool
from app.gateway.routes import Routes
from app.gateway.samples import Samples
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.settings import Settings
from app.ledger.tasks import end_tasks
from app.ledger.tokens import read_secret
from app.listener import tune_listeners

log = structlog.get_logger("sandman")

STATE_KEY: Final = "services"
_HOUSEKEEPING_SECONDS: Final = 5.0
# With the 12 reads of the event feed it stays below the 32 connections of a process.
_WRITES_AT_ONCE: Final = 12
# The server listens only after start-up; a few seconds are far more than it takes.
_LISTENER_TRIES: Final = 100


@dataclass(slots=True)
class Services:
    settings: Settings
    drain: Drain
    keys: KeyRing
    ledger: Ledger
    feed: EventFeed
    gateway: Gateway
    holder: Holder
    writes: asyncio.Semaphore
    """Passed by creates and claims, so that a burst of them waits here, without a time limit and in order, and leaves the ledger's
    connections to everybody else."""


def services_in(state: AppState) -> Services:
    return cast("Services", state[STATE_KEY])


@contextlib.asynccontextmanager
async def running(app: Litestar, settings: Settings, keys: KeyRing, drain: Drain) -> AsyncIterator[None]:
    """The application's lifespan. Does not need Redis to be there: calls say so until it is."""
    drain.bind()
    secret = read_secret(settings.paths.secret_file)
    ledger = await Ledger.connect(settings)
    feed = EventFeed(ledger)
    routes = Routes(ledger, secret)
    pool = Pool()
    holder = Holder(ledger, routes, settings.lease.hold_seconds)
    samples = Samples(ledger)
    gateway = Gateway(ledger, routes, holder, pool, samples, drain)

    def changed(sandbox_id: str | None) -> None:
        if sandbox_id is None:
            routes.clear()
        elif (route := routes.drop(sandbox_id)) is not None:
            pool.forget(route.address)

    feed.listen(changed)
    await feed.start()
    app.state[STATE_KEY] = Services(
        settings, drain, keys, ledger, feed, gateway, holder, asyncio.Semaphore(_WRITES_AT_ONCE)
    )
    keys.reload()
    tasks = [
        _forever("holder", holder.run()),
        _forever("samples", samples.run()),
        _forever("housekeeping", _keep_house(pool, routes, drain)),
        asyncio.create_task(_tune(settings.port)),
    ]
    log.info("api started", provider=settings.provider)
    try:
        yield
    finally:
        await end_tasks(*tasks)
        await samples.flush()
        await feed.aclose()
        await pool.close()
        await ledger.aclose()
        log.info("api stopped")


def _forever(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A background task whose end is never expected, so it is logged."""
    task = asyncio.create_task(work, name=name)

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled():
            log.error("a background task ended", task=name, error=repr(done.exception()))

    task.add_done_callback(ended)
    return task


async def _keep_house(pool: Pool, routes: Routes, drain: Drain) -> None:
    collector = Collector()
    while True:
        await asyncio.sleep(_HOUSEKEEPING_SECONDS)
        pool.sweep()
        pool.report()
        routes.report()
        collector.tidy(drain.in_flight)


async def _tune(port: int) -> None:
    for _ in range(_LISTENER_TRIES):
        if tune_listeners(port):
            return
        await asyncio.sleep(0.05)
    log.warning("the listening socket was not found: connections have no keep-alive probes", port=port)
