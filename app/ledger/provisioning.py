"""Letting queued sandboxes start, and moving them on: the worker's side of the ledger.

A claim is a lease on the work of creating one sandbox. Its holder extends it; when it lapses, another worker takes the same create
over, which is harmless because a create is idempotent by the sandbox's id.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.ledger.codec import clean_text, decode_readable, encode_texts
from app.ledger.concern import Concern
from app.ledger.connection import milliseconds
from app.ledger.model import Admission, PaceSample, Reason, Record, Takeover

_DRAINING_MS = 3_000
"""A job that was silent for so long is taken for dead; it says so each second."""


class Provisioning(Concern):
    async def admit(self, limit: int, worker: str, claim_seconds: float | None = None) -> Admission:
        """Move up to `limit` from queued to creating, fairly, within rate and window. Not repeated on a lost answer: what was
        admitted unseen comes back by `take_stale`."""
        pacing = self._settings.pacing
        reply = await self._connection.run_list(
            "admit",
            worker,
            limit,
            milliseconds(self._claim(claim_seconds)),
            pacing.rate_initial,
            pacing.window,
            again=False,
        )
        return Admission(decode_readable(reply[3:]), reply[0] or None, int(reply[1]), int(reply[2]))

    async def take_stale(
        self, worker: str, limit: int, claim_seconds: float | None = None, *, alone: bool = True
    ) -> list[Record]:
        """Take over creates whose claim has lapsed; too many attempts fail with backend_error. See `take_over`."""
        return (await self.take_over(worker, limit, claim_seconds, alone=alone)).records

    async def take_over(
        self, worker: str, limit: int, claim_seconds: float | None = None, *, alone: bool
    ) -> Takeover:
        """`alone`: the worker has nothing else in flight, so it may be given a create that seems to kill workers."""
        reply = await self._connection.run_list(
            "take_stale",
            worker,
            limit,
            milliseconds(self._claim(claim_seconds)),
            self._settings.worker.attempts_max,
            int(alone),
            again=False,
        )
        return Takeover(decode_readable(reply[1:]), int(reply[0]))

    async def extend_claims(
        self, worker: str, ids: Iterable[str], claim_seconds: float | None = None
    ) -> list[str]:
        """Keep working on these; gives back those that are no longer this worker's to create (cancelled, or taken over)."""
        return [
            str(lost)
            for lost in await self._connection.run_list(
                "extend_claims", worker, milliseconds(self._claim(claim_seconds)), *ids
            )
        ]

    async def release_claim(
        self,
        sandbox_id: str,
        worker: str,
        *,
        delay_seconds: float = 0.0,
        error: str = "",
        counts: bool = True,
    ) -> bool:
        """This worker has stopped touching it: a create may be tried again after the delay, a cleanup need not wait any more.
        `counts` False: that was no attempt, for example because the backend was busy."""
        return bool(
            await self._connection.run(
                "release_claim",
                sandbox_id,
                worker,
                milliseconds(delay_seconds),
                clean_text(error, 500),
                int(not counts),
            )
        )

    async def mark_starting(self, sandbox_id: str, address: str, enforced: dict[str, str]) -> bool:
        """It exists in the backend. False: it had moved on, and whoever made it should let go of its claim."""
        return bool(
            await self._connection.run("mark", sandbox_id, "starting", address, encode_texts(enforced))
        )

    async def mark_ready(self, sandbox_id: str) -> bool:
        """A no-op exec has passed in it."""
        return bool(await self._connection.run("mark", sandbox_id, "ready"))

    async def mark_failed(self, sandbox_id: str, reason: Reason, detail: str, *, final: bool = False) -> bool:
        """`final`: the same create would fail again, whatever the reason says of others."""
        return bool(
            await self._connection.run(
                "mark", sandbox_id, "failed", reason, clean_text(detail, 2000), "1" if final else ""
            )
        )

    async def pace_report(self, sample: PaceSample) -> tuple[float, int]:
        """Feed back what a batch of creates met; gives the new rate and window."""
        pacing = self._settings.pacing
        rate, window, _reason = await self._connection.run_list(
            "pace_report",
            sample.ok,
            sample.throttled,
            sample.latency_ms,
            milliseconds(sample.retry_after_seconds),
            pacing.rate_initial,
            pacing.rate_min,
            pacing.rate_max,
            milliseconds(pacing.latency_seconds_target),
            pacing.window,
            again=False,
        )
        return float(rate), int(window)

    async def drain_begin(self) -> None:
        """A provision job starts: creates from now on may make the next one."""
        await self._connection.run("drain", "begin", _DRAINING_MS)

    async def drain_still(self) -> None:
        await self._connection.run("drain", "still", _DRAINING_MS)

    async def drain_end(self) -> None:
        await self._connection.run("drain", "end", _DRAINING_MS)

    async def wake(self) -> None:
        """Enqueue a provision job."""
        await self._waker.wake()

    def _claim(self, seconds: float | None) -> float:
        return self._settings.worker.claim_seconds if seconds is None else seconds
