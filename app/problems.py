"""Every error that the API shows, as one exception and one table of kinds.

A `Problem` becomes `application/problem+json` (RFC 9457) with a stable `type` (`urn:sandman:problem:<slug>`) and the members
`retryable`, `cause` (caller, task or infra: a training job masks infrastructure failures and learns from the others) and
`request_id`. Nothing of a request's body is ever repeated in one: bodies hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

Cause = Literal["caller", "task", "infra"]

MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:sandman:problem:"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is always the same about one type of problem."""

    status: int
    title: str
    cause: Cause = "caller"
    retryable: bool = False


KINDS: Final[dict[str, Kind]] = {
    # what is wrong with the request
    "malformed": Kind(400, "The request could not be read"),
    "bad-request": Kind(400, "The request is not acceptable"),
    "invalid": Kind(422, "The request has invalid fields"),
    "unauthenticated": Kind(401, "A valid API key is needed"),
    "forbidden": Kind(403, "This key may not do that"),
    "not-found": Kind(404, "No such thing"),
    "method-not-allowed": Kind(405, "The method is not allowed here"),
    "body-timeout": Kind(408, "The body stopped arriving", retryable=True),
    "too-large": Kind(413, "The body is too large"),
    "frame-too-large": Kind(413, "The frame is too large"),
    "upgrade-required": Kind(426, "A WebSocket is needed here"),
    "idempotency-conflict": Kind(409, "The idempotency key was used with another body"),
    # what the sandbox or the run is
    "gone": Kind(410, "It has ended"),
    "not-ready": Kind(409, "The sandbox is not ready yet", "infra", retryable=True),
    "cancelled": Kind(409, "The sandbox was taken back before it was ready"),
    # why a create failed, by the ledger's reason
    "image-pull": Kind(422, "The image could not be fetched", "task", retryable=True),
    "image-invalid": Kind(422, "The image cannot be used", "task"),
    "oom-killed": Kind(503, "The sandbox ran out of memory", "task"),
    "exited": Kind(503, "The sandbox ended by itself", "task"),
    "quota": Kind(429, "A quota is used up", "caller", retryable=True),
    "unschedulable": Kind(503, "No place for the sandbox was found", "infra", retryable=True),
    "evicted": Kind(503, "The sandbox was evicted", "infra", retryable=True),
    "preempted": Kind(503, "The sandbox was preempted", "infra", retryable=True),
    "node-lost": Kind(503, "The sandbox's machine was lost", "infra", retryable=True),
    "daemon-lost": Kind(502, "The sandbox's daemon was lost", "infra", retryable=True),
    "daemon-unready": Kind(503, "The sandbox's daemon did not come up", "infra", retryable=True),
    "deadline": Kind(504, "The sandbox was not ready within its lifetime", "infra"),
    "backend-error": Kind(503, "The backend failed", "infra", retryable=True),
    # what the service is
    "sandbox-lost": Kind(502, "The sandbox was lost while it was used", "infra", retryable=True),
    "queue-full": Kind(429, "Too many sandboxes are waiting already", "infra", retryable=True),
    "too-many-runs": Kind(429, "Too many runs are open already", "caller", retryable=True),
    "ledger-unavailable": Kind(503, "The ledger cannot be reached", "infra", retryable=True),
    "gateway-busy": Kind(503, "Too many connections to sandboxes are open", "infra", retryable=True),
    "shutting-down": Kind(503, "This server is shutting down", "infra", retryable=True),
    "not-implemented": Kind(501, "The daemon does not know this call", "infra"),
    "internal": Kind(500, "The service failed", "infra"),
}


class FieldError(msgspec.Struct, frozen=True):
    """One invalid field: where it is in the request, and the rule that it breaks."""

    field: str
    message: str


class Problem(Exception):
    """One failure on its way to the caller. `slug` must be in `KINDS`; `members` are extra members of the answer."""

    def __init__(
        self,
        slug: str,
        detail: str = "",
        *,
        status: int | None = None,
        cause: Cause | None = None,
        retryable: bool | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        kind = KINDS[slug]
        super().__init__(f"{slug}: {detail or kind.title}")
        self.slug = slug
        self.title = kind.title
        self.detail = detail
        self.status = kind.status if status is None else status
        self.cause: Cause = kind.cause if cause is None else cause
        self.retryable = kind.retryable if retryable is None else retryable
        self.headers = dict(headers or {})
        self.members = members

    @property
    def type(self) -> str:
        return URN + self.slug

    def document(self, request_id: str | None = None) -> dict[str, Any]:
        """The problem as an object, extra members flattened."""
        document: dict[str, Any] = {"type": self.type, "title": self.title, "status": self.status}
        if self.detail:
            document["detail"] = self.detail
        document["retryable"] = self.retryable
        document["cause"] = self.cause
        if request_id is not None:
            document["request_id"] = request_id
        document.update(self.members)
        return document

    def encode(self, request_id: str | None = None) -> bytes:
        return msgspec.json.encode(self.document(request_id))


def invalid(*errors: FieldError | tuple[str, str]) -> Problem:
    """The 422 that names each field and its rule."""
    listed = [error if isinstance(error, FieldError) else FieldError(*error) for error in errors]
    detail = "; ".join(
        f"{error.field}: {error.message}" if error.field else error.message for error in listed[:5]
    )
    return Problem("invalid", detail, errors=listed)


def not_found(what: str) -> Problem:
    """The same answer for what never was, what has been forgotten and what is another tenant's."""
    return Problem("not-found", f"no such {what}")
