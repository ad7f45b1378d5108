"""A sandbox as an object: its commands, its files (`.files`), its lease.

While the object is open this process holds the sandbox: its lease is renewed in the background, until it is closed (which
deletes the sandbox), detached (which keeps it), garbage-collected, or the process ends. Then nobody renews, and the service
takes the sandbox back when its lease is over.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sandman.aio.commands import Commands
from sandman.aio.files import AsyncFiles
from sandman.aio.link import Link
from sandman.endings import failure_of, lost_by
from sandman.errors import ClosedError, CreateTimeout, Gone, NotFound, ProblemError, SandboxLost, SandmanError
from sandman.models import ENDED_STATES, SandboxInfo

if TYPE_CHECKING:
    from sandman.aio.client import AsyncClient

T = TypeVar("T")

POLL_SECONDS = 25.0
"""One waiting request: below the 30 s after which many a proxy cuts a silent one."""


class AsyncSandbox(Commands):
    """Made by `create`, `sandbox` and `sandboxes` of a client or a run. Methods may be used by many tasks at once."""

    def __init__(self, client: AsyncClient, info: SandboxInfo, *, prefix: str, holds: bool) -> None:
        self.client = client
        self.id = info.id
        self.info = info
        """The record as last seen; `refresh()` looks again."""
        self._prefix = prefix
        self._holds = holds
        self._closed = False
        self._lost: SandmanError | None = None
        self._process = os.getpid()
        # No strong references back to this object: dropping the last one must end it at once, not at some collection.
        self._link = Link(
            f"{prefix}/connect", client.settings, client._slots, weakref.WeakMethod(self._explain)
        )
        client._track(self._link)

    @property
    def files(self) -> AsyncFiles:
        return AsyncFiles(self)

    # The sandbox itself

    async def refresh(self, wait: float = 0.0) -> SandboxInfo:
        """Look at the record again; with `wait` seconds, answered earlier when it becomes ready or ends."""
        params = {"wait": wait} if wait else None
        self.info = await self.client._ask(
            SandboxInfo,
            "GET",
            self._prefix,
            params=params,
            wait_seconds=wait,
            lane="waits" if wait else "calls",
        )
        return self.info

    async def wait_ready(self, timeout: float = 600.0) -> Self:
        """Until it is ready. Cancellable, and it changes nothing then. Raises SandboxFailed, or CreateTimeout."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while self.info.state != "ready":
            if self.info.state in ENDED_STATES:
                raise failure_of(self.info)
            left = ends - loop.time()
            if left <= 0:
                raise CreateTimeout(
                    f"sandbox {self.id} is still {self.info.state} after {timeout:g} s", sandbox=self.id
                )
            await self.refresh(wait=max(0.1, min(POLL_SECONDS, left)))
        return self

    async def renew(self, lease_seconds: float | None = None) -> SandboxInfo:
        """Renew the lease now, and set its length if given. The background does it by itself while the object is open."""
        body = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
        self.info = await self._ask(SandboxInfo, "POST", f"{self._prefix}/renew", json=body, repeatable=True)
        return self.info

    async def delete(self) -> None:
        """Take the sandbox back with everything in it. Idempotent: one that is gone already is no error."""
        self._closed = True
        self._holds = False
        self.client._forget(self)
        await self._link.close()
        try:
            await self.client._http.call("DELETE", self._prefix)
        except (NotFound, Gone):
            pass

    async def detach(self, lease_seconds: float | None = None) -> str:
        """Let go and keep the sandbox; its id. It lives for the lease (renewed once here) unless somebody else renews it."""
        if self._holds and not self._closed and self.info.run is None:
            await self.renew(lease_seconds)
        self._holds = False
        await self.release()
        return self.id

    async def release(self) -> None:
        """Close this object's connection and stop renewing; changes nothing about the sandbox. Idempotent."""
        self._closed = True
        self.client._forget(self)
        await self._link.close()

    async def aclose(self) -> None:
        """Delete the sandbox if this object holds it (`create` made it, and it was not detached); else only release."""
        if self._holds:
            await self.delete()
        else:
            await self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Leaving must not be undone by a second cancellation: then the rest happens in the background.
        await self.client._finish(self.aclose())

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._process:
            self.client._drop_link(self._link)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {'closed' if self._closed else self.info.state}>"

    # For the parts

    def _check_usable(self) -> None:
        self.client._check_usable()
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise ClosedError(f"the object of sandbox {self.id} has been closed")

    async def _ask(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        self._check_usable()
        try:
            return await self.client._ask(kind, method, path, **options)
        except ProblemError as error:
            raise await self._explain(error)  # noqa: B904 - carries its own cause

    async def _tell(self, method: str, path: str, **options: Any) -> None:
        """A call whose answer tells nothing beyond that it was done."""
        self._check_usable()
        try:
            await self.client._call(method, path, **options)
        except ProblemError as error:
            raise await self._explain(error)  # noqa: B904 - carries its own cause

    async def _explain(self, error: ProblemError) -> SandmanError:
        """What a 404 or 410 of one of its calls means: a missing file or exec is that; a sandbox that is gone is SandboxLost."""
        if isinstance(error, Gone) and ("state" in error.members or "reclaim" in error.members):
            return lost_by(self.id, error)
        return error

    async def _renew_lease(self) -> float | None:
        if self._closed or not self._holds:
            return None
        info = await self.renew()
        return info.lease_seconds

    def _lease_lost(self, error: SandmanError) -> None:
        if self._lost is None:
            self._lost = (
                error
                if isinstance(error, SandboxLost)
                else SandboxLost(
                    f"sandbox {self.id} is gone: {error}",
                    sandbox=self.id,
                    cause="infra",
                    request_id=error.request_id,
                )
            )
