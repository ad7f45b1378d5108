"""A run, blocking: the contracts are those of `sandman.aio.run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from sandman.aio.run import AsyncRun
from sandman.models import RunInfo
from sandman.options import CreateOptions
from sandman.sync.sandbox import Sandbox

if TYPE_CHECKING:
    from sandman.sync.client import Client


class Run:
    """Made by `client.run(...)`. Leaving `with` ends the run and everything that it owns."""

    def __init__(self, client: Client, inner: AsyncRun) -> None:
        self.client = client
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def info(self) -> RunInfo:
        return self._inner.info

    def create(
        self, image: str = "host", *, wait: float = 600.0, **options: Unpack[CreateOptions]
    ) -> Sandbox:
        """Like `client.create`, owned by this run: the run's lease holds it."""
        self._inner._check_usable()
        return self.client.create(image, run=self.id, wait=wait, **options)

    def sandboxes(
        self, *, state: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Iterator[Sandbox]:
        return self.client.sandboxes(run=self.id, state=state, labels=labels)

    def report(self) -> dict[str, Any]:
        """What the run has cost so far and how long it waited; readable after its end too."""
        return self.client._portal.call(self._inner.report)

    def refresh(self) -> RunInfo:
        return self.client._portal.call(self._inner.refresh)

    def renew(self) -> RunInfo:
        return self.client._portal.call(self._inner.renew)

    def delete(self) -> None:
        """End the run: the service takes back all it owns. Idempotent."""
        self.client._portal.call(self._inner.delete)

    def detach(self) -> str:
        """Stop renewing and keep the run for the rest of its lease; its id."""
        return self.client._portal.call(self._inner.detach)

    def close(self) -> None:
        if self.client._portal.alive:
            self.client._portal.call(self._inner.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncRun", "Run")
