"""How the application takes the console in: `routes.console_routes`, and `console_lifespan` after the one that makes the services.

The console brings its own pages, files and error answers, and needs nothing from the application but the ledger and the keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from app.console.execs import ExecReader
from app.console.service import STATE_KEY, Console
from app.console.settings import read_settings
from app.services import services_in

if TYPE_CHECKING:
    from litestar import Litestar

    from app.auth.keys import KeyRing
    from app.ledger.ledger import Ledger


@asynccontextmanager
async def console_lifespan(app: Litestar) -> AsyncIterator[None]:
    services = services_in(app.state)
    execs = ExecReader(services.gateway.routes, services.gateway.pool)
    async with console_running(app, services.ledger, services.keys, execs):
        yield


@asynccontextmanager
async def console_running(
    app: Litestar, ledger: Ledger, keys: KeyRing, execs: ExecReader
) -> AsyncIterator[Console]:
    """For the application's lifespan, inside the ledger's. Does not wait for Redis; raises ConsoleSettingsError."""
    console = Console(
        ledger=ledger,
        keys=keys,
        execs=execs,
        redis=ledger.connection.client,
        namespace=ledger.settings.redis.namespace,
        settings=read_settings(),
    )
    app.state[STATE_KEY] = console
    await console.start()
    try:
        yield console
    finally:
        await console.stop()
