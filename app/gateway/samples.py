"""How commands ended and how long they took, written to the ledger each second for the runs' reports.

A figure that is lost when this process is killed is worth less than a Redis call for each command."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

import structlog

from app import metrics
from app.ledger.errors import LedgerError
from app.ledger.ledger import Ledger
from app.ledger.model import ExecSample

log = structlog.get_logger("sandman.samples")

PERIOD_SECONDS: Final = 1.0
KEPT_MAX: Final = 50_000
BATCH_MAX: Final = 5_000

Outcome = Literal["ok", "nonzero", "timed_out", "signalled", "oom_killed", "not_started", "lost"]


def outcome_of(result: Mapping[str, Any]) -> Outcome:
    """The word for one exec result."""
    if result.get("oom_killed"):
        return "oom_killed"
    if result.get("timed_out"):
        return "timed_out"
    if result.get("signal"):
        return "signalled"
    return "ok" if result.get("exit_code") == 0 else "nonzero"


class Samples:
    """`add` is cheap and never waits; `run` is its only task."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: list[ExecSample] = []

    def add(self, sandbox_id: str, run: str | None, outcome: Outcome, seconds: float) -> None:
        metrics.EXECS.labels(outcome).inc()
        if len(self._kept) >= KEPT_MAX:
            metrics.EXEC_SAMPLES_DROPPED.inc()
            return
        self._kept.append(ExecSample(sandbox_id, run, outcome, seconds))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what there is; keeps it for the next time if the ledger cannot be reached."""
        while self._kept:
            batch, self._kept = self._kept[:BATCH_MAX], self._kept[BATCH_MAX:]
            try:
                await self._ledger.record_execs(batch)
            except LedgerError as error:
                log.warning("exec samples could not be written", error=str(error), count=len(batch))
                self._kept[:0] = batch[: KEPT_MAX - len(self._kept)]
                return
