"""Stopping: who is answered, who is told, and how long it takes."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable

import httpx
import pytest
import websockets

from tests.integration.api.test_gateway_socket import open_socket, start
from tests.integration.api.world import World, raw_request

OwnWorld = Callable[..., World]


async def stop_in_a_thread(world: World, number: signal.Signals = signal.SIGTERM) -> float:
    return await asyncio.to_thread(world.stop, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_idle_stops_at_once(own_world: OwnWorld, number: signal.Signals) -> None:
    world = own_world()
    assert await stop_in_a_thread(world, number) < 2
    assert '"event":"api stopped"' in world.log, "the lifespan ended in order"


async def test_waiting_creates_are_answered_and_kept(own_world: OwnWorld) -> None:
    world = own_world()
    async with world.ledger() as ledger, httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http:
        waiting = [
            asyncio.create_task(http.post("/v1/sandboxes?wait=60", json={"image": "host"}, timeout=70))
            for _ in range(20)
        ]
        await asyncio.sleep(0.8)
        took = await stop_in_a_thread(world)
        answers = await asyncio.gather(*waiting)
        assert {answer.status_code for answer in answers} == {202} and took < 5
        for answer in answers:
            record = await ledger.get(answer.json()["id"])
            assert record is not None and record.claimed and record.live


async def test_sockets_are_closed_politely_and_long_commands_bounded(own_world: OwnWorld) -> None:
    world = own_world()
    async with world.ledger() as ledger:
        record, _ = await world.usable(ledger)
        socket = await open_socket(world, record.id)
        await start(socket, 1, command="sleep 60")
        await socket.recv()
        short = asyncio.create_task(_exec(world, record.id, "sleep 1; echo done"))
        long = asyncio.create_task(_exec(world, record.id, "sleep 60"))
        await asyncio.sleep(0.3)
        took = await stop_in_a_thread(world)
        assert took < 4.5
        with pytest.raises(websockets.ConnectionClosed) as closed:
            while True:
                await asyncio.wait_for(socket.recv(), 5)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        assert (await short) == (200, "done\n"), "a short request is finished"
        assert (await long)[0] == 503, "a long one is told to come back for its result"
    assert '"event":"api stopped"' in world.log


async def test_an_endless_download_does_not_hold_the_stop(own_world: OwnWorld) -> None:
    world = own_world()
    async with world.ledger() as ledger:
        record, daemon = await world.usable(ledger)
        with (daemon.home / "endless").open("wb") as file:
            file.truncate(5 * 1024**3)
        with raw_request(world, "GET", f"/v1/sandboxes/{record.id}/files?path=endless") as client:
            client.recv(1000)
            # This caller does not even read: nothing but the kill ends its connection.
            assert await stop_in_a_thread(world) < 6


async def test_new_requests_are_told_to_come_back(own_world: OwnWorld) -> None:
    world = own_world()
    async with world.ledger() as ledger:
        record, _ = await world.usable(ledger)
        running = asyncio.create_task(_exec(world, record.id, "sleep 2"))
        await asyncio.sleep(0.3)
        stopping = asyncio.create_task(stop_in_a_thread(world))
        await asyncio.sleep(0.5)
        async with httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http:
            answer = await http.get("/v1/stats")
            assert answer.status_code == 503 and answer.json()["type"].endswith("shutting-down")
            assert answer.json()["retryable"] is True
            ready = await http.get("/health/ready")
            assert ready.status_code == 503 and ready.json()["checks"]["api"] == "shutting down"
            assert (await http.get("/health/live")).status_code == 200
        await stopping
        await running


async def test_the_ledger_goes_away_and_comes_back(own_world: OwnWorld) -> None:
    """B127: typed 503 while Redis is away, and health says so; no restart is needed afterwards."""
    world = own_world()
    world.stop()
    world.redis_url = f"unix://{world.folder}/nosuch.sock"
    world.start()
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth(), timeout=20) as http:
        for method, path in (("GET", "/v1/stats"), ("POST", "/v1/sandboxes?wait=1"), ("GET", "/v1/runs")):
            started = time.monotonic()
            answer = await http.request(method, path, json={"image": "host"} if method == "POST" else None)
            document = answer.json()
            assert answer.status_code == 503 and document["type"].endswith("ledger-unavailable"), answer.text
            assert document["retryable"] and document["cause"] == "infra" and time.monotonic() - started < 10
        ready = await http.get("/health/ready")
        assert ready.status_code == 503 and ready.json()["checks"]["ledger"] == "unreachable"
        assert (await http.get("/health/live")).status_code == 200
    assert "unhandled" not in world.log


async def _exec(world: World, sandbox_id: str, command: str) -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth(), timeout=70) as http:
        try:
            answer = await http.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"command": command})
        except httpx.HTTPError:
            return 0, ""
    return answer.status_code, json.loads(answer.text).get("stdout", "")
