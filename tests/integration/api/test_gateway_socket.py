"""WS …/connect and …/hold through the service: frames unchanged, both ways slow when one side is, typed ends."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from app.ledger.ledger import Ledger
from app.ledger.model import Reason, Record
from tests.integration.api.test_gateway_files import daemon_sockets
from tests.integration.api.world import Daemon, World

MIB = 1024**2
Usable = tuple[Record, Daemon]


@pytest.fixture
async def usable(world: World, ledger: Ledger) -> Usable:
    return await world.usable(ledger)


def open_socket(world: World, sandbox_id: str, **options: Any) -> connect:
    return connect(
        f"ws://127.0.0.1:{world.port}/v1/sandboxes/{sandbox_id}/connect",
        additional_headers=world.auth(),
        subprotocols=[websockets.Subprotocol("sandman.v1")],
        compression=None,
        **options,
    )


async def collect(socket: ClientConnection, channel: int) -> tuple[bytes, bytes, dict[str, Any]]:
    """stdout, stderr and the exit message of a channel; gives the daemon credit for all of it."""
    output = {1: bytearray(), 2: bytearray()}
    while True:
        message = await asyncio.wait_for(socket.recv(), 20)
        if isinstance(message, bytes):
            kind, ch, offset = struct.unpack(">BIQ", message[:13])
            assert ch == channel and offset == len(output[kind])
            assert len(message) <= 256 * 1024
            output[kind] += message[13:]
            await socket.send(json.dumps({"op": "credit", "ch": channel, "bytes": len(message) - 13}))
            continue
        control = json.loads(message)
        if control.get("op") in ("exit", "error") and control.get("ch") == channel:
            return bytes(output[1]), bytes(output[2]), control


async def start(socket: ClientConnection, channel: int, **request: Any) -> None:
    await socket.send(json.dumps({"op": "start", "ch": channel, **request}))


async def test_output_and_exit(world: World, usable: Usable) -> None:
    async with open_socket(world, usable[0].id) as socket:
        assert socket.subprotocol == "sandman.v1"
        await start(socket, 1, command="echo out; echo err >&2; exit 3")
        out, err, end = await collect(socket, 1)
    assert (out, err, end["exit_code"]) == (b"out\n", b"err\n", 3)


async def test_b048_five_megabytes_both_ways(world: World, usable: Usable) -> None:
    content = bytes(range(256)) * (5 * MIB // 256)
    async with open_socket(world, usable[0].id) as socket:
        await start(socket, 7, command="cat", stdin="stream")
        credit = asyncio.Event()
        left = 0

        async def feed() -> None:
            nonlocal left
            sent = 0
            while sent < len(content):
                while left <= 0:
                    credit.clear()
                    await credit.wait()
                piece = content[sent : sent + min(left, 64 * 1024)]
                await socket.send(struct.pack(">BI", 0, 7) + piece)
                sent += len(piece)
                left -= len(piece)
            await socket.send(json.dumps({"op": "eof", "ch": 7}))

        feeding = asyncio.create_task(feed())
        received = bytearray()
        while True:
            message = await asyncio.wait_for(socket.recv(), 20)
            if isinstance(message, bytes):
                received += message[13:]
                await socket.send(json.dumps({"op": "credit", "ch": 7, "bytes": len(message) - 13}))
                continue
            control = json.loads(message)
            if control["op"] == "started":
                left += control["stdin_credit"]
                credit.set()
            elif control["op"] == "stdin_credit":
                left += control["bytes"]
                credit.set()
            elif control["op"] == "exit":
                break
        await feeding
    assert bytes(received) == content


async def test_b048_a_frame_that_is_too_large_is_told(world: World, usable: Usable) -> None:
    async with open_socket(world, usable[0].id) as socket:
        await socket.send(struct.pack(">BI", 0, 9) + b"x" * MIB)
        error = json.loads(await asyncio.wait_for(socket.recv(), 5))
        assert (error["op"], error["ch"]) == ("error", 9)
        assert error["type"].startswith("urn:sandman:problem:")
        await start(socket, 1, command="echo still fine")
        assert (await collect(socket, 1))[0] == b"still fine\n"


async def test_a_slow_reader_costs_no_memory(world: World, usable: Usable) -> None:
    before = world.resident_bytes()
    async with open_socket(world, usable[0].id, max_queue=1) as socket:
        await start(socket, 1, command="head -c 300000000 /dev/zero", credit=10**9)
        await asyncio.sleep(2)
        assert world.resident_bytes() - before < 64 * MIB


async def test_b054_dropped_sockets_leave_nothing(world: World, usable: Usable) -> None:
    """Sockets of silent commands whose TCP connection is dropped: descriptors come back to where they were."""
    record, daemon = usable
    async with open_socket(world, record.id) as socket:
        await start(socket, 1, command="true")
        await collect(socket, 1)
    await asyncio.sleep(0.3)
    before = world.open_files(), daemon_sockets(daemon)
    for round_ in range(5):
        sockets = [await open_socket(world, record.id) for _ in range(20)]
        for number, socket in enumerate(sockets):
            await start(socket, 1, command="sleep 2")
            if number % 2:
                socket.transport.abort()
            else:
                socket.transport.close()
        del round_
    for _ in range(50):
        await asyncio.sleep(0.1)
        after = world.open_files(), daemon_sockets(daemon)
        if after[0] <= before[0] + 4 and after[1] <= before[1] + 1:
            break
    assert after[0] <= before[0] + 4 and after[1] <= before[1] + 1
    assert "unhandled" not in world.log and "Traceback" not in world.log


@pytest.mark.parametrize(
    ("upto", "tenant", "status", "slug"),
    [
        ("creating", "acme", 409, "not-ready"),
        ("failed", "acme", 410, "gone"),
        ("ready", "other", 404, "not-found"),
    ],
)
async def test_refusals_come_before_the_upgrade(
    world: World, ledger: Ledger, upto: str, tenant: str, status: int, slug: str
) -> None:
    record = await world.sandbox(ledger, upto=upto, tenant=tenant)
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with open_socket(world, record.id):
            pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"")["type"].endswith(slug)


async def test_a_socket_to_nowhere_is_a_problem(world: World) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with connect(f"ws://127.0.0.1:{world.port}/v1/nowhere", additional_headers=world.auth()):
            pass
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body or b"")["type"].endswith("not-found")


async def test_a_lost_daemon_is_told(world: World, ledger: Ledger, usable: Usable) -> None:
    record, daemon = usable
    async with open_socket(world, record.id) as socket:
        await start(socket, 1, command="sleep 60")
        await asyncio.sleep(0.3)
        await ledger.mark_failed(record.id, Reason.OOM_KILLED, "memory limit")
        daemon.kill()
        error: dict[str, Any] = {}
        with pytest.raises(websockets.ConnectionClosed) as closed:
            while True:
                message = json.loads(await asyncio.wait_for(socket.recv(), 10))
                if message["op"] == "error":
                    error = message
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
    assert error["type"] == "urn:sandman:problem:sandbox-lost"
    assert (error["cause"], error["reason"]) == ("task", "oom_killed")


async def test_a_lost_daemon_while_the_ledger_says_ready(world: World, usable: Usable) -> None:
    record, daemon = usable
    async with open_socket(world, record.id) as socket:
        await start(socket, 1, command="sleep 60")
        await asyncio.sleep(0.2)
        daemon.kill()
        types = []
        with pytest.raises(websockets.ConnectionClosed):
            while True:
                types.append(json.loads(await asyncio.wait_for(socket.recv(), 10)).get("type"))
    assert "urn:sandman:problem:daemon-lost" in types
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with open_socket(world, record.id):
            pass
    assert refused.value.response.status_code == 502


async def test_an_open_socket_holds_the_lease(world: World, ledger: Ledger) -> None:
    record, _ = await world.usable(ledger, lease_seconds=1.5)
    async with open_socket(world, record.id) as socket:
        await start(socket, 1, command="sleep 4; echo held")
        for _ in range(40):
            await asyncio.sleep(0.1)
            await ledger.expire(100)
        assert (await collect(socket, 1))[0] == b"held\n"


async def test_b147_a_get_without_an_upgrade_is_a_problem(http: httpx.AsyncClient, usable: Usable) -> None:
    answer = await http.get(f"/v1/sandboxes/{usable[0].id}/connect")
    assert answer.status_code in (404, 405, 426)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_hold_keeps_a_run_and_its_end_is_told(
    world: World, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    run = (await http.post("/v1/runs", json={"lease_seconds": 1.5})).json()
    url = f"ws://127.0.0.1:{world.port}/v1/runs/{run['id']}/hold"
    async with connect(url, additional_headers=world.auth(), compression=None) as socket:
        for _ in range(40):
            await asyncio.sleep(0.1)
            await ledger.expire(100)
        assert (await http.get(f"/v1/runs/{run['id']}")).json()["state"] == "open"
        await http.delete(f"/v1/runs/{run['id']}")
        ops = []
        with pytest.raises(websockets.ConnectionClosed) as closed:
            while True:
                ops.append(json.loads(await asyncio.wait_for(socket.recv(), 5))["op"])
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000
    assert ops[0] == "held" and ops[-1] == "ended"
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with connect(url, additional_headers=world.auth(), compression=None):
            pass
    assert refused.value.response.status_code == 410


async def test_a_run_ends_a_lease_after_its_holder_died(
    world: World, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    run = (await http.post("/v1/runs", json={"lease_seconds": 1})).json()
    url = f"ws://127.0.0.1:{world.port}/v1/runs/{run['id']}/hold"
    socket = await connect(url, additional_headers=world.auth(), compression=None)
    await socket.recv()
    socket.transport.abort()
    for _ in range(30):
        await asyncio.sleep(0.1)
        await ledger.expire(100)
    ended = (await http.get(f"/v1/runs/{run['id']}")).json()
    assert (ended["state"], ended["reclaim"]) == ("ended", "run_lease_expired")
