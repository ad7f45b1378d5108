"""Every way `sandman up` can end leaves nothing: Ctrl-C, SIGTERM, a second Ctrl-C, SIGKILL; and the next start cleans up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from tests.burst import burst, http_client, run
from tests.service import Service, eventually_clean

ALIVE = int(os.environ.get("SANDMAN_TEST_ALIVE", "40"))
STOP_SECONDS = 10.0
LIFE = "(while :; do sleep 1; done) & setsid sh -c 'sleep 1000' & echo started"


async def fill(service: Service, count: int) -> list[str]:
    """Sandboxes with background work in them, daemonised work too."""
    async with http_client(service) as http:
        ids = [one.id for one in await burst(http, count)]
        await asyncio.gather(*(run(http, sandbox, LIFE, background=True) for sandbox in ids[:10]))
    assert len(service.sandbox_processes()) >= count
    return ids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_stop_takes_back_everything_in_time(
    own_service: Callable[..., Service], number: signal.Signals
) -> None:
    service = own_service()
    ids = await fill(service, ALIVE)
    took = service.stop(number=number)
    print(f"stopped with {ALIVE} alive in {took:.1f} s")
    assert took < STOP_SECONDS, service.output()[-4000:]
    assert service.process.returncode == 0
    left = service.leftovers()
    assert not left, left
    assert "every sandbox is taken back" in service.output()

    # The next start still knows them, and why they went.
    after = own_service(data_dir=service.data_dir)
    with after.http() as http:
        records = [http.get(f"/v1/sandboxes/{sandbox}").json() for sandbox in ids]
    assert {(record["state"], record["reclaim"]) for record in records} == {("deleted", "shutdown")}


async def test_a_second_ctrl_c_leaves_no_process(own_service: Callable[..., Service]) -> None:
    service = own_service()
    await fill(service, 10)
    service.process.send_signal(signal.SIGINT)
    await asyncio.sleep(0.15)
    took = service.stop(number=signal.SIGINT)
    assert took < 3
    assert service.sandbox_processes() == []
    assert service.service_processes() == []


async def test_sigkill_of_the_supervisor(own_service: Callable[..., Service]) -> None:
    service = own_service()
    ids = await fill(service, 20)
    service.kill()
    left = eventually_clean(lambda: service.service_processes() + service.sandbox_processes(), 3.0)
    assert left == [], left

    after = own_service(data_dir=service.data_dir)
    assert after.key == service.key
    left_things = eventually_clean(after.sandbox_leftovers, 15.0)
    assert not left_things, left_things
    with after.http() as http:
        records = [http.get(f"/v1/sandboxes/{sandbox}").json() for sandbox in ids]
        assert {(record["state"], record["reason"]) for record in records} == {("failed", "node_lost")}, (
            records[0]
        )
        assert all(record["cause"] == "infra" for record in records)


async def test_sigkill_during_a_burst_and_a_start_at_once(own_service: Callable[..., Service]) -> None:
    """Killed in the middle of creating, started again without a pause: the old half-made sandboxes go, new ones come."""
    service = own_service()
    async with http_client(service) as http:
        creates = asyncio.create_task(burst(http, 20))
        await asyncio.sleep(0.4)
        service.kill()
        creates.cancel()
        await asyncio.gather(creates, return_exceptions=True)
    after = own_service(data_dir=service.data_dir)
    async with http_client(after) as http:
        assert len(await burst(http, 5)) == 5
    assert after.stop() < STOP_SECONDS
    left = after.leftovers()
    assert not left, left


def test_children_that_die_are_started_again(own_service: Callable[..., Service]) -> None:
    service = own_service()
    for name in ("valkey", "loops", "worker", "app"):
        before = service.children()[name]
        os.kill(before, signal.SIGKILL)
        service.wait_child(name, other_than=before)
    service.wait_health()
    assert service.output().count("was killed by SIGKILL") == 4
