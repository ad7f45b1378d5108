"""What the ledger keeps: sandboxes, their states, and why they fail or go.

States only move forward (`FORWARD`), and every time in here is Redis time in unix milliseconds: no caller's clock is ever
compared with another's.
"""

from __future__ import annotations

import base64
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec


class State(StrEnum):
    QUEUED = "queued"
    CREATING = "creating"
    STARTING = "starting"
    READY = "ready"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"


LIVE: frozenset[State] = frozenset({State.QUEUED, State.CREATING, State.STARTING, State.READY})
"""Held by a lease or a run. The others are over for their callers, whatever is still to be cleaned up."""

FORWARD: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.CREATING, State.DELETED, State.FAILED}),
    State.CREATING: frozenset({State.STARTING, State.DELETING, State.FAILED}),
    State.STARTING: frozenset({State.READY, State.DELETING, State.FAILED}),
    State.READY: frozenset({State.DELETING, State.FAILED}),
    State.DELETING: frozenset({State.DELETED}),
    State.DELETED: frozenset(),
    State.FAILED: frozenset(),
}


class Reason(StrEnum):
    """Why a sandbox failed."""

    IMAGE_PULL = "image_pull"
    IMAGE_INVALID = "image_invalid"
    UNSCHEDULABLE = "unschedulable"
    OOM_KILLED = "oom_killed"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    EXITED = "exited"
    NODE_LOST = "node_lost"
    DAEMON_LOST = "daemon_lost"
    DAEMON_UNREADY = "daemon_unready"
    QUOTA = "quota"
    DEADLINE = "deadline"
    BACKEND_ERROR = "backend_error"


Cause = Literal["caller", "task", "infra"]

_TASK = frozenset({Reason.IMAGE_PULL, Reason.IMAGE_INVALID, Reason.OOM_KILLED, Reason.EXITED})
_NOT_RETRYABLE = frozenset({Reason.IMAGE_INVALID, Reason.OOM_KILLED, Reason.EXITED, Reason.DEADLINE})


def cause_of(reason: Reason) -> Cause:
    """Whose fault it is, so that a training job can mask infrastructure failures and learn from the others."""
    if reason in _TASK:
        return "task"
    return "caller" if reason is Reason.QUOTA else "infra"


def retryable_of(reason: Reason) -> bool:
    """Whether the same create may succeed later."""
    return reason not in _NOT_RETRYABLE


class Reclaim(StrEnum):
    """Why something was taken back; one is written to the reclaim log for every sandbox that goes."""

    DELETED = "deleted"
    """The caller asked for it."""
    CANCELLED = "cancelled"
    """The caller asked for it before the sandbox was ready."""
    HUNG_UP = "hung_up"
    """The waiting caller went away, and nobody came for the sandbox within the grace."""
    LEASE_EXPIRED = "lease_expired"
    LIFETIME = "lifetime"
    RUN_ENDED = "run_ended"
    RUN_LEASE_EXPIRED = "run_lease_expired"
    FAILED = "failed"
    ORPHAN = "orphan"
    """Something alive in the backend that no live record claims."""
    SHUTDOWN = "shutdown"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sandbox may do beyond its resources."""

    network: Literal["none", "host"] = "none"
    pids: int | None = None


class SandboxSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for, with every default already filled in."""

    image: str
    cpu: float
    memory: int
    """Bytes."""
    disk: int
    """Bytes."""
    env: dict[str, str] = {}
    """Kept in the ledger only while the sandbox lives: an ended record reads as an empty env."""
    user: str | None = None
    workdir: str | None = None
    labels: dict[str, str] = {}
    policy: Policy = Policy()

    def __repr__(self) -> str:
        """Without the values of env: a record in a log line or a traceback must not give a secret away."""
        return f"SandboxSpec(image={self.image!r}, env={sorted(self.env)}, labels={self.labels!r})"


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox as the ledger knows it."""

    id: str
    tenant: str
    run: str | None
    state: State
    reason: Reason | None
    detail: str | None
    spec: SandboxSpec
    lease_seconds: float
    lease_expires_ms: int | None
    """None: its run holds it (or it is over)."""
    deadline_ms: int
    claimed: bool
    """False while only a waiting request holds it."""
    times: dict[str, int]
    """State → when it was reached; `cleaned` is when nothing of it was left in the backend."""
    attempts: int
    address: str | None
    """"unix:/path" or "http://ip:port", once it is placed."""
    enforced: dict[str, str]
    """Limit → how it is enforced here, for example {"memory": "cgroup", "disk": "none"}."""
    reclaim: Reclaim | None
    rev: int
    """Grows with each change of state or claim."""
    crashes: int = 0
    """How often a worker fell silent while it created this one."""
    final: bool = False
    """The backend knows that the same create would fail again, though others with this reason may pass: an image that is not there."""

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def cause(self) -> Cause | None:
        return None if self.reason is None else cause_of(self.reason)

    @property
    def retryable(self) -> bool:
        return self.reason is not None and retryable_of(self.reason) and not self.final


@dataclass(frozen=True, slots=True)
class Brief:
    """The little of a record that a comparison with the backend needs."""

    live: bool
    state: str
    starting_ms: int | None
    cleaned_ms: int | None


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Something to be removed from the backend."""

    id: str
    state: State
    reclaim: str


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """A create, decided by the API: the id is made there so that a repeated call to the ledger is the same create."""

    id: str
    tenant: str
    spec: SandboxSpec
    run: str | None
    idempotency_key: str | None
    fingerprint: str
    """sha256 of the canonical body: the same key with another one is a conflict."""
    lease_seconds: float
    lifetime_seconds: float
    waiting: bool
    """True: a request waits and will `claim`; until then only its `touch`es hold the sandbox."""


