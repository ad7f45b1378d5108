"""Creating, reading, holding and giving up sandboxes: the caller's side of the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from app.ledger import wakeup
from app.ledger.codec import clean_text, decode_readable, decode_record, encode_spec, encode_texts
from app.ledger.concern import Concern
from app.ledger.connection import milliseconds
from app.ledger.errors import Ended, IdempotencyConflict, NotFound, QueueFull, RunEnded, RunNotFound
from app.ledger.model import LIVE, Brief, Created, NewSandbox, Page, Reclaim, Record, State

LIST_LIMIT_MAX = 500
_LOOK_AT = 1_000
"""Records one list call looks at: about 5 ms in Redis, during which nobody else is served."""
_TOUCH_CHUNK = 500


class Sandboxes(Concern):
    async def create(self, new: NewSandbox) -> Created:
        """Write it down as queued. The same key (or id) again gives the same sandbox, even when that has ended.

        Raises IdempotencyConflict, RunNotFound, RunEnded, QueueFull.
        """
        settings = self._settings
        reply = await self._connection.run_list(
            "create",
            new.id,
            new.tenant,
            new.run or "",
            key_digest(new.idempotency_key),
            new.fingerprint or "-",
            milliseconds(new.lease_seconds),
            milliseconds(new.lifetime_seconds),
            int(new.waiting),
            milliseconds(settings.lease.hold_seconds),
            encode_spec(new.spec),
            encode_texts(new.spec.env),
            encode_texts(new.spec.labels),
            new.spec.cpu,
            new.spec.memory,
            settings.queue.bound,
            settings.queue.tenant_bound,
            milliseconds(settings.retention.ended_seconds),
            wakeup.WAKE_MS,
        )
        match reply[0]:
            case "created" | "existing":
                if reply[1]:
                    await self._waker.wake()
                return Created(decode_record(reply[2]), existing=reply[0] == "existing")
            case "conflict":
                raise IdempotencyConflict(reply[1])
            case "no_run":
                raise RunNotFound(new.run or "")
            case "run_ended":
                raise RunEnded(new.run or "")
            case _:
                scope = str(reply[1])
                raise QueueFull(
                    scope, settings.queue.bound if scope == "service" else settings.queue.tenant_bound
                )

    async def get(self, sandbox_id: str) -> Record | None:
        return (await self.get_many([sandbox_id]))[0]

    async def get_many(self, ids: Iterable[str]) -> list[Record | None]:
        """In the order asked for; None where unknown."""
        replies = await self._connection.run_list("read", *ids)
        return [decode_record(flat) if flat else None for flat in replies]

    async def briefs(self, ids: Iterable[str]) -> list[Brief | None]:
        """What a comparison with the backend needs of many, in the order asked for; None where unknown."""
        replies = await self._connection.run_list("brief", *ids)
        return [
            Brief(found[0] in LIVE, found[0], _moment(found[1]), _moment(found[2])) if found else None
            for found in replies
        ]

    async def list(
        self,
        tenant: str | None = None,
        *,
        states: Iterable[State] = (),
        run: str | None = None,
        labels: dict[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Newest first. A page may hold fewer than `limit` (even none) and still have a next one: the look is bounded."""
        limit = max(1, min(limit, LIST_LIMIT_MAX))
        reply = await self._connection.run_list(
            "list",
            tenant or "",
            run or "",
            ",".join(states),
            encode_texts(labels) if labels else "",
            limit,
            cursor if cursor and cursor.isdigit() else "",
            max(_LOOK_AT, limit),
        )
        return Page(decode_readable(reply[1:]), str(reply[0]) or None)

    async def queue_position(self, sandbox_id: str) -> int | None:
        """How many are admitted before it if nobody else comes; None when it does not wait."""
        position = int(await self._connection.run("position", sandbox_id))
        return None if position < 0 else position

    async def touch(self, ids: Iterable[str], seconds: float | None = None) -> dict[str, int | None]:
        """Signs of life: never shortens a lease. Gives each one's end (None: its run holds it); those that are over are absent."""
        wanted = list(dict.fromkeys(ids))
        alive: dict[str, int | None] = {}
        for start in range(0, len(wanted), _TOUCH_CHUNK):
            chunk = wanted[start : start + _TOUCH_CHUNK]
            ends = await self._connection.run_list(
                "touch",
                "" if seconds is None else milliseconds(seconds),
                milliseconds(self._settings.lease.hold_seconds),
                *chunk,
            )
            for sandbox_id, end in zip(chunk, ends, strict=True):
                if end:
                    alive[sandbox_id] = None if end == "run" else int(float(end))
        return alive

    async def claim(self, sandbox_id: str) -> Record:
        """The waiting caller is answered: its lease (or its run) holds the sandbox from now on. One that is over is given as it is."""
        flat = await self._connection.run_list("claim", sandbox_id)
        if not flat:
            raise NotFound(sandbox_id)
        return decode_record(flat)

    async def renew(self, sandbox_id: str, seconds: float | None = None) -> Record:
        """A fresh lease; with `seconds` also a new length for later ones. Raises Ended, NotFound."""
        reply = await self._connection.run_list(
            "renew", sandbox_id, "" if seconds is None else milliseconds(seconds)
        )
        if not reply:
            raise NotFound(sandbox_id)
        record = decode_record(reply[1])
        if reply[0] == "ended":
            raise Ended(record)
        return record

    async def request_delete(
        self, sandbox_id: str, reclaim: Reclaim = Reclaim.DELETED, detail: str = ""
    ) -> Record:
        """Idempotent. A queued one is gone at once; `DELETED` of one that is not ready yet is written down as cancelled."""
        flat = await self._connection.run_list("delete", sandbox_id, reclaim, clean_text(detail, 500))
        if not flat:
            raise NotFound(sandbox_id)
        return decode_record(flat)


def _moment(text: str) -> int | None:
    return int(float(text)) if text else None


def key_digest(key: str | None) -> str:
    """Keys are hashed: their length is bounded and their content is nobody's business."""
    return "" if key is None else hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
