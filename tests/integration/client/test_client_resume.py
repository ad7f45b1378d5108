"""Broken connections: the exec goes on, and its output is joined without a lost or doubled byte."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

import sandman
from sandman import Gap, Output, Timeouts
from tests.fakes.proxy import Fault
from tests.integration.client.conftest import Place

WHOLE = "".join(f"{number}\n" for number in range(1, 200_001))


@pytest.mark.parametrize("seed", [1, 2])
async def test_b051_twenty_cuts_at_random_bytes_lose_and_double_nothing(place: Place, seed: int) -> None:
    rng = random.Random(seed)
    with place.proxy() as proxy:
        async with place.client() as steady, place.sandbox(steady) as made, place.client(proxy.url) as client:
            sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
            await sandbox.exec("true")
            cuts = [rng.randrange(300, 120_000) for _ in range(20)]
            proxy.faults = lambda number: Fault(cut_after=cuts.pop()) if cuts else Fault()
            proxy.cut_all()
            text, exits, gaps = "", 0, []
            async for event in sandbox.stream(f"seq 1 200000; exit {seed}"):
                match event:
                    case Output(data=data):
                        text += data
                    case Gap():
                        gaps.append(event)
                    case _:
                        exits += 1
            assert text == WHOLE and exits == 1 and not gaps
            assert not cuts and proxy.seen.cuts == 20
            ran = [record for record in await made.execs() if record.command == f"seq 1 200000; exit {seed}"]
            assert len(ran) == 1 and ran[0].exit_code == seed


async def test_b051_a_command_that_ends_during_the_outage_still_tells_its_end(place: Place) -> None:
    with place.proxy() as proxy:
        async with place.client() as steady, place.sandbox(steady) as made, place.client(proxy.url) as client:
            sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
            handle = await sandbox.start("echo before; sleep 1; echo after; exit 9")
            down_until = time.monotonic() + 2
            proxy.faults = lambda number: Fault(refuse=time.monotonic() < down_until)
            proxy.cut_all()
            result = await asyncio.wait_for(handle.wait(), 20)
            assert (result.stdout, result.exit_code) == ("before\nafter\n", 9)


async def test_b051_stdin_survives_cuts_too(place: Place) -> None:
    rng = random.Random(3)
    data = rng.randbytes(3_000_000)
    with place.proxy() as proxy:
        async with place.client() as steady, place.sandbox(steady) as made, place.client(proxy.url) as client:
            sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
            cuts = [rng.randrange(1000, 400_000) for _ in range(8)]
            proxy.faults = lambda number: Fault(cut_upstream_after=cuts.pop()) if cuts else Fault()
            result = await sandbox.exec("cat", stdin=data, encoding=None)
            assert result.stdout == data and result.stdout_bytes == len(data)
            assert proxy.seen.cuts == 8


async def test_a_silent_connection_counts_as_broken(place: Place) -> None:
    timeouts = Timeouts(silence=1.0)
    with place.proxy() as proxy:
        async with (
            place.client() as steady,
            place.sandbox(steady) as made,
            place.client(proxy.url, timeouts=timeouts) as client,
        ):
            sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
            first = proxy.seen.connections
            # The pings of a quiet connection keep it; one that stalls is made anew.
            proxy.faults = lambda number: Fault(stall_after=300) if number == first else Fault()
            result = await asyncio.wait_for(sandbox.exec("sleep 3; echo done"), 30)
            assert result.stdout == "done\n"
            assert proxy.seen.connections == first + 2


async def test_an_outage_without_end_is_told_in_bounded_time_with_the_exec_to_come_back_to(
    place: Place,
) -> None:
    with place.proxy() as proxy:
        async with place.client() as steady, place.sandbox(steady) as made:
            timeouts = Timeouts(resume=1.5)
            async with place.client(proxy.url, timeouts=timeouts) as client:
                sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
                handle = await sandbox.start("sleep 2; echo end")
                proxy.faults = lambda number: Fault(refuse=True)
                await asyncio.sleep(1.1)
                proxy.cut_all()
                started = time.monotonic()
                # Not a ConnectError: that would say that nothing had been begun.
                with pytest.raises(sandman.ConnectionLost):
                    await handle.wait()
                assert time.monotonic() - started < 5
                assert (await (await made.attach(handle.id)).wait()).stdout == "end\n"


@pytest.mark.parametrize("place", ["service"], indirect=True)
async def test_a_sandbox_that_is_deleted_under_a_command_is_lost_with_a_reason(place: Place) -> None:
    async with place.client() as client, client.create() as sandbox:
        handle = await sandbox.start("sleep 100")
        async with place.client() as other:
            await (await other.sandbox(sandbox.id)).delete()
        with pytest.raises(sandman.SandboxLost) as caught:
            await asyncio.wait_for(handle.wait(), 20)
        assert caught.value.sandbox == sandbox.id and caught.value.reason == "deleted"
        with pytest.raises(sandman.SandboxLost):
            await sandbox.exec("true")
