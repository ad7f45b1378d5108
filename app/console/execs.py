"""The commands of one sandbox, asked of its daemon: one call, bounded in time and size, that holds nothing.

A look at a page is no use of a sandbox, so it extends no lease. What comes back was made up by a caller (and passed through a
machine that runs a caller's code), so it is decoded strictly, cut, and shown as plain text.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from app.console import wording
from app.gateway.pool import Pool
from app.gateway.relay import Call, connection, request_head
from app.gateway.routes import Routes
from app.gateway.wire import WireError
from app.ledger.model import Record
from app.problems import Problem

log = structlog.get_logger("sandman.console")

SECONDS: Final = 1.0
ANSWER_BYTES_MAX: Final = 3 * 1024 * 1024
"""A thousand records of at most about 2.5 KB."""
SHOWN: Final = 50


class ExecLine(msgspec.Struct, frozen=True):
    """The little of a listed exec that a page shows."""

    id: str
    state: str
    exit_code: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    command: str | None = None
    argv: list[str] | None = None
    session: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None


class _Listed(msgspec.Struct, frozen=True):
    items: list[ExecLine]


@dataclass(frozen=True, slots=True)
class ExecRow:
    command: str
    id: str
    outcome: str
    bad: bool
    lasted: str
    at: str
    at_iso: str


_decode: Final = msgspec.json.Decoder(_Listed).decode
_CALL: Final = Call(b"GET", b"/v1/execs?limit=1000", repeatable=True)


class ExecReader:
    def __init__(self, routes: Routes, pool: Pool) -> None:
        self._routes = routes
        self._pool = pool

    async def latest(self, record: Record) -> list[ExecLine] | None:
        """The newest first, at most `SHOWN`; None when the daemon does not say in time."""
        try:
            async with asyncio.timeout(SECONDS):
                route = self._routes.remember(record, record.tenant)
                async with connection(self._pool, route.address, fresh=True) as wire:
                    wire.send(request_head(route, _CALL, [], 0))
                    head = await wire.head()
                    body = await wire.whole(ANSWER_BYTES_MAX)
            if head.status != 200:
                return None
            return _decode(body).items[: -SHOWN - 1 : -1]
        except (WireError, OSError, TimeoutError, Problem, msgspec.MsgspecError, ValueError) as error:
            log.info("execs not read", sandbox=record.id, error=type(error).__name__)
            return None


def exec_row(line: ExecLine, now_ms: int) -> ExecRow:
    text = line.command if line.command is not None else " ".join(line.argv or ())
    created_ms = _moment(line.created_at, now_ms)
    started = created_ms if line.started_at is None else _moment(line.started_at, now_ms)
    ended = now_ms if line.ended_at is None else _moment(line.ended_at, now_ms)
    outcome, bad = _outcome(line)
    return ExecRow(
        command=wording.plain(text, 300),
        id=wording.plain(line.id, 130),
        outcome=outcome,
        bad=bad,
        lasted=wording.span((ended - started) / 1000),
        at=wording.clock(created_ms),
        at_iso=wording.iso(created_ms),
    )


def _moment(seconds: float, now_ms: int) -> int:
    """Within a year of now: a time that no calendar knows must not break the page."""
    year = 366 * 86_400_000
    return int(min(max(seconds * 1000, now_ms - year), now_ms + year))


def _outcome(line: ExecLine) -> tuple[str, bool]:
    if line.state != "exited":
        return "running", False
    if line.exit_code is None:
        return "never began", True
    if line.oom_killed:
        return "out of memory", True
    if line.timed_out:
        return "timed out", True
    return f"exit {line.exit_code}", line.exit_code != 0
