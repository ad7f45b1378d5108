"""Runs: one training job or session, and the lease that holds everything it owns."""

from __future__ import annotations

from typing import Any

from app.ledger.codec import decode_run, encode_texts, fields
from app.ledger.concern import Concern
from app.ledger.connection import milliseconds
from app.ledger.errors import IdempotencyConflict, RunEnded, RunNotFound, TooManyRuns
from app.ledger.model import Reclaim, Run, RunPage
from app.ledger.report import build_report
from app.ledger.sandboxes import key_digest


class Runs(Concern):
    async def create_run(
        self,
        run_id: str,
        tenant: str,
        *,
        name: str = "",
        labels: dict[str, str] | None = None,
        lease_seconds: float | None = None,
        idempotency_key: str | None = None,
        fingerprint: str = "",
    ) -> tuple[Run, bool]:
        """Open a run; the flag says that this call (same key or id) had opened it before. Raises
        IdempotencyConflict, TooManyRuns."""
        length = self._settings.lease.seconds_default if lease_seconds is None else lease_seconds
        reply = await self._connection.run_list(
            "create_run",
            run_id,
            tenant,
            name,
            encode_texts(labels or {}),
            milliseconds(length),
            key_digest(idempotency_key),
            fingerprint or "-",
            self._settings.queue.run_bound,
        )
        if reply[0] == "conflict":
            raise IdempotencyConflict(reply[1])
        if reply[0] == "full":
            raise TooManyRuns(self._settings.queue.run_bound)
        return decode_run(reply[1:]), reply[0] == "existing"

    async def get_run(self, run_id: str) -> Run | None:
        reply = await self._connection.run_list("run", run_id, "get")
        return decode_run(reply[1:]) if reply else None

    async def renew_run(self, run_id: str, seconds: float | None = None) -> Run:
        """A fresh lease; with `seconds` also a new length. Raises RunNotFound, RunEnded."""
        reply = await self._connection.run_list(
            "run", run_id, "renew", "" if seconds is None else milliseconds(seconds)
        )
        if not reply:
            raise RunNotFound(run_id)
        if reply[0] != "open":
            raise RunEnded(run_id)
        return decode_run(reply[1:])

    async def end_run(self, run_id: str, reclaim: Reclaim = Reclaim.RUN_ENDED) -> Run:
        """Idempotent. It owns nothing new from now on; its sandboxes are taken back by the next `expire`s. Raises RunNotFound."""
        reply = await self._connection.run_list("run", run_id, "end", reclaim)
        if not reply:
            raise RunNotFound(run_id)
        return decode_run(reply[1:])

    async def list_runs(
        self, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> RunPage:
        """Newest first."""
        reply = await self._connection.run_list(
            "list_runs", tenant or "", max(1, min(limit, 500)), cursor if cursor and cursor.isdigit() else ""
        )
        return RunPage([decode_run(flat) for flat in reply[1:]], str(reply[0]) or None)

    async def run_report(self, run_id: str) -> dict[str, Any]:
        """What the run cost and how long it waited; also for one that has ended. Raises RunNotFound."""
        run = await self.get_run(run_id)
        reply = await self._connection.run_list("report", run_id)
        if run is None or not reply:
            raise RunNotFound(run_id)
        return build_report(run, fields(reply[1:]), now_ms=int(reply[0]))
