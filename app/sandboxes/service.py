"""Creating and waiting: who holds a sandbox while its caller waits, and what happens when the caller goes away.

A waiting create is held by this process's touches, for a short grace each time. When the caller hangs up, the touches stop and
nothing else is done: whoever comes again with the same idempotency key, or asks for the id, takes it over; if nobody does, it is
taken back after the grace. The same happens, with the same words, when this process is killed. Only the answer itself hands the
sandbox to its own lease.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog
from litestar.types import Receive

from app.body import Disconnected
from app.drain import Drain
from app.gateway.holder import Holder
from app.gateway.routes import Route
from app.ledger.errors import NotFound
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.model import NewSandbox, Record, State, is_sandbox_id, new_sandbox_id
from app.ledger.settings import Settings
from app.ledger.tasks import end_tasks
from app.problems import not_found
from app.sandboxes.fields import lease_seconds, lifetime_seconds, to_spec
from app.sandboxes.schemas import CreateSandbox
from app.services import Services

log = structlog.get_logger("sandman.sandboxes")
T = TypeVar("T")

PENDING = frozenset({State.QUEUED, State.CREATING, State.STARTING})


@dataclass(frozen=True, slots=True)
class Waited:
    record: Record
    existing: bool = False


class SandboxService:
    """What the API's calls on sandboxes do."""

    def __init__(self, services: Services) -> None:
        self._settings: Settings = services.settings
        self._ledger: Ledger = services.ledger
        self._feed: EventFeed = services.feed
        self._holder: Holder = services.holder
        self._drain: Drain = services.drain
        self._writes = services.writes

    async def create(
        self, body: CreateSandbox, tenant: str, key: str | None, wait: float, receive: Receive
    ) -> Waited:
        """Write it down and wait for it. Raises what the ledger raises, the `invalid` problem, or Disconnected."""
        settings = self._settings
        spec = to_spec(body, settings.limits)
        lease = lease_seconds(body.lease_seconds, settings.lease)
        lifetime = lifetime_seconds(body.lifetime_seconds, settings.lease)
        async with self._writes:
            created = await self._ledger.create(
                NewSandbox(
                    id=new_sandbox_id(),
                    tenant=tenant,
                    spec=spec,
                    run=body.run,
                    idempotency_key=key,
                    fingerprint=fingerprint(spec, body.run, lease, lifetime),
                    lease_seconds=lease,
                    lifetime_seconds=lifetime,
                    waiting=wait > 0,
                )
            )
        record = created.record
        if record.state in PENDING and wait > 0:
            record = await self.wait(record, wait, receive, just_made=not created.existing)
        if record.live and not record.claimed:
            record = await self._claim(record)
        return Waited(record, created.existing)

    async def get(self, sandbox_id: str, tenant: str) -> Record:
        """The record; the same problem for what is unknown, malformed or another tenant's."""
        record = await self._ledger.get(sandbox_id) if is_sandbox_id(sandbox_id) else None
        if record is None or record.tenant != tenant:
            raise not_found("sandbox")
        return record

    async def look(self, sandbox_id: str, tenant: str, wait: float, receive: Receive) -> Record:
        """The record, once it is ready or over, or after `wait` seconds. Who waits for it has come for it: it is claimed."""
        record = await self.get(sandbox_id, tenant)
        if wait > 0 and record.state in PENDING:
            record = await self.wait(record, wait, receive, just_made=False)
            if record.live and not record.claimed:
                record = await self._claim(record)
        return record

    async def _claim(self, record: Record) -> Record:
        async with self._writes:
            return await self._ledger.claim(record.id)

    async def wait(self, record: Record, seconds: float, receive: Receive, *, just_made: bool) -> Record:
        """Until it is ready or over, for `seconds`, or until this server shuts down; holding it meanwhile. Raises Disconnected
        when the caller goes away: then nothing holds it any more."""
        with self._holder.hold_waiting(record.id, just_made=just_made):
            settled = self._feed.wait_for(record.id, lambda now: now.state not in PENDING, seconds)
            try:
                found = await self._while_connected(settled, receive)
            except Disconnected:
                log.info("caller hung up while waiting", sandbox=record.id, state=record.state.value)
                raise
            except NotFound:
                raise not_found("sandbox") from None
        if found is None:  # shutting down: the answer is what is known now
            return await self._ledger.get(record.id) or record
        return found

    async def wait_cleaned(self, record: Record, seconds: float, receive: Receive) -> Record:
        """Until nothing of it is left in the backend."""
        cleaned = self._feed.wait_for(
            record.id, lambda now: now.state is State.DELETED or "cleaned" in now.times, seconds
        )
        try:
            return await self._while_connected(cleaned, receive) or record
        except NotFound:
            return record

    async def _while_connected(self, work: Awaitable[T], receive: Receive) -> T | None:
        """The result of `work`; None when the drain began first. Raises Disconnected when the caller left first."""
        tasks: list[asyncio.Future[object]] = [
            asyncio.ensure_future(work),
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._drain.wait()),
        ]
        working, leaving, _ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise Disconnected
            if working.done():
                return working.result()  # type: ignore[return-value]
            return None
        finally:
            # Until it has ended: a wait that went on would hold the sandbox of a caller that has left.
            await end_tasks(*tasks)


async def _gone(receive: Receive) -> None:
    """Returns when the caller has gone away. Only after its body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def fingerprint(spec: object, run: str | None, lease: float, lifetime: float) -> str:
    """Of what was asked for, defaults filled in: two bodies that mean the same are the same."""
    canonical = msgspec.json.encode([spec, run, lease, lifetime], order="sorted")
    return hashlib.sha256(canonical).hexdigest()


async def find_ready(
    services: Services, sandbox_id: str, tenant: str, wait: float, receive: Receive
) -> Route:
    """The route to a ready sandbox; with `wait`, once it is ready. Raises `not-ready`, `gone`, `not-found`, Disconnected."""
    routes = services.gateway.routes
    if wait <= 0 or routes.cached(sandbox_id) is not None:
        return await routes.find(sandbox_id, tenant)
    record = await SandboxService(services).look(sandbox_id, tenant, wait, receive)
    return routes.remember(record, tenant)