@dataclass(frozen=True, slots=True)
class Created:
    record: Record
    existing: bool
    """True when the idempotency key (or the id) had made it before; it may have ended meanwhile."""


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Record]
    next: str | None


@dataclass(frozen=True, slots=True)
class Admission:
    """Records that are now `creating` and claimed by the caller, and what stopped it from getting more."""

    records: list[Record]
    blocked: str | None
    """None: the queue is empty or the limit was reached. Else "rate", "window" or "hold" (the backend asked for a pause)."""
    retry_after_ms: int
    queued: int
    """How many still wait."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Something that nobody holds any more and that was moved on: a sandbox, or a run (then `id` is the run's)."""

    id: str
    reclaim: Reclaim
    is_run: bool = False


class ReclaimEntry(msgspec.Struct, frozen=True):
    """One line of the reclaim log."""

    at_ms: int
    id: str
    tenant: str
    run: str | None
    reclaim: Reclaim
    state: str
    """The state it was in."""
    detail: str


@dataclass(frozen=True, slots=True)
class ReclaimPage:
    items: list[ReclaimEntry]
    next: str | None


class Run(msgspec.Struct, frozen=True):
    """One training job or session; its lease holds every sandbox it owns."""

    id: str
    tenant: str
    name: str
    labels: dict[str, str]
    state: Literal["open", "ended"]
    created_ms: int
    ended_ms: int | None
    reclaim: Reclaim | None
    """Why it ended: run_ended, run_lease_expired or shutdown."""
    lease_seconds: float
    lease_expires_ms: int | None
    """None once it has ended."""
    live: int
    """How many of its sandboxes are not over."""
    created: int
    """How many it ever owned."""


@dataclass(frozen=True, slots=True)
class RunPage:
    items: list[Run]
    next: str | None


@dataclass(frozen=True, slots=True)
class ExecSample:
    """One command that ended, as the gateway saw it."""

    sandbox: str
    run: str | None
    outcome: Literal["ok", "nonzero", "timed_out", "signalled", "oom_killed", "not_started", "lost"]
    seconds: float


class Concurrency(msgspec.Struct, frozen=True):
    """Usable sandboxes (`ready`): now, and the most there ever were at once."""

    now: int
    peak: int


class QueueStats(msgspec.Struct, frozen=True):
    depth: int
    oldest_seconds: float


class PacingStats(msgspec.Struct, frozen=True):
    rate: float
    """Creates a second."""
    window: int
    """How many may be creating or starting at once."""
    in_flight: int
    reason: str
    """Why the rate is what it is: "initial", "growing", "throttled", "slow", "steady"."""


class OrphanStats(msgspec.Struct, frozen=True):
    now: int
    reclaimed: int


class Stats(msgspec.Struct, frozen=True):
    """The shape of GET /v1/stats. For one tenant: live, concurrency, queue and reclaimed are that tenant's."""

    live: dict[str, int]
    concurrency: Concurrency
    queue: QueueStats
    pacing: PacingStats
    orphans: OrphanStats
    reclaimed: dict[str, int]
    failed: dict[str, int] = {}
    """Reason → how many failed with it since the ledger began."""
    ended: dict[str, int] = {}
    """failed and deleted: how many records are still kept of sandboxes that are over."""
    anomalies: dict[str, int] = {}
    """Kind → how many contradictions the ledger found in itself, and mended. Anything but none is a fault, of Redis or of ours."""


@dataclass(frozen=True, slots=True)
class PaceSample:
    """What a batch of calls to the backend met, for the feedback control."""

    ok: int = 0
    throttled: int = 0
    """Answers that mean "too fast": 429, 5xx, time-outs."""
    latency_ms: float = 0.0
    """Mean of the calls in the batch."""
    retry_after_seconds: float = 0.0
    """The longest pause that the backend asked for."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """Creates taken over from workers that fell silent, and how many were left that must be taken alone."""

    records: list[Record]
    suspects: int


@dataclass(frozen=True, slots=True)
class Tick:
    """One look at everything: what was moved on, and what waits."""

    expired: list[Expired]
    queued: int
    stale_claims: int
    cleanup: int
    starting: int
    wake: bool
    """True for exactly one caller: work waits, nobody drains it, and a provision job should be enqueued."""
    anomalies: int
    """How many contradictions were found and mended since the ledger began."""


_ID = re.compile(r"(?:sb|run)-[a-z2-7]{26}\Z")


def _new_id(prefix: str) -> str:
    return prefix + base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()


def new_sandbox_id() -> str:
    """128 random bits: unguessable, and a valid name for a file, a host and a Kubernetes object."""
    return _new_id("sb-")


def new_run_id() -> str:
    return _new_id("run-")


def is_sandbox_id(text: str) -> bool:
    return text.startswith("sb-") and _ID.match(text) is not None


def is_run_id(text: str) -> bool:
    return text.startswith("run-") and _ID.match(text) is not None
