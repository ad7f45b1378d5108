"""What a run may say, and what it looks like from outside."""

from __future__ import annotations

from typing import Any

import msgspec

from app.ledger.model import Run


class CreateRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/runs; may be left out as a whole."""

    name: str | None = None
    """For people; any text of up to 200 characters."""
    labels: dict[str, str] | None = None
    """As those of a sandbox."""
    lease_seconds: float | None = None
    """How long it and all it owns live without a sign of its holder."""


class RunView(msgspec.Struct, frozen=True):
    """One run. Times are unix seconds."""

    id: str
    name: str
    state: str
    """open or ended."""
    reclaim: str | None
    """Why it ended."""
    labels: dict[str, str]
    lease_seconds: float
    lease_expires_at: float | None
    created_at: float
    ended_at: float | None
    live: int
    """How many of its sandboxes are not over."""
    created: int
    """How many it ever owned."""


class RunList(msgspec.Struct, frozen=True):
    items: list[RunView]
    next: str | None


Report = dict[str, Any]


def view(run: Run) -> RunView:
    return RunView(
        id=run.id,
        name=run.name,
        state=run.state,
        reclaim=None if run.reclaim is None else str(run.reclaim),
        labels=run.labels,
        lease_seconds=run.lease_seconds,
        lease_expires_at=None if run.lease_expires_ms is None else run.lease_expires_ms / 1000,
        created_at=run.created_ms / 1000,
        ended_at=None if run.ended_ms is None else run.ended_ms / 1000,
        live=run.live,
        created=run.created,
    )
