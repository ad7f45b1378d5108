"""What a create may say, and what a sandbox looks like from outside.

Every field of a create is optional but the image; null means the same as leaving it out. Environment values are never shown
again: they are secrets more often than not.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from app.ledger.model import Reclaim, Record


class PolicyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sandbox may do beyond its resources."""

    network: Literal["none", "host"] | None = None
    """"none" (the default) or "host"."""
    pids: int | None = None
    """At most so many processes and threads."""


class CreateSandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /v1/sandboxes."""

    image: str
    """"host", an absolute path of an unpacked root folder or OCI archive or layout, or an image reference."""
    env: dict[str, str] | None = None
    """Environment of every command. Names: printable ASCII without "=". Values: any text without NUL."""
    cpu: float | None = None
    """Cores, above 0."""
    memory: int | str | None = None
    """Bytes, or a quantity such as "512MiB"."""
    disk: int | str | None = None
    """Bytes, or a quantity such as "10GiB"."""
    user: int | str | None = None
    """Name or uid, with an optional ":group". Left out: the image's own."""
    workdir: str | None = None
    """Absolute path. Left out: the image's own."""
    labels: dict[str, str] | None = None
    """At most 64, under the rule of Kubernetes labels."""
    run: str | None = None
    """The run that owns and holds it."""
    lease_seconds: float | None = None
    """How long it lives without a sign of its holder. Zero is refused: nothing lives unheld."""
    lifetime_seconds: float | None = None
    """How long it lives at most, whatever holds it. Zero is refused: nothing lives for ever."""
    policy: PolicyBody | None = None
    """What it may do: its network and its number of processes."""


class RenewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST …/renew; may be left out as a whole."""

    lease_seconds: float | None = None
    """The new length of the lease; left out: as it was."""


class PolicyView(msgspec.Struct, frozen=True):
    network: str
    pids: int | None


class SandboxView(msgspec.Struct, frozen=True):
    """One sandbox. Times are unix seconds."""

    id: str
    state: str
    """queued, creating, starting, ready, deleting, deleted or failed."""
    reason: str | None
    """Why it failed."""
    detail: str | None
    cause: str | None
    """Whose fault a failure is: caller, task or infra."""
    retryable: bool
    """Whether the same create may succeed after this failure."""
    reclaim: str | None
    """Why it was taken back, or "cancelled", "hung_up", …"""
    run: str | None
    image: str
    env_names: list[str]
    cpu: float
    memory: int
    disk: int
    user: str | None
    workdir: str | None
    labels: dict[str, str]
    policy: PolicyView
    enforced: dict[str, str]
    """Limit → how it is enforced here."""
    lease_seconds: float
    lease_expires_at: float | None
    """None: its run holds it, or it is over."""
    deadline_at: float
    claimed: bool
    timings: dict[str, float]
    """State → when it was reached."""
    attempts: int
    address: str | None
    queue_position: int | None
    """How many are admitted before it; only while queued."""
    created_at: float


class SandboxList(msgspec.Struct, frozen=True):
    items: list[SandboxView]
    next: str | None


def view(record: Record, queue_position: int | None = None) -> SandboxView:
    """A record as the API shows it."""
    spec = record.spec
    timings = {name: at / 1000 for name, at in record.times.items()}
    cancelled = record.reclaim in (Reclaim.CANCELLED, Reclaim.HUNG_UP)
    return SandboxView(
        id=record.id,
        state=record.state.value,
        reason=None if record.reason is None else record.reason.value,
        detail=record.detail,
        cause="caller" if cancelled and record.cause is None else record.cause,
        retryable=record.retryable,
        reclaim=None if record.reclaim is None else record.reclaim.value,
        run=record.run,
        image=spec.image,
        env_names=sorted(spec.env),
        cpu=spec.cpu,
        memory=spec.memory,
        disk=spec.disk,
        user=spec.user,
        workdir=spec.workdir,
        labels=spec.labels,
        policy=PolicyView(spec.policy.network, spec.policy.pids),
        enforced=record.enforced,
        lease_seconds=record.lease_seconds,
        lease_expires_at=None if record.lease_expires_ms is None else record.lease_expires_ms / 1000,
        deadline_at=record.deadline_ms / 1000,
        claimed=record.claimed,
        timings=timings,
        attempts=record.attempts,
        address=record.address,
        queue_position=queue_position,
        created_at=timings.get("queued", 0.0),
    )
