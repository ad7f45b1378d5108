"""SIGKILL, one at a time in the middle of a burst, of API, worker, loops and Valkey.

After each kill: every accepted create is answered, none twice, each sandbox runs a command, and nothing is left when they are
given back. SANDMAN_TEST_KILL_ROUNDS=20 is the full measure; CI kills each process once.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable

import pytest

from tests.burst import burst, create_until_answered, delete_all, http_client, live_count, request, run
from tests.service import Service, eventually_clean

VICTIMS = ("app", "worker", "loops", "valkey")
ROUNDS = int(os.environ.get("SANDMAN_TEST_KILL_ROUNDS", len(VICTIMS)))
SEED = int(os.environ.get("SANDMAN_TEST_SEED", "1"))
CREATES = 24
CLEAN_SECONDS = 20.0


async def kill_soon(service: Service, victim: str, delay: float) -> None:
    await asyncio.sleep(delay)
    os.kill(service.children()[victim], signal.SIGKILL)


@pytest.mark.slow
async def test_kill_rounds(own_service: Callable[..., Service]) -> None:
    service = own_service()
    dice = random.Random(SEED)
    # Each once first, so that a short run sees them all.
    order = [*VICTIMS, *dice.choices(VICTIMS, k=max(0, ROUNDS - len(VICTIMS)))][:ROUNDS]
    for number, victim in enumerate(order):
        delay = dice.uniform(0.02, 1.2)
        print(f"round {number}: {victim} after {delay:.2f} s", flush=True)
        await one_round(service, victim, delay)


async def one_round(service: Service, victim: str, delay: float) -> None:
    async with http_client(service) as http:
        before = service.children()[victim]
        answered, _ = await asyncio.gather(burst(http, CREATES), kill_soon(service, victim, delay))
        await asyncio.to_thread(service.wait_child, victim, other_than=before)
        ids = [one.id for one in answered]
        assert len(set(ids)) == CREATES, "a sandbox was handed out twice"
        assert all(one.record["state"] == "ready" for one in answered)

        again = await asyncio.gather(*(create_until_answered(http, one.key) for one in answered))
        assert [one.id for one in again] == ids, "a repeated create made another sandbox"
        assert await live_count(http) == CREATES, "a create was carried out twice"

        results = await asyncio.gather(*(run(http, sandbox, f"echo {sandbox}") for sandbox in ids))
        assert [result["stdout"] for result in results] == [f"{sandbox}\n" for sandbox in ids]

        await delete_all(http, ids)
        left = await asyncio.to_thread(eventually_clean, service.sandbox_leftovers, CLEAN_SECONDS)
        assert not left, f"after killing {victim}: {left}"
        assert await live_count(http) == 0
        gone = [(await request(http, "GET", f"/v1/sandboxes/{sandbox}")).json() for sandbox in ids]
        assert {(record["state"], record["reclaim"]) for record in gone} == {("deleted", "deleted")}
