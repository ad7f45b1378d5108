"""The ledger: every sandbox's record, and the only way to change one.

`Ledger` is put together from one class per concern; each method is one script, so each either happened or did not. Methods raise
what `app.ledger.errors` names, and are safe to cancel: what was sent may still happen, and is then found like any other change.
"""

from __future__ import annotations

from typing import Self

from app.ledger.connection import Connection, make_client, translated
from app.ledger.coordination import Coordination
from app.ledger.provisioning import Provisioning
from app.ledger.reclaiming import Reclaiming
from app.ledger.runs import Runs
from app.ledger.sandboxes import Sandboxes
from app.ledger.settings import Settings
from app.ledger.statistics import Statistics
from app.ledger.wakeup import Waker


class Ledger(Sandboxes, Provisioning, Reclaiming, Runs, Statistics, Coordination):
    """Belongs to one event loop; hold one per process."""

    @classmethod
    async def connect(cls, settings: Settings) -> Self:
        """Does not wait for Redis: a ledger that cannot be reached raises LedgerUnavailable from each call, and recovers by itself."""
        connection = Connection(make_client(settings.redis), settings.redis.namespace)
        return cls(connection, settings, Waker(settings.redis))

    async def aclose(self) -> None:
        await self._waker.aclose()
        await self._connection.aclose()

    async def ping(self) -> None:
        """Raises LedgerUnavailable when Redis does not answer."""
        async with translated():
            await self._connection.client.ping()
