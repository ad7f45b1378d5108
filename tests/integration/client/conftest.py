"""Where the client's tests run: on the bare daemon and through the whole service, with the same tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import sandman
from tests.fakes.bare_daemon import BareDaemon, start_daemon
from tests.fakes.proxy import FaultProxy
from tests.service import Service


@dataclass(frozen=True)
class Place:
    kind: str
    url: str
    key: str

    def client(self, url: str | None = None, **options: Any) -> sandman.AsyncClient:
        return sandman.AsyncClient(url or self.url, self.key, **options)

    def blocking_client(self, url: str | None = None, **options: Any) -> sandman.Client:
        return sandman.Client(url or self.url, self.key, **options)

    def proxy(self) -> FaultProxy:
        parts = urlsplit(self.url)
        assert parts.hostname and parts.port
        return FaultProxy(parts.hostname, parts.port)

    @asynccontextmanager
    async def sandbox(self, client: sandman.AsyncClient) -> AsyncIterator[sandman.AsyncSandbox]:
        if self.kind == "daemon":
            yield client.direct()
        else:
            async with client.create() as sandbox:
                yield sandbox

    @contextmanager
    def blocking_sandbox(self, client: sandman.Client) -> Iterator[sandman.Sandbox]:
        if self.kind == "daemon":
            yield client.direct()
        else:
            with client.create() as sandbox:
                yield sandbox


@pytest.fixture(scope="session")
def bare_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareDaemon]:
    daemon = start_daemon(tmp_path_factory.mktemp("bare"))
    yield daemon
    daemon.stop()


@pytest.fixture(params=["daemon", "service"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "daemon":
        daemon: BareDaemon = request.getfixturevalue("bare_daemon")
        return Place("daemon", daemon.url, daemon.token)
    service: Service = request.getfixturevalue("service")
    return Place("service", service.url, service.key)


@pytest.fixture
async def sandbox(place: Place) -> AsyncIterator[sandman.AsyncSandbox]:
    async with place.client() as client, place.sandbox(client) as opened:
        yield opened


@pytest.fixture
def blocking_sandbox(place: Place) -> Iterator[sandman.Sandbox]:
    with place.blocking_client() as client, place.blocking_sandbox(client) as opened:
        yield opened


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    folder.mkdir()
    return folder
