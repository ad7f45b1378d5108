"""One API server for the tests in here; those that kill or restart one start their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app.ledger.ledger import Ledger
from tests.conftest import Valkey
from tests.integration.api.world import World


@pytest.fixture(scope="session")
def shared_world(valkey: Valkey) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="sm-api-"))
    world = World(valkey.url, folder)
    world.start()
    yield world
    faults = [line for line in world.log.splitlines() if '"event":"unhandled"' in line or "Traceback" in line]
    world.close()
    shutil.rmtree(folder, ignore_errors=True)
    assert not faults, faults[:3]


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    yield shared_world
    for daemon in shared_world.daemons:
        daemon.kill()
    shared_world.daemons.clear()


@pytest.fixture
def own_world(valkey: Valkey) -> Iterator[Callable[..., World]]:
    """Starts servers of the test's own: `own_world(SANDMAN_LEASE_SECONDS_MIN="0.5")`."""
    started: list[World] = []

    def start(**env: str) -> World:
        folder = Path(tempfile.mkdtemp(prefix="sm-api-"))
        one = World(valkey.url, folder, env)
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.close()
        shutil.rmtree(one.folder, ignore_errors=True)


@pytest.fixture
async def ledger(world: World) -> AsyncIterator[Ledger]:
    async with world.ledger() as one:
        yield one


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth(), timeout=30) as client:
        yield client
