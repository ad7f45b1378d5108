"""Taking back what nobody holds, and seeing to it that nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from app.ledger import wakeup
from app.ledger.codec import clean_text, decode_reclaim
from app.ledger.concern import Concern
from app.ledger.connection import milliseconds, translated
from app.ledger.model import Cleanup, Expired, Reclaim, ReclaimPage, State, Tick

_CLEANUP_CLAIM_SECONDS = 30.0
"""How long one removal may take before it is given out again; removing twice is harmless, so this only limits double work."""
_AUDIT_PIECE = 500
"""About 4 ms in Redis, during which nobody else is served."""


class Reclaiming(Concern):
    async def tick(self, limit: int = 100) -> Tick:
        """Move on what is past its deadline, its lease or its run, forget what ended long ago, and say what waits. Call about once
        a second; a long silence between two calls is taken for an outage, and leases get a grace. More may be due than `limit`."""
        lease, retention = self._settings.lease, self._settings.retention
        queued, stale, cleanup, starting, wake, anomalies, *flat = await self._connection.run_list(
            "expire",
            limit,
            milliseconds(lease.outage_threshold_seconds),
            milliseconds(lease.outage_grace_seconds),
            milliseconds(retention.ended_seconds),
            retention.ended_bound,
            milliseconds(retention.run_seconds),
            retention.run_bound,
            wakeup.WAKE_MS,
        )
        expired = [
            Expired(flat[i], Reclaim(flat[i + 1]), is_run=flat[i + 2] == "run")
            for i in range(0, len(flat), 3)
        ]
        return Tick(expired, int(queued), int(stale), int(cleanup), int(starting), bool(wake), int(anomalies))

    async def expire(self, limit: int = 100) -> list[Expired]:
        """A `tick` that also wakes a worker where that is due."""
        tick = await self.tick(limit)
        if tick.wake:
            await self._waker.wake()
        return tick.expired

    async def cleanup_due(self, limit: int = 50) -> list[Cleanup]:
        """What must be removed from the backend now, what somebody waits for first. Each is given to one caller for a while."""
        replies = await self._connection.run_list(
            "cleanup_due", limit, milliseconds(_CLEANUP_CLAIM_SECONDS), again=False
        )
        return [Cleanup(sandbox_id, State(state), reclaim) for sandbox_id, state, reclaim in replies]

    async def anomalies(self, limit: int = 20) -> list[str]:
        """What the scripts found wrong last and mended, newest first."""
        async with translated():
            entries = cast(
                list[tuple[str, dict[str, str]]],
                await self._connection.client.xrevrange(
                    f"{self._connection.prefix}anomalies:log", count=limit
                ),
            )
        return [f"{found['kind']}: {found['text']}" for _entry, found in entries]

    async def audit(self) -> None:
        """Put every record back where it belongs, a piece at a time, then recount. What is found is among the anomalies."""
        place = "-1"
        while place:
            place = str(await self._connection.run("audit", place, _AUDIT_PIECE))
        await self._connection.run("audit_sums")

    async def cleanup_done(self, sandbox_id: str) -> bool:
        """Nothing of it is left. False: there was nothing to do, or a create still in flight must let go first."""
        return bool(await self._connection.run("cleanup_done", sandbox_id))

    async def cleanup_retry(self, sandbox_id: str, error: str, delay_seconds: float) -> int:
        """Removing failed; it comes up again after the delay. Gives how often it has failed."""
        return int(
            await self._connection.run(
                "cleanup_retry", sandbox_id, milliseconds(delay_seconds), clean_text(error, 500), again=False
            )
        )

    async def reclaim_all(self, reclaim: Reclaim, limit: int = 100) -> int:
        """Take back everything that lives, `limit` at a time; call until it gives 0."""
        return int(await self._connection.run("reclaim_all", reclaim, limit))

    async def reclaims(
        self, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> ReclaimPage:
        """The reclaim log, newest first."""
        key = f"{self._connection.prefix}reclaims" + (f":{tenant}" if tenant else "")
        limit = max(1, min(limit, 1000))
        newest = f"({cursor}" if cursor and cursor.replace("-", "").isdigit() else "+"
        async with translated():
            entries = cast(
                list[tuple[str, dict[str, str]]],
                await self._connection.client.xrevrange(key, max=newest, min="-", count=limit + 1),
            )
        items = [decode_reclaim(entry, found) for entry, found in entries[:limit]]
        return ReclaimPage(items, entries[limit - 1][0] if len(entries) > limit else None)

    async def note_orphans(self, now: int, reclaimed_ids: Iterable[str] = ()) -> None:
        """What a full listing of the backend found without a live record, and which of it was removed."""
        await self._connection.run("orphans", now, *reclaimed_ids, again=False)
