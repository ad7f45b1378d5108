"""GET /v1/stats and GET /metrics."""

from typing import Any, Final

import structlog
from litestar import Request, get
from litestar.types import ASGIApp
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app import metrics
from app.answers import Answer, json_answer
from app.auth.middleware import caller_of
from app.describe import Doc, opt
from app.ledger.errors import LedgerError
from app.ledger.model import Stats
from app.problems import Problem
from app.query import Query
from app.services import services_in

log = structlog.get_logger("sandman.stats")

STATS_DOC: Final = Doc(
    id="getStats",
    summary="How many live, wait, and were taken back",
    tag="service",
    answers=((200, "The counts", Stats),),
    description="An operator's key sees the whole service, any other key its own tenant.",
)
METRICS_DOC: Final = Doc(
    id="getMetrics",
    summary="Metrics for Prometheus; an operator's key is needed",
    tag="service",
    answers=((200, "The text format", bytes),),
)


@get("/v1/stats", opt=opt(STATS_DOC))
async def get_stats(request: Request[Any, Any, Any]) -> ASGIApp:
    Query(request.scope, ())
    caller = caller_of(request.scope)
    ledger = services_in(request.app.state).ledger
    return json_answer(200, await ledger.stats(None if caller.sees_all else caller.tenant))


@get("/metrics", opt=opt(METRICS_DOC))
async def get_metrics(request: Request[Any, Any, Any]) -> ASGIApp:
    if not caller_of(request.scope).sees_all:
        raise Problem("forbidden", "metrics are about all tenants: an operator's key is needed")
    services = services_in(request.app.state)
    services.gateway.pool.report()
    services.gateway.routes.report()
    try:
        show(await services.ledger.stats())
    except LedgerError as error:
        # What this process itself counts is most wanted just then.
        log.warning("metrics without the ledger's counts", error=str(error))
    return Answer(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], generate_latest(metrics.REGISTRY))


def show(stats: Stats) -> None:
    for state, count in stats.live.items():
        metrics.LIVE.labels(state).set(count)
    for reason, count in stats.reclaimed.items():
        metrics.RECLAIMED.labels(reason).set(count)
    for kind, count in stats.anomalies.items():
        metrics.ANOMALIES.labels(kind).set(count)
    metrics.QUEUE_DEPTH.set(stats.queue.depth)
    metrics.QUEUE_OLDEST.set(stats.queue.oldest_seconds)
    metrics.ORPHANS.set(stats.orphans.now)
    metrics.PACING_RATE.set(stats.pacing.rate)
