"""The blocking client: the asynchronous one on a background loop (see `sandman.sync.portal` for threads, forks and Ctrl-C)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from sandman.aio.client import AsyncClient
from sandman.aio.opening import Opening
from sandman.aio.run import AsyncRun
from sandman.aio.sandbox import AsyncSandbox
from sandman.config import Limits, Settings, Timeouts
from sandman.options import CreateOptions
from sandman.retry import RetryPolicy
from sandman.sync.portal import Portal
from sandman.sync.run import Run
from sandman.sync.sandbox import Sandbox

T = TypeVar("T")


class Client:
    """Talks to one service; may be used by many threads. Arguments left out come from SANDMAN_URL, SANDMAN_API_KEY or
    SANDMAN_API_KEY_FILE, or from what `sandman up` left for this user on this machine. Raises ConfigError.
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
        self._inner = AsyncClient(
            url, api_key, request_timeout=request_timeout, timeouts=timeouts, limits=limits, retry=retry
        )
        self._portal = Portal.shared()
        self._portal.at_exit(self._inner)

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    def create(
        self,
        image: str = "host",
        *,
        run: str | None = None,
        wait: float = 600.0,
        **options: Unpack[CreateOptions],
    ) -> Sandbox:
        """Make a sandbox and wait until it is ready; use it with `with`, which deletes it at the end.

        All its tries are one create. wait=0 returns it as it is (queued); `wait_ready` waits then. Ctrl-C at any moment
        leaves nothing. Raises ValidationError, QuotaExceeded, SandboxFailed (with a reason and whose fault it is),
        CreateTimeout after `wait` seconds (the sandbox is deleted then), TransportError.
        """

        async def make() -> AsyncSandbox:
            return await self._inner.create(image, run=run, wait=wait, **options)

        return Sandbox(self, self._portal.call(make))

    def run(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        lease_seconds: float | None = None,
    ) -> Run:
        """Begin a run; `with` ends it and all it owns. Renewed in the background."""

        async def begin() -> AsyncRun:
            opening: Opening[AsyncRun] = self._inner.run(name, labels=labels, lease_seconds=lease_seconds)
            return await opening

        return Run(self, self._portal.call(begin))

    def attach_run(self, run_id: str) -> Run:
        """Hold a run that was made elsewhere: from now on it is renewed here too. Raises NotFound, Gone."""
        return Run(self, self._portal.call(self._inner.attach_run, run_id))

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox that exists, by its id: not held, renewed or deleted by this object. Raises NotFound."""
        return Sandbox(self, self._portal.call(self._inner.sandbox, sandbox_id))

    def sandboxes(
        self, *, state: str | None = None, run: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Iterator[Sandbox]:
        """The sandboxes of this key's tenant, page by page, as objects that hold nothing."""
        for inner in self._iterate(self._inner.sandboxes(state=state, run=run, labels=labels)):
            yield Sandbox(self, inner)

    def direct(self) -> Sandbox:
        """The one sandbox behind this URL, when it is a daemon's own and not the service's (inside a cluster)."""
        return Sandbox(self, self._inner.direct())

    def stats(self) -> dict[str, Any]:
        """The service's counts: live, concurrency, queue, pacing, orphans, reclaimed."""
        return self._portal.call(self._inner.stats)

    def close(self) -> None:
        """Close all connections and stop renewing, within 2 s whatever is open. Idempotent; nothing in a forked child.

        Deletes nothing: sandboxes that are still held here are taken back by the service when their lease ends.
        """
        if self._portal.alive:
            self._portal.call(self._inner.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _iterate(self, inner: AsyncIterator[T]) -> Iterator[T]:
        end: Any = object()

        async def step() -> Any:
            return await anext(inner, end)

        try:
            while (item := self._portal.call(step)) is not end:
                yield item
        finally:
            close = getattr(inner, "aclose", None)
            if close is not None and self._portal.alive:
                self._portal.call(close)
