"""From whatever a handler raised to the problem that is answered: the framework's errors, the ledger's, and our own.

One function for all, so that nothing leaves this service in another shape.
"""

from __future__ import annotations

from typing import Any, Final, cast

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException

from app.answers import request_id_of
from app.body import AnswerCut, Disconnected
from app.console.strays import opens_a_page, stray_page
from app.ledger.errors import (
    Ended,
    IdempotencyConflict,
    LedgerCorrupt,
    LedgerError,
    LedgerUnavailable,
    NotFound,
    QueueFull,
    RunEnded,
    RunNotFound,
    TooManyRuns,
)
from app.ledger.events import TooManyWaiters
from app.problems import MEDIA_TYPE, Problem, not_found
from app.sandboxes.endings import ended_problem

log = structlog.get_logger("sandman.errors")

_BY_STATUS: Final = {
    400: "bad-request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "body-timeout",
    413: "too-large",
    426: "upgrade-required",
}
_UNAVAILABLE_HEADERS: Final = {"retry-after": "1"}


def problem_of(error: Exception) -> Problem | None:
    """The problem for an error that is expected to happen; None for one that is a fault of ours."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, LedgerError):
        return _ledger_problem(error)
    if isinstance(error, HTTPException):
        slug = _BY_STATUS.get(error.status_code)
        if slug is None:
            if error.status_code >= 500:
                return None
            return Problem("bad-request", status=error.status_code)
        # Not the framework's own words: what it says about a body may repeat it.
        headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
        return Problem(slug, headers=headers)
    return None


def _ledger_problem(error: LedgerError) -> Problem | None:
    match error:
        case LedgerUnavailable():
            return Problem("ledger-unavailable", headers=_UNAVAILABLE_HEADERS)
        case QueueFull():
            return Problem(
                "queue-full", str(error), headers=_UNAVAILABLE_HEADERS, scope=error.scope, bound=error.bound
            )
        case TooManyWaiters():
            return Problem("queue-full", str(error), headers=_UNAVAILABLE_HEADERS)
        case TooManyRuns():
            return Problem("too-many-runs", str(error), headers=_UNAVAILABLE_HEADERS, bound=error.bound)
        case IdempotencyConflict():
            return Problem(
                "idempotency-conflict", "use a new key for a new request", sandbox_id=error.sandbox_id
            )
        case RunNotFound():
            return Problem("not-found", "no such run", field="run")
        case RunEnded():
            return Problem("gone", "the run has ended", field="run")
        case Ended():
            return ended_problem(error.record)
        case NotFound():
            return not_found("sandbox")
        case LedgerCorrupt() | _:
            return None


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """The framework's exception handler, for everything. A caller that left, or an answer that broke off, is the edge's."""
    if isinstance(error, (Disconnected, AnswerCut)):
        raise error
    problem = problem_of(error)
    scope = request.scope
    request_id = request_id_of(scope)
    if problem is None:
        view = cast("dict[str, Any]", scope)
        log.error(
            "unhandled",
            exc_info=error,
            request_id=request_id,
            route=view.get("path_template"),
            method=view.get("method"),
        )
        problem = Problem("internal")
    if problem.slug == "not-found" and opens_a_page(request):
        return stray_page(request)
    return Response(
        problem.encode(request_id),
        status_code=problem.status,
        headers={"cache-control": "no-store", **problem.headers},
        media_type=MEDIA_TYPE,
    )
