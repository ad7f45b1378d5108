"""A run: one training job or session, whose single lease holds every sandbox it owns.

One renewal holds thousands of sandboxes. When the run is left, deleted, or this process dies and its lease lapses, the service
takes back all of them, whatever their own objects say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from sandman.errors import ClosedError, Gone, NotFound, SandboxError, SandmanError
from sandman.models import RunInfo
from sandman.options import CreateOptions

if TYPE_CHECKING:
    from sandman.aio.client import AsyncClient
    from sandman.aio.opening import Opening
    from sandman.aio.sandbox import AsyncSandbox


class AsyncRun:
    """Made by `client.run(...)`. Leaving `async with` ends the run and everything that it owns."""

    def __init__(self, client: AsyncClient, info: RunInfo) -> None:
        self.client = client
        self.id = info.id
        self.info = info
        self._closed = False
        self._lost: SandmanError | None = None

    def create(
        self, image: str = "host", *, wait: float = 600.0, **options: Unpack[CreateOptions]
    ) -> Opening[AsyncSandbox]:
        """Like `client.create`, owned by this run: the run's lease holds it."""
        self._check_usable()
        return self.client.create(image, run=self.id, wait=wait, **options)

    def sandboxes(
        self, *, state: str | None = None, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncSandbox]:
        """What the run owns, as objects that do not delete when they are closed."""
        return self.client.sandboxes(run=self.id, state=state, labels=labels)

    async def report(self) -> dict[str, Any]:
        """What the run has cost so far and how long it waited; readable after its end too."""
        return await self.client._ask(dict[str, Any], "GET", f"/v1/runs/{self.id}/report")

    async def refresh(self) -> RunInfo:
        self.info = await self.client._ask(RunInfo, "GET", f"/v1/runs/{self.id}")
        return self.info

    async def renew(self) -> RunInfo:
        """Renew the lease now; the background does it by itself while the object is open."""
        self.info = await self.client._ask(
            RunInfo, "POST", f"/v1/runs/{self.id}/renew", json={}, repeatable=True
        )
        return self.info

    async def delete(self) -> None:
        """End the run: the service takes back all it owns. Idempotent."""
        self._closed = True
        try:
            await self.client._http.call("DELETE", f"/v1/runs/{self.id}")
        except (NotFound, Gone):
            pass

    async def detach(self) -> str:
        """Stop renewing and keep the run for the rest of its lease; its id. `client.attach_run(id)` holds it again."""
        self._closed = True
        return self.id

    async def aclose(self) -> None:
        if not self._closed:
            await self.delete()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client._finish(self.aclose())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{' closed' if self._closed else ''}>"

    def _check_usable(self) -> None:
        self.client._check_usable()
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise ClosedError(f"run {self.id} has been closed")

    async def _renew_lease(self) -> float | None:
        if self._closed:
            return None
        return (await self.renew()).lease_seconds

    def _lease_lost(self, error: SandmanError) -> None:
        self._lost = SandboxError(
            f"run {self.id} has ended: {error}", cause=error.cause, request_id=error.request_id
        )
