"""The asynchronous client: connections, leases and bounds for any number of sandboxes.

One client belongs to one event loop and one process. Used from another loop or after a fork it says so, instead of sharing
sockets in ways that lose bytes.
"""

from __future__ import annotations

import asyncio
import os
import platform
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec

from sandman.aio import creating
from sandman.aio.http import Answer, Http, segment
from sandman.aio.lease import LeaseKeeper
from sandman.aio.link import Link
from sandman.aio.opening import Opening
from sandman.aio.run import AsyncRun
from sandman.aio.sandbox import AsyncSandbox
from sandman.aio.slots import Slots
from sandman.config import Limits, Settings, Timeouts, resolve
from sandman.errors import ClosedError, ForkError, LoopError
from sandman.models import RunInfo, SandboxInfo
from sandman.options import CreateOptions, refuse_unknown
from sandman.retry import RetryPolicy
from sandman.version import __version__

T = TypeVar("T")

USER_AGENT = f"sandman-python/{__version__} (Python {platform.python_version()})"


class SandboxPage(msgspec.Struct):
    items: list[SandboxInfo]
    next: str | None = None


class AsyncClient:
    """Talks to one service. Arguments left out come from SANDMAN_URL, SANDMAN_API_KEY or SANDMAN_API_KEY_FILE, or from what
    `sandman up` left for this user on this machine. Opens nothing before it is used. Raises ConfigError.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        request_timeout: float | None = None,
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.settings: Settings = resolve(
            url, api_key, timeouts=timeouts, limits=limits, retry=retry
        ).with_request_timeout(request_timeout)
        self._http = Http(self.settings, USER_AGENT)
        self._slots = Slots(self.settings.limits.channels, self.settings.limits.queue_seconds)
        self._leases = LeaseKeeper()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._closed = False

    # Sandboxes and runs

    def create(
        self,
        image: str = "host",
        *,
        run: str | None = None,
        wait: float = 600.0,
        **options: Unpack[CreateOptions],
    ) -> Opening[AsyncSandbox]:
        """Make a sandbox and wait until it is ready; await it, or enter it with `async with`, which deletes it at the end.

        All its tries are one create. wait=0 returns it as it is (queued); `wait_ready` waits then. Cancelled at any moment
        it leaves nothing. Raises ValidationError, QuotaExceeded, SandboxFailed (with a reason and whose fault it is),
        CreateTimeout after `wait` seconds (the sandbox is deleted then), TransportError.
        """
        refuse_unknown("create", options, CreateOptions, "image", "run", "wait")
        self._check_usable()
        return Opening(lambda: creating.create(self, image, run, wait, options))

    def run(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        lease_seconds: float | None = None,
    ) -> Opening[AsyncRun]:
        """Begin a run; await it, or enter it with `async with`, which ends it and all it owns. Renewed in the background."""
        self._check_usable()
        body: dict[str, Any] = {}
        if name is not None:
            body["name"] = name
        if labels is not None:
            body["labels"] = dict(labels)
        if lease_seconds is not None:
            body["lease_seconds"] = lease_seconds

        async def begin() -> AsyncRun:
            key = uuid.uuid4().hex
            info = await self._ask(
                RunInfo, "POST", "/v1/runs", json=body, headers={"idempotency-key": key}, repeatable=False
            )
            return self._held_run(info)

        return Opening(begin)

    async def attach_run(self, run_id: str) -> AsyncRun:
        """Hold a run that was made elsewhere: from now on it is renewed here too. Raises NotFound, Gone."""
        return self._held_run(await self._ask(RunInfo, "POST", f"/v1/runs/{segment(run_id)}/renew", json={}))

    def _held_run(self, info: RunInfo) -> AsyncRun:
        run = AsyncRun(self, info)
        self._leases.keep(run, info.lease_seconds)
        return run

    async def sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """A sandbox that exists, by its id: not held, renewed or deleted by this object. Raises NotFound."""
        return self._unheld(await self._ask(SandboxInfo, "GET", f"/v1/sandboxes/{segment(sandbox_id)}"))

    async def sandboxes(
        self,
        *,
        state: str | None = None,
        run: str | None = None,
        labels: Mapping[str, str] | None = None,
        page: int = 100,
    ) -> AsyncIterator[AsyncSandbox]:
        """The sandboxes of this key's tenant, page by page, as objects that hold nothing."""
        cursor: str | None = None
        while True:
            params: list[tuple[str, str | int]] = [("limit", page)]
            params += [
                (name, value) for name, value in (("state", state), ("run", run), ("cursor", cursor)) if value
            ]
            params += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
            found = await self._ask(SandboxPage, "GET", "/v1/sandboxes", params=params)
            for info in found.items:
                yield self._unheld(info)
            cursor = found.next
            if not cursor:
                return

    def direct(self) -> AsyncSandbox:
        """The one sandbox behind this URL, when it is a daemon's own and not the service's (inside a cluster)."""
        self._check_usable()
        return AsyncSandbox(self, SandboxInfo(id="direct", state="ready"), prefix="/v1", holds=False)

    def _unheld(self, info: SandboxInfo) -> AsyncSandbox:
        return AsyncSandbox(self, info, prefix=f"/v1/sandboxes/{info.id}", holds=False)

    async def stats(self) -> dict[str, Any]:
        """The service's counts: live, concurrency, queue, pacing, orphans, reclaimed."""
        return await self._ask(dict[str, Any], "GET", "/v1/stats")

    # Its own life

    async def aclose(self) -> None:
        """Close all connections and stop renewing, within Timeouts.close (2 s) whatever is open. Idempotent.

        Deletes nothing: sandboxes that are still held here are taken back by the service when their lease ends.
        """
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        # A third of the time each for what was begun (deletes of cancelled creates), the goodbyes, and the pool.
        third = self.settings.timeouts.close / 3
        tasks = self._tasks - {asyncio.current_task()}  # `async with` runs even this method as one of them
        if tasks:
            await asyncio.wait(tasks, timeout=third)
        closing = [asyncio.ensure_future(link.close()) for link in self._links]
        closing += [asyncio.ensure_future(self._leases.close())]
        _, late = await asyncio.wait(closing, timeout=third)
        for task in (*late, *tasks):
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(third):
                await self._http.close()

    async def __aenter__(self) -> Self:
        self._check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(self.aclose())

    def __del__(self) -> None:
        # Dropped without close(): what runs for it on its loop must not run on for ever. Never in a forked child.
        if getattr(self, "_closed", True) or self._loop is None or os.getpid() != self._process:
            return
        self._closed = True
        if not self._loop.is_closed():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(let_go, self._leases, list(self._links), self._http)

    # For the parts

    def _check_usable(self) -> None:
        """Raises the error that says why this object cannot be used here; binds it to the running loop at first use."""
        if os.getpid() != self._process:
            raise ForkError("this client was made before os.fork(); make a new one in the child")
        if self._closed:
            raise ClosedError("the client has been closed")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise LoopError(
                "this client belongs to another event loop; make one client per loop (or use sandman.Client)"
            )

    async def _ask(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        """A call whose answer is a value; anything else is a BadAnswer, and repeated where a repeat is safe."""
        answer = await self._call(method, path, expect=kind, **options)
        return answer.decode(kind)

    async def _call(self, method: str, path: str, **options: Any) -> Answer:
        self._check_usable()
        return await self._http.call(method, path, **options)

    def _track(self, link: Link) -> None:
        self._links.add(link)

    def _forget(self, sandbox: AsyncSandbox) -> None:
        self._links.discard(sandbox._link)

    def _drop_link(self, link: Link) -> None:
        """The sandbox object was collected, in whatever thread: close its connection."""
        self._links.discard(link)
        if self._loop is not None and not self._loop.is_closed() and link.active:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: self._in_background(link.close()))

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run what must be done although its caller goes away; close() waits for it a little. Failures are not reported."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Await it; a cancellation of the caller meanwhile does not stop it: it is finished in the background."""
        await asyncio.shield(self._in_background(work))


def let_go(leases: LeaseKeeper, links: list[Link], http: Http) -> None:
    """On the loop of a client that was dropped: close its parts in the background."""

    async def close() -> None:
        await asyncio.gather(
            leases.close(), http.close(), *(link.close() for link in links), return_exceptions=True
        )

    task = asyncio.get_running_loop().create_task(close())
    dropped.add(task)
    task.add_done_callback(dropped.discard)


dropped: set[asyncio.Task[None]] = set()
"""Keeps those tasks alive until they are done: the loop itself holds tasks weakly."""
