"""Whoever makes or removes a sandbox may be killed at any line; the supervisor may be killed at any time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.ledger.model import new_sandbox_id
from tests.integration.local_world import (
    TOKEN_SHA256,
    Client,
    Installation,
    Supervised,
    eventually,
    new_installation,
    provider_at,
    record,
)
from worker.providers.local.folders import folders_of
from worker.providers.local.options import read_options
from worker.providers.local.provider import LocalProvider
from worker.providers.local.state import load

CREATE = """
import asyncio, sys
from tests.integration.local_world import record, TOKEN_SHA256
from app.ledger.settings import get_settings
from worker.providers.local.provider import LocalProvider
async def main():
    provider = LocalProvider(get_settings())
    await provider.start()
    await provider._base_for("host")
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        await asyncio.gather(*(provider.create(record(id=one), TOKEN_SHA256) for one in sys.argv[3].split(",")))
        if sys.argv[1] == "churn":
            await asyncio.gather(*(provider.delete(one) for one in sys.argv[3].split(",")))
    print("done", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    own = new_installation()
    yield own
    own.remove()


async def test_a_sandbox_outlives_its_maker_and_dies_with_the_supervisor(installation: Installation) -> None:
    async with provider_at(installation) as provider:
        asked = new_sandbox_id()
        supervised = Supervised(installation, CREATE, "create", "1", asked)
        try:
            assert supervised.line() == "ready" and supervised.line() == "done"
            state = load(folders_of(read_options(installation.settings())), asked)
            assert state is not None
            parent = Path(f"/proc/{state.pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
            assert int(parent) == supervised.process.pid
            client = Client(state.address)
            client.out("sleep 300 >/dev/null 2>&1 & echo $! > /root/pid")
            os.kill(supervised.child, signal.SIGKILL)
            await asyncio.sleep(0.3)
            assert client.out("kill -0 $(cat /root/pid) && echo alive") == "alive\n"
            assert (await provider.create(record(id=asked), TOKEN_SHA256)).address == state.address
            assert client.out("kill -0 $(cat /root/pid) && echo alive") == "alive\n"
        finally:
            supervised.end()
        # The kernel does it: nothing of ours runs that could.
        assert eventually(lambda: not Path(f"/proc/{state.init_pid}").exists(), 3)
        assert eventually(lambda: not Path(f"/proc/{state.pid}").exists(), 3)
        found = await provider.list()
        assert [(o.id, o.phase) for o in found] == [(asked, "gone")]


ROUNDS = int(os.environ.get("SANDMAN_TEST_KILL_ROUNDS", "30"))


@pytest.mark.parametrize("what", ["create", "churn"])
async def test_killed_at_any_line_nothing_is_left(installation: Installation, what: str) -> None:
    """A maker is killed at a random moment; then half of its sandboxes are asked for again, by another, and all are deleted."""
    dice = random.Random(20261201)
    async with provider_at(installation) as provider:
        for _ in range(ROUNDS):
            ids = [new_sandbox_id() for _ in range(4)]
            supervised = Supervised(installation, CREATE, what, "1", ",".join(ids))
            try:
                assert supervised.line() == "ready"
                await asyncio.sleep(dice.uniform(0.0, 0.12))
                os.kill(supervised.child, signal.SIGKILL)
                if what == "create":
                    for one in ids[:2]:
                        placement = await provider.create(record(id=one), TOKEN_SHA256)
                        assert Client(placement.address).out("echo one") == "one\n"
                    assert len([o for o in await provider.list() if o.id in ids[:2]]) == 2
                    assert _outer_processes(installation, ids[0]) == 1
                for found in await provider.list():
                    await provider.delete(found.id)
                assert eventually(lambda: not _left(installation), 5), installation.leftovers()
                await provider._run(provider._start().sweep)
            finally:
                supervised.end()


def _left(installation: Installation) -> list[str]:
    # Lock files and trash of a killed process harm nobody and are removed at the next start or sweep.
    return [
        one
        for one in installation.leftovers()
        if "/locks/" not in one and "/trash/" not in one and "-c" not in one.split()
    ]


def _outer_processes(installation: Installation, sandbox_id: str) -> int:
    mark = f"{installation.base}/storage/sandboxes/{sandbox_id}/".encode()
    count = 0
    for process in Path("/proc").iterdir():
        try:
            # bubblewrap has two processes until the inner one becomes the daemon; the outer one is not first in its namespace.
            if (
                mark in (process / "cmdline").read_bytes()
                and "NSpid:\t" + process.name + "\n" in (process / "status").read_text()
            ):
                count += 1
        except OSError:
            continue
    return count


async def test_a_delete_that_was_killed_is_finished_by_the_next(installation: Installation) -> None:
    dice = random.Random(7)
    delete = CREATE.replace('print("ready", flush=True)', "").replace(
        'print("done", flush=True)',
        'print("ready", flush=True); await asyncio.gather(*(provider.delete(one) for one in sys.argv[3].split(",")))',
    )
    async with provider_at(installation) as provider:
        for _ in range(max(3, ROUNDS // 3)):
            ids = [new_sandbox_id() for _ in range(4)]
            supervised = Supervised(installation, delete, "create", "1", ",".join(ids))
            try:
                assert supervised.line() == "ready"
                await asyncio.sleep(dice.uniform(0.0, 0.03))
                os.kill(supervised.child, signal.SIGKILL)
                for one in ids:
                    await provider.delete(one)
                assert await provider.list() == []
                assert eventually(lambda: not _left(installation), 5), installation.leftovers()
                await provider._run(provider._start().sweep)
            finally:
                supervised.end()


async def test_an_idle_watch_costs_next_to_nothing(installation: Installation) -> None:
    async with provider_at(installation) as provider:
        await asyncio.gather(*(provider.create(record(), TOKEN_SHA256) for _ in range(20)))

        async def watch() -> None:
            async for _ in provider.watch():
                pass

        watching = asyncio.create_task(watch())
        await asyncio.sleep(1)
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(4)
        share = (time.process_time() - before) / (time.monotonic() - began)
        watching.cancel()
        assert share < 0.01, share


async def test_a_supervisor_killed_in_a_burst_leaves_nothing_alive(installation: Installation) -> None:
    dice = random.Random(3)
    async with provider_at(installation) as provider:
        for _ in range(max(3, ROUNDS // 6)):
            ids = [new_sandbox_id() for _ in range(8)]
            supervised = Supervised(installation, CREATE, "create", "1", ",".join(ids))
            try:
                assert supervised.line() == "ready"
                await asyncio.sleep(dice.uniform(0.0, 0.2))
            finally:
                supervised.end()
            await asyncio.sleep(0.3)
            assert [o for o in await provider.list() if o.phase == "running"] == []
            for found in await provider.list():
                await provider.delete(found.id)
            assert eventually(lambda: not _left(installation), 5), installation.leftovers()
            await provider._run(provider._start().sweep)


def test_the_provider_is_what_the_worker_asks_for() -> None:
    from worker.providers.base import Provider

    def takes(provider: Provider) -> str:
        return provider.name

    own = new_installation()
    assert takes(LocalProvider(own.settings())) == "local"
    own.remove()
