"""What a sandbox that is not usable is answered with: not yet, no more, or why it never came up."""

from __future__ import annotations

from typing import Final

from app.ledger.model import Reason, Reclaim, Record, State
from app.problems import Problem
from app.sandboxes.schemas import view

FAILED_CREATE: Final[dict[Reason, str]] = {
    Reason.IMAGE_PULL: "image-pull",
    Reason.IMAGE_INVALID: "image-invalid",
    Reason.UNSCHEDULABLE: "unschedulable",
    Reason.OOM_KILLED: "oom-killed",
    Reason.EVICTED: "evicted",
    Reason.PREEMPTED: "preempted",
    Reason.EXITED: "exited",
    Reason.NODE_LOST: "node-lost",
    Reason.DAEMON_LOST: "daemon-lost",
    Reason.DAEMON_UNREADY: "daemon-unready",
    Reason.QUOTA: "quota",
    Reason.DEADLINE: "deadline",
    Reason.BACKEND_ERROR: "backend-error",
}
"""Reason of a failure → slug of the problem that a waiting create is answered with."""


def failed_create_problem(record: Record) -> Problem:
    """Why a create did not lead to a ready sandbox, with the record as member `sandbox`."""
    if record.state is State.FAILED and record.reason is not None and "ready" not in record.times:
        headers = {"retry-after": "1"} if record.reason is Reason.QUOTA else None
        return Problem(
            FAILED_CREATE[record.reason],
            record.detail or "",
            headers=headers,
            status=503 if record.reason is Reason.DAEMON_LOST else None,
            cause=record.cause,
            retryable=record.retryable,
            sandbox=view(record),
            sandbox_id=record.id,
            reason=record.reason.value,
        )
    if record.reclaim is Reclaim.HUNG_UP and not record.claimed:
        # Whoever reads this did wait: it was this service that did not hold it (its API was away, or cut off from the ledger).
        return Problem(
            "cancelled",
            "taken back before it was handed over, because this service did not hold it; the same create makes a new one",
            headers={"retry-after": "1"},
            status=503,
            cause="infra",
            retryable=True,
            sandbox=view(record),
            sandbox_id=record.id,
            reclaim=record.reclaim.value,
        )
    if "ready" in record.times:
        return ended_problem(record)  # an idempotency key whose sandbox was ready once, and is over
    reclaim = record.reclaim or Reclaim.CANCELLED
    return Problem(
        "deadline" if reclaim is Reclaim.LIFETIME else "cancelled",
        f"taken back before it was ready ({reclaim.value})",
        cause="infra" if reclaim in (Reclaim.ORPHAN, Reclaim.SHUTDOWN) else "caller",
        sandbox=view(record),
        sandbox_id=record.id,
        reclaim=reclaim.value,
    )


def ended_problem(record: Record) -> Problem:
    """410 for a sandbox that is over, with what is known about why."""
    if record.state is State.FAILED and record.reason is not None:
        why = f"it failed: {record.reason.value}" + (f" ({record.detail})" if record.detail else "")
    elif record.reclaim is not None:
        why = f"it was taken back: {record.reclaim.value}"
    else:
        why = f"it is {record.state.value}"
    return Problem(
        "gone",
        why,
        cause=record.cause or "caller",
        retryable=False,
        sandbox_id=record.id,
        state=record.state.value,
        reason=None if record.reason is None else record.reason.value,
        reclaim=None if record.reclaim is None else record.reclaim.value,
    )


def not_ready_problem(record: Record) -> Problem:
    return Problem(
        "not-ready",
        f"it is {record.state.value}; wait with GET /v1/sandboxes/{record.id}?wait=SECONDS",
        headers={"retry-after": "1"},
        sandbox_id=record.id,
        state=record.state.value,
    )
