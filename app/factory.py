"""Puts the application together: routes, the one exception handler, authentication, the edge around all, and the lifespan."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar
from litestar.types import ASGIApp, ControllerRouterHandler

from app.auth.keys import KeyRing
from app.auth.middleware import Authentication
from app.console.mount import console_lifespan
from app.console.routes import console_routes
from app.drain import Drain
from app.edge import Edge
from app.errors import handle
from app.execs.connect import connect_sandbox
from app.execs.controllers import ExecController
from app.files.controllers import FileController
from app.health.controllers import get_live, get_ready
from app.ledger.settings import Settings
from app.openapi import get_openapi
from app.runs.controllers import RunController
from app.runs.hold import hold_run
from app.sandboxes.controllers import SandboxController
from app.services import running
from app.stats.controllers import get_metrics, get_stats

API_ROUTES: list[ControllerRouterHandler] = [
    SandboxController,
    ExecController,
    connect_sandbox,
    FileController,
    RunController,
    hold_run,
    get_stats,
    get_metrics,
    get_live,
    get_ready,
    get_openapi,
]


def create_app(settings: Settings, drain: Drain | None = None) -> tuple[ASGIApp, Litestar]:
    """The whole application, and the framework's part of it, whose routes can be listed."""
    drain = drain or Drain()
    keys = KeyRing(settings.paths.keys_file)

    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with running(app, settings, keys, drain), console_lifespan(app):
            yield

    def authenticated(app: ASGIApp) -> ASGIApp:
        return Authentication(app, keys)

    framework = Litestar(
        route_handlers=[*API_ROUTES, *console_routes],
        middleware=[authenticated],
        exception_handlers={Exception: handle, 500: handle},
        lifespan=[lifespan],
        openapi_config=None,
        logging_config=None,
        # Bodies are read by our own code, under a bound of its own for each call; uploads have none.
        request_max_body_size=None,
    )
    edge: Any = Edge(framework, drain)
    return edge, framework
