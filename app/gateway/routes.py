"""Where each sandbox's daemon is, cached, so that a short command asks Redis nothing.

An entry is dropped when the ledger's event feed says that its sandbox changed, and it is looked up again after
`ROUTE_SECONDS` anyway. A stale entry does no harm beyond one failed connection: the daemon checks a token that only its own
sandbox has, and whoever fails to connect looks at the record again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from app import metrics
from app.ledger.ledger import Ledger
from app.ledger.model import Record, State, is_sandbox_id
from app.ledger.tokens import sandbox_token
from app.problems import not_found
from app.sandboxes.endings import ended_problem, not_ready_problem

ROUTES_MAX: Final = 20_000
# While the feed is whole, changes arrive at once and this only bounds the harm of a lost one.
ROUTE_SECONDS: Final = 10.0


@dataclass(slots=True)
class Route:
    """A usable sandbox: where its daemon listens and what opens it."""

    id: str
    tenant: str
    run: str | None
    address: str
    headers: bytes
    """Request headers that are the same for every call to this daemon, ready to be sent."""
    token: str
    lease_seconds: float
    held_by_run: bool
    """Its run's lease holds it; there is none of its own to be touched."""
    fresh_until: float
    touched: float = float("-inf")
    """When this process last extended its lease, on the monotonic clock: only our own clock is ever compared with itself."""


class Routes:
    """Bounded, least recently used first out."""

    def __init__(self, ledger: Ledger, secret: bytes) -> None:
        self._ledger = ledger
        self._secret = secret
        self._routes: OrderedDict[str, Route] = OrderedDict()

    async def find(self, sandbox_id: str, tenant: str, *, again: bool = False) -> Route:
        """The route to a ready sandbox of this tenant. Raises `not-found`, `not-ready`, `gone`, or what the ledger raises.
        `again`: ask the ledger even if it is cached."""
        route = self._routes.get(sandbox_id)
        if route is not None and not again and route.fresh_until > time.monotonic():
            if route.tenant != tenant:
                raise not_found("sandbox")
            self._routes.move_to_end(sandbox_id)
            return route
        if not is_sandbox_id(sandbox_id):
            raise not_found("sandbox")
        return self.remember(await self._ledger.get(sandbox_id), tenant)

    def remember(self, record: Record | None, tenant: str) -> Route:
        """Cache what the ledger said and return the route; raises as `find`."""
        if record is None or record.tenant != tenant:
            raise not_found("sandbox")
        if not record.live:
            self.drop(record.id)
            raise ended_problem(record)
        if record.state is not State.READY or record.address is None:
            raise not_ready_problem(record)
        token = sandbox_token(self._secret, record.id)
        now = time.monotonic()
        route = Route(
            id=record.id,
            tenant=record.tenant,
            run=record.run,
            address=record.address,
            headers=f"Host: sandbox\r\nAuthorization: Bearer {token}\r\n".encode("ascii"),
            token=token,
            lease_seconds=record.lease_seconds,
            held_by_run=record.run is not None,
            fresh_until=now + ROUTE_SECONDS,
        )
        before = self._routes.get(record.id)
        if before is not None:
            route.touched = before.touched
        self._routes[record.id] = route
        self._routes.move_to_end(record.id)
        if len(self._routes) > ROUTES_MAX:
            self._routes.popitem(last=False)
        return route

    def cached(self, sandbox_id: str) -> Route | None:
        return self._routes.get(sandbox_id)

    def drop(self, sandbox_id: str) -> Route | None:
        return self._routes.pop(sandbox_id, None)

    def clear(self) -> None:
        """After the feed lost events: nothing in here is known to be true."""
        self._routes.clear()

    def report(self) -> None:
        metrics.ROUTES_CACHED.set(len(self._routes))
