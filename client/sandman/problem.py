"""From an HTTP answer to a typed error or a decoded value: pure, and total over whatever bytes a proxy may send.

The service's own errors carry a `type` that decides; everything else is classified by its status alone. No text of a body
ever decides anything, it is only quoted.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from sandman import errors
from sandman.errors import BadAnswer, ProblemError

T = TypeVar("T")

EXCERPT_CHARS = 200
"""Enough to recognise which proxy answered; a page of HTML in a traceback helps nobody."""

BY_SLUG: dict[str, type[ProblemError]] = {
    "exec-start-failed": errors.ExecStartError,
    "not-ready": errors.NotReady,
    "sandbox-not-ready": errors.NotReady,
    "quota-exceeded": errors.QuotaExceeded,
    "quota": errors.QuotaExceeded,
    "is-a-directory": errors.IsADirectory,
    "file-not-found": errors.FileMissing,
}

BY_STATUS: dict[int, type[ProblemError]] = {
    400: errors.ValidationError,
    401: errors.AuthError,
    403: errors.AuthError,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.ValidationError,
    422: errors.ValidationError,
    429: errors.ServiceUnavailable,
}

RETRYABLE_STATUSES = frozenset({425, 429, 502, 503, 504})
"""What a later repeat may cure when the body does not say. A plain 500 is not among them: it is a bug that would repeat."""


def error_from(status: int, headers: Mapping[str, str], body: bytes) -> ProblemError:
    """The typed error for an answer with a status of 300 or more."""
    request_id = headers.get("x-request-id")
    retry_after = parse_retry_after(headers.get("retry-after"))
    problem = read_problem(headers.get("content-type", ""), body)
    if problem is None:
        title = f"HTTP {status}"
        detail = excerpt(body)
        kind = BY_STATUS.get(status, errors.ServiceUnavailable if status >= 500 else ProblemError)
        message = f"{title}: {detail}" if detail else f"{title} with an empty body"
        return kind(
            message,
            status=status,
            title=title,
            detail=detail,
            retry_after=retry_after,
            retryable=status in RETRYABLE_STATUSES,
            request_id=request_id,
        )
    return error_from_problem(problem, status=status, retry_after=retry_after, request_id=request_id)


def error_from_problem(
    problem: Mapping[str, Any],
    *,
    status: int | None = None,
    retry_after: float | None = None,
    request_id: str | None = None,
) -> ProblemError:
    """The typed error for problem members, from an HTTP body or from an `error` message of the exec channel."""
    type_ = text(problem.get("type")) or "about:blank"
    title = text(problem.get("title")) or "error"
    detail = text(problem.get("detail"))
    if status is None:
        given = problem.get("status")
        status = given if isinstance(given, int) else 0
    known = {"type", "title", "detail", "status", "retryable", "cause", "op", "ch", "instance"}
    members = {name: value for name, value in problem.items() if name not in known}
    kind = choose(type_.rsplit(":", 1)[-1], status, members)
    cause = problem.get("cause")
    retryable = problem.get("retryable")
    field = members.get("field")
    message = f"{title}: {detail}" if detail and detail.lower() != title.lower() else title
    path = members.get("path")
    if issubclass(kind, errors.FileError) and isinstance(path, str) and path and path not in message:
        message += f": {path!r}"
    if isinstance(field, str) and field and field not in message:
        message += f" (field {field})"
    return kind(
        message,
        status=status,
        type=type_,
        title=title,
        detail=detail,
        members=members,
        retry_after=retry_after,
        retryable=retryable if isinstance(retryable, bool) else None,
        cause=cause if cause in ("caller", "task", "infra") else None,
        request_id=request_id or text(problem.get("request_id")) or None,
    )


def choose(slug: str, status: int, members: Mapping[str, Any]) -> type[ProblemError]:
    if slug in BY_SLUG:
        return BY_SLUG[slug]
    errno = members.get("errno")
    if isinstance(errno, str):
        if errno == "ENOENT":
            return errors.FileMissing
        return errors.IsADirectory if errno == "EISDIR" else errors.FileError
    if status in BY_STATUS:
        return BY_STATUS[status]
    return errors.ServiceUnavailable if status >= 500 else ProblemError


def read_problem(content_type: str, body: bytes) -> dict[str, Any] | None:
    """The members of a problem body; None when it is not one (HTML, cut JSON, JSON of somebody else)."""
    if "json" not in content_type.lower():
        return None
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(value, dict) and isinstance(value.get("title"), str):
        return value
    return None


def decode(kind: type[T], status: int, headers: Mapping[str, str], body: bytes) -> T:
    """Decode a success answer. Raises BadAnswer, never a JSON error, when it is not what the service sends."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        quoted = excerpt(body) or "empty body"
        raise BadAnswer(
            f"HTTP {status} that the service did not send ({error}): {quoted}",
            status=status,
            excerpt=quoted,
            request_id=headers.get("x-request-id"),
        ) from error


def excerpt(body: bytes) -> str:
    """The body's beginning on one line, printable, whatever it holds."""
    shown = " ".join(body[: EXCERPT_CHARS * 4].decode("utf-8", "replace").split())
    shown = "".join(character if character.isprintable() else "?" for character in shown)
    return shown[:EXCERPT_CHARS]


def parse_retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds from a Retry-After header: delta or HTTP date; None when absent or senseless."""
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(value).timestamp()
        except (ValueError, TypeError, OverflowError):
            return None
        seconds = moment - (time.time() if now is None else now)
    if not 0 <= seconds < float("inf"):
        return 0.0 if seconds < 0 else None
    return seconds


def text(value: object) -> str:
    return value if isinstance(value, str) else ""
