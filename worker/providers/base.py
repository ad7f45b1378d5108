"""What the worker asks of a backend.

The one fact to keep in mind: a caller of `create` may be killed at any line. So the object's name derives from the sandbox id,
`create` repeated is the same create, and `list` is the truth about what is there, leftovers of a half-made create included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from app.ledger.model import Reason, Record

Phase = Literal["starting", "running", "gone"]


class ProviderUnavailable(Exception):
    """The backend cannot be used at all; the message says what to do about it."""


class ProviderError(Exception):
    """A call failed. `retryable`: the same call may succeed later. `throttled`: it failed because we were too fast. `final`: the
    same create will fail until somebody changes something, whatever its reason says of others; the record then tells the caller."""

    def __init__(
        self,
        reason: Reason,
        detail: str,
        *,
        retryable: bool = False,
        throttled: bool = False,
        final: bool = False,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.retryable = retryable
        self.throttled = throttled
        self.final = final
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a created sandbox can be reached, and which limits hold there."""

    address: str
    """"unix:/path" or "http://ip:port"; empty when it will only be known from `watch` or `list`."""
    enforced: dict[str, str]
    node: str = ""
    latency_seconds: float | None = None
    """What the backend took for this one create, for pacing. None: the whole call; else without what is done once for many, such
    as importing an image, which says nothing about how busy the backend is."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One object of the backend, seen by `list` or `watch`."""

    id: str
    phase: Phase
    created_ms: int
    """By the backend's clock."""
    address: str | None = None
    reason: Reason | None = None
    """Why it is gone: exited, oom_killed, node_lost, daemon_lost, evicted, …"""
    detail: str = ""
    enforced: dict[str, str] | None = None


class Provider(Protocol):
    """All calls are coroutines that do not block the loop and are bounded in time."""

    name: str

    async def start(self) -> None:
        """Open what `create`, `delete` and `list` need. It must not rely on a task that runs between calls: the provision job's
        loop stands still between jobs."""
        ...

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raise ProviderUnavailable, saying what to do, when sandboxes cannot be made here."""
        ...

    async def create(self, record: Record, token_sha256: str) -> Placement:
        """Idempotent by record.id, also after a caller that was killed half way. May be cancelled at any await; what it then
        leaves is found by `list` and removed by `delete`. Raises ProviderError."""
        ...

    async def delete(self, sandbox_id: str) -> None:
        """Idempotent. Returns when nothing of it is alive: no process, mount, cgroup, socket or file. Raises ProviderError when
        it must be tried again."""
        ...

    async def list(self) -> list[Observed]:
        """Everything of this namespace that is there, half-made and dying objects included. Never partial: raises instead."""
        ...

    async def withdraw(self) -> None:
        """The service ends for good and no sandbox is left: remove what they shared, but for what the next start would have to make
        anew at a cost. Never raises."""
        ...

    def watch(self) -> AsyncIterator[Observed]:
        """Changes from now on, until closed. It may miss some (the caller lists regularly) but never invents one."""
        ...
