"""GET /health/live and GET /health/ready. Open to everybody, so they say no more than words."""

import asyncio
from typing import Any, Final

import structlog
from litestar import Request, get
from litestar.types import ASGIApp

from app.answers import json_answer
from app.describe import Doc, opt
from app.ledger.errors import LedgerError
from app.services import Services, services_in

log = structlog.get_logger("sandman.health")

# The name under which worker/loops.py leads; a contract through Redis, like the job's dotted name.
LOOPS: Final = "loops"
# A probe that waits longer than its prober says nothing; kubelet's default time-out is 1 s, ours are asked with 2 s.
CHECK_SECONDS: Final = 1.5
# So many full comparisons may be late before the backend counts as out of reach.
LATE_COMPARISONS: Final = 4

LIVE_DOC: Final = Doc(
    id="getLive", summary="This process answers", tag="service", answers=((200, "It does", dict[str, str]),)
)
READY_DOC: Final = Doc(
    id="getReady",
    summary="A create can be taken now",
    tag="service",
    answers=((200, "Yes", dict[str, Any]), (503, "No, and which check fails", dict[str, Any])),
)


@get("/health/live", opt=opt(LIVE_DOC, public=True))
async def get_live() -> ASGIApp:
    return json_answer(200, {"status": "live"})


@get("/health/ready", opt=opt(READY_DOC, public=True))
async def get_ready(request: Request[Any, Any, Any]) -> ASGIApp:
    checks = await check(services_in(request.app.state))
    ready = all(word == "ok" for word in checks.values())
    headers = {"cache-control": "no-store"}
    return json_answer(
        200 if ready else 503, {"status": "ready" if ready else "not ready", "checks": checks}, headers
    )


async def check(services: Services) -> dict[str, str]:
    """Each part's word: ok, or what is wrong with it."""
    checks = dict.fromkeys(("ledger", "loops", "provider"), "unknown")
    if services.drain.started:
        checks["api"] = "shutting down"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await services.ledger.ping()
            checks["ledger"] = "ok"
            checks["loops"] = "ok" if await services.ledger.is_led(LOOPS) else "nobody watches or reclaims"
            checks["provider"] = await _provider(services)
    except (LedgerError, TimeoutError) as error:
        log.warning("not ready", error=type(error).__name__)
        if checks["ledger"] == "unknown":
            checks["ledger"] = "unreachable"
    return checks


async def _provider(services: Services) -> str:
    """The loops compare the ledger with the backend in full now and then; that is the proof that it answers."""
    agreed = await services.ledger.agreement_ms()
    if agreed is None:
        return "not listed yet"
    late = await services.ledger.now_ms() - agreed
    bound = services.settings.worker.relist_seconds * LATE_COMPARISONS * 1000
    return "ok" if late <= max(bound, 10_000) else f"not listed for {late // 1000} s"
