"""Why a sandbox never came up or is gone, as errors: from its record, or from the problem that a call was answered with."""

from __future__ import annotations

from typing import cast

from sandman.errors import Cause, ProblemError, SandboxFailed, SandboxLost, cause_of, retryable_of
from sandman.models import SandboxInfo


def failure_of(info: SandboxInfo) -> SandboxFailed:
    reason = info.reason or info.reclaim or info.state
    cause = info.cause if info.cause in ("caller", "task", "infra") else cause_of(info.reason)
    detail = f": {info.detail}" if info.detail else ""
    return SandboxFailed(
        f"sandbox {info.id} did not become ready ({reason}){detail}",
        sandbox=info.id,
        reason=reason,
        detail=info.detail,
        cause=cast(Cause, cause),
        retryable=info.retryable if info.retryable is not None else retryable_of(info.reason),
    )


def lost_by(sandbox: str, error: ProblemError) -> SandboxLost:
    reason = error.members.get("reason") or error.members.get("reclaim") or error.slug
    lost = SandboxLost(
        f"sandbox {sandbox} is gone: {error.detail or error.title}",
        sandbox=sandbox,
        reason=str(reason),
        detail=error.detail or None,
        cause=error.cause,
        retryable=retryable_of(error.members.get("reason")),
        request_id=error.request_id,
    )
    lost.__cause__ = error
    return lost


def failure_from(error: ProblemError) -> ProblemError | SandboxFailed:
    """A create that was answered with why it failed; everything else is what it is."""
    sandbox = error.members.get("sandbox_id")
    if not isinstance(sandbox, str) or not {"reason", "reclaim"} & error.members.keys():
        return error
    reason = error.members.get("reason") or error.members.get("reclaim") or error.slug
    failed = SandboxFailed(
        str(error),
        sandbox=sandbox,
        reason=str(reason),
        detail=error.detail or None,
        cause=error.cause,
        retryable=error.retryable,
        request_id=error.request_id,
    )
    failed.__cause__ = error
    return failed
