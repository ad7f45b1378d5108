"""Counts for people and dashboards: read, never computed by looking at the records."""

from __future__ import annotations

from collections.abc import Iterable

from app.ledger.codec import fields
from app.ledger.concern import Concern
from app.ledger.model import Concurrency, ExecSample, OrphanStats, PacingStats, QueueStats, State, Stats
from app.ledger.report import exec_updates

_SHOWN = (State.QUEUED, State.CREATING, State.STARTING, State.READY, State.DELETING)
_ENDED = (State.FAILED, State.DELETED)


class Statistics(Concern):
    async def stats(self, tenant: str | None = None) -> Stats:
        """For the whole service, or with one tenant's own live, concurrency, queue, reclaimed and failed."""
        (
            now,
            live,
            peak,
            oldest,
            pace,
            orphans,
            reclaimed,
            creating,
            starting,
            failed,
            anomalies,
        ) = await self._connection.run_list("stats", tenant or "")
        counts, pacing, strays = fields(live), fields(pace), fields(orphans)
        oldest_ms = float(oldest)
        return Stats(
            live={state.value: int(counts.get(state, "0")) for state in _SHOWN},
            concurrency=Concurrency(now=int(counts.get(State.READY, "0")), peak=int(peak)),
            queue=QueueStats(
                depth=int(counts.get(State.QUEUED, "0")),
                oldest_seconds=max(0.0, round((int(now) - oldest_ms) / 1000, 3)) if oldest_ms else 0.0,
            ),
            pacing=PacingStats(
                rate=round(float(pacing.get("rate", self._settings.pacing.rate_initial)), 2),
                window=int(pacing.get("window", self._settings.pacing.window)),
                in_flight=int(creating) + int(starting),
                reason=pacing.get("reason", "initial"),
            ),
            orphans=OrphanStats(now=int(strays.get("now", "0")), reclaimed=int(strays.get("reclaimed", "0"))),
            reclaimed={reason: int(n) for reason, n in fields(reclaimed).items()},
            failed={reason: int(n) for reason, n in fields(failed).items()},
            ended={state.value: int(counts.get(state, "0")) for state in _ENDED},
            anomalies={kind: int(n) for kind, n in fields(anomalies).items()},
        )

    async def record_execs(self, batch: Iterable[ExecSample]) -> None:
        """Add commands that ended to their runs' reports; call with batches. Commands outside of a run are not kept. A lost answer
        loses the batch rather than counting it twice."""
        for run, triples in exec_updates(batch).items():
            await self._connection.run("record_execs", run, *triples, again=False)
