"""Commands through the service, with a real daemon behind it."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from typing import Any

import httpx
import pytest

from app.ledger.ledger import Ledger
from app.ledger.model import Reason, Record
from tests.integration.api.test_api_sandboxes import problem
from tests.integration.api.world import Daemon, World, raw_request

Usable = tuple[Record, Daemon]


@pytest.fixture
async def usable(world: World, ledger: Ledger) -> Usable:
    return await world.usable(ledger)


async def run(http: httpx.AsyncClient, sandbox_id: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body)
    assert answer.status_code in (200, 202), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_result(http: httpx.AsyncClient, usable: Usable) -> None:
    result = await run(http, usable[0].id, {"command": "echo out; echo err >&2; exit 3"})
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert result["id"].startswith("ex-")


@pytest.mark.parametrize(
    ("command", "code"), [("cat", 0), ("read x; echo $?", 0), ("grep foo", 1), ("python3 -c 'input()'", 1)]
)
async def test_b008_stdin_is_at_its_end(
    http: httpx.AsyncClient, usable: Usable, command: str, code: int
) -> None:
    started = time.monotonic()
    assert (await run(http, usable[0].id, {"command": command}))["exit_code"] == code
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("size", [131_071, 131_072, 1_000_000])
async def test_b012_long_commands(http: httpx.AsyncClient, usable: Usable, size: int) -> None:
    result = await run(http, usable[0].id, {"command": "echo ok # " + "A" * (size - 10)})
    assert result["stdout"] == "ok\n"


async def test_b012_a_long_argument_is_typed(http: httpx.AsyncClient, usable: Usable) -> None:
    assert (await run(http, usable[0].id, {"argv": ["true", "A" * 131_071]}))["exit_code"] == 0
    answer = await http.post(f"/v1/sandboxes/{usable[0].id}/exec", json={"argv": ["true", "A" * 131_072]})
    assert problem(answer, 422, "exec-start-failed")["reason"] == "argument_list_too_long"
    assert (await run(http, usable[0].id, {"command": "true"}))["exit_code"] == 0


@pytest.mark.parametrize(
    "value", ["-----BEGIN\nx\n-----END\n", "a=b=c", "'\"$(touch /tmp/pwn-b014)", "", "日本語🤣", "trailing\n"]
)
async def test_b014_environment_is_byte_exact(http: httpx.AsyncClient, usable: Usable, value: str) -> None:
    command = "import os,sys;sys.stdout.buffer.write(os.environb[b'K'])"
    result = await run(http, usable[0].id, {"argv": ["python3", "-c", command], "env": {"K": value}})
    assert result["stdout"] == value


@pytest.mark.parametrize("cwd", ["/nope", "/etc/passwd"])
async def test_b015_a_bad_cwd_runs_nothing(http: httpx.AsyncClient, usable: Usable, cwd: str) -> None:
    record, daemon = usable
    body = {"command": "true; touch marker", "cwd": cwd}
    answer = await http.post(f"/v1/sandboxes/{record.id}/exec", json=body)
    assert problem(answer, 422, "exec-start-failed")["reason"] == "cwd"
    assert not (daemon.home / "marker").exists()


async def test_b015_odd_folders(http: httpx.AsyncClient, usable: Usable) -> None:
    record, daemon = usable
    odd = daemon.home / "a b\n-c"
    odd.mkdir()
    result = await run(http, record.id, {"command": "true & wait; pwd", "cwd": str(odd)})
    assert result["stdout"] == f"{odd}\n"


async def test_b033_input_with_nul_is_fine(http: httpx.AsyncClient, usable: Usable) -> None:
    result = await run(http, usable[0].id, {"command": "wc -c", "stdin": "a\0b"})
    assert result["stdout"].strip() == "3"


async def test_b036_a_strict_client_gets_whole_answers(world: World, usable: Usable) -> None:
    """Many answers on one connection, read byte for byte: nothing missing, nothing left over."""
    body = b'{"command":"seq 1 500"}'
    head = (
        f"POST /v1/sandboxes/{usable[0].id}/exec HTTP/1.1\r\nHost: x\r\nX-API-Key: {world.keys['alice']}\r\n"
    )
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    expected = "".join(f"{n}\n" for n in range(1, 501))
    with socket.create_connection(("127.0.0.1", world.port), timeout=10) as client:
        for _ in range(100):
            client.sendall(request)
            received = b""
            while b"\r\n\r\n" not in received:
                received += client.recv(65536)
            answer, _, rest = received.partition(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(rest) < length:
                rest += client.recv(65536)
            assert len(rest) == length and json.loads(rest)["stdout"] == expected


async def test_b048_big_answers_stream(http: httpx.AsyncClient, usable: Usable) -> None:
    result = await run(http, usable[0].id, {"command": "head -c 5000000 /dev/zero | tr '\\0' '\"'"})
    assert result["stdout"] == '"' * 5_000_000
    doubled = await run(http, usable[0].id, {"command": "head -c 900000 /dev/zero"})
    assert doubled["stdout"] == "\0" * 900_000


async def test_the_same_id_never_runs_twice(http: httpx.AsyncClient, usable: Usable) -> None:
    record, _ = usable
    body = {"command": "echo x >> count; sleep 0.5; wc -l < count", "id": "once"}
    results = await asyncio.gather(*(run(http, record.id, body) for _ in range(5)))
    assert {result["stdout"].strip() for result in results} == {"1"}
    answer = await http.post(f"/v1/sandboxes/{record.id}/exec", json={**body, "command": "true"})
    problem(answer, 409, "exec-id-conflict")


async def test_background_list_output_and_signal(http: httpx.AsyncClient, usable: Usable) -> None:
    base = f"/v1/sandboxes/{usable[0].id}"
    started = await run(
        http, usable[0].id, {"command": "echo begun; sleep 100", "background": True, "id": "bg"}
    )
    assert started["state"] == "running"
    listed = (await http.get(f"{base}/execs")).json()["items"]
    assert [item["id"] for item in listed] == ["bg"]
    while (await http.get(f"{base}/execs/bg")).json()["stdout_bytes"] < 6:
        await asyncio.sleep(0.02)
    output = await http.get(f"{base}/execs/bg/output", params={"stream": "stdout", "offset": "2"})
    assert output.content == b"gun\n"
    assert (
        await http.post(f"{base}/execs/bg/signal", json={"signal": "TERM", "scope": "tree"})
    ).status_code == 200
    ended = (await http.get(f"{base}/execs/bg", params={"wait": 10})).json()
    assert (ended["exit_code"], ended["signal"]) == (143, 15)
    problem(await http.get(f"{base}/execs/nosuch"), 404, "exec-not-found")


async def test_following_output_arrives_as_it_is_written(world: World, usable: Usable) -> None:
    """Small writes leave at once."""
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth(), timeout=30) as http:
        body = {
            "command": "for i in 1 2 3 4; do date +%s%N; sleep 0.3; done",
            "background": True,
            "id": "slow",
        }
        await run(http, usable[0].id, body)
        url = f"/v1/sandboxes/{usable[0].id}/execs/slow/output"
        delays = []
        async with http.stream("GET", url, params={"stream": "stdout", "follow": "true"}) as answer:
            async for line in answer.aiter_lines():
                delays.append(time.time() - int(line) / 1e9)
    assert len(delays) == 4 and max(delays) < 0.25, delays


async def test_a_caller_that_leaves_does_not_stop_its_command(
    world: World, http: httpx.AsyncClient, usable: Usable
) -> None:
    body = json.dumps({"command": "sleep 1; echo done", "id": "left"}).encode()
    with raw_request(world, "POST", f"/v1/sandboxes/{usable[0].id}/exec", body=body):
        await asyncio.sleep(0.3)
    ended = (await http.get(f"/v1/sandboxes/{usable[0].id}/execs/left", params={"wait": 5})).json()
    assert ended["stdout"] == "done\n"


async def test_the_sandbox_is_deleted_under_a_command(
    world: World, ledger: Ledger, http: httpx.AsyncClient, usable: Usable
) -> None:
    record, daemon = usable
    running = asyncio.create_task(
        http.post(f"/v1/sandboxes/{record.id}/exec", json={"command": "sleep 30", "id": "e1"})
    )
    await asyncio.sleep(0.3)
    await ledger.mark_failed(record.id, Reason.NODE_LOST, "the machine went away")
    daemon.kill()
    document = problem(await asyncio.wait_for(running, 5), 502, "sandbox-lost")
    assert (document["cause"], document["retryable"], document["exec_id"]) == ("infra", True, "e1")
    assert document["reason"] == "node_lost" and document["sandbox_id"] == record.id
    problem(await http.post(f"/v1/sandboxes/{record.id}/exec", json={"command": "true"}), 410, "gone")


async def test_a_broken_connection_attaches_by_the_id(
    world: World, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    """A proxy between service and daemon cuts the connection in mid-command; the command runs once and is answered."""
    queued = await world.sandbox(ledger, upto="creating")
    daemon = await asyncio.to_thread(world.start_daemon, queued.id)
    cuts = Cutter(daemon.address.removeprefix("unix:"), str(world.folder / "run" / "cut.sock"))
    await cuts.start()
    try:
        await ledger.mark_starting(queued.id, f"unix:{cuts.path}", {})
        await ledger.mark_ready(queued.id)
        for _ in range(3):
            running = asyncio.create_task(
                run(http, queued.id, {"command": "echo x >> runs; sleep 0.6; wc -l < runs; rm runs"})
            )
            await asyncio.sleep(0.3)
            cuts.cut()
            assert (await asyncio.wait_for(running, 10))["stdout"].strip() == "1"
        assert cuts.accepted >= 4
        cuts.refuse = True
        cuts.cut()
        running = asyncio.create_task(run(http, queued.id, {"command": "echo back"}))
        await asyncio.sleep(1)
        cuts.refuse = False
        assert (await asyncio.wait_for(running, 10))["stdout"] == "back\n"
    finally:
        await cuts.stop()


class Cutter:
    """A unix-socket proxy whose connections can be cut, or refused, at will."""

    def __init__(self, target: str, path: str) -> None:
        self.target, self.path = target, path
        self.accepted = 0
        self.refuse = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        self.accepted += 1
        up_reader, up_writer = await asyncio.open_unix_connection(self.target)
        self._writers |= {writer, up_writer}

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer), return_exceptions=True)


async def test_a_stale_connection_is_not_the_callers_problem(
    world: World, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    """The daemon is replaced behind the same address, so every kept connection is dead."""
    record, daemon = await world.usable(ledger)
    for _ in range(3):
        assert (await run(http, record.id, {"command": "true"}))["exit_code"] == 0
        daemon.kill()
        daemon = await asyncio.to_thread(world.start_daemon, record.id)


async def test_commands_hold_the_lease(own_world: Any) -> None:
    """B091: a command longer than the lease keeps its sandbox; so does a short one now and then; silence does not."""
    world = own_world(SANDMAN_LEASE_SECONDS_MIN="0.5")
    async with (
        world.ledger() as ledger,
        httpx.AsyncClient(base_url=world.url, headers=world.auth(), timeout=30) as http,
    ):
        record, _ = await world.usable(ledger, lease_seconds=1.5)

        async def expire() -> None:
            while True:
                await ledger.expire(100)
                await asyncio.sleep(0.1)

        expiring = asyncio.create_task(expire())
        assert (await run(http, record.id, {"command": "sleep 5; echo held"}))["stdout"] == "held\n"
        for _ in range(6):
            await asyncio.sleep(0.8)
            assert (await run(http, record.id, {"command": "true"}))["exit_code"] == 0
        await asyncio.sleep(4)
        found = await ledger.get(record.id)
        assert found is not None and not found.live
        problem(await http.post(f"/v1/sandboxes/{record.id}/exec", json={"command": "true"}), 410, "gone")
        expiring.cancel()


async def test_execs_are_counted_in_the_runs_report(
    world: World, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    opened = (await http.post("/v1/runs", json={"name": "counted"})).json()
    record, _ = await world.usable(ledger, run=opened["id"])
    for command in ("true", "head -c 3000000 /dev/zero", "exit 2", "kill -9 $$"):
        await run(http, record.id, {"command": command})
    await run(http, record.id, {"command": "sleep 5", "timeout_seconds": 0.2})
    await http.post(f"/v1/sandboxes/{record.id}/exec", json={"argv": ["/no/such"]})
    outcomes: dict[str, int] = {}
    for _ in range(50):
        await asyncio.sleep(0.1)
        report = (await http.get(f"/v1/runs/{opened['id']}/report")).json()
        outcomes = report["execs"]["outcomes"]
        if report["execs"]["count"] >= 6:
            break
    assert outcomes == {"ok": 2, "nonzero": 1, "signalled": 1, "timed_out": 1, "not_started": 1}
    csv = await http.get(f"/v1/runs/{opened['id']}/report", headers={"accept": "text/csv"})
    assert csv.headers["content-type"].startswith("text/csv") and "execs.outcomes.ok,2" in csv.text


async def test_many_callers_hang_up_and_nothing_stays(
    world: World, http: httpx.AsyncClient, usable: Usable
) -> None:
    """200 callers leave in mid-command: connections and files come back to where they were."""
    chance = random.Random(1)
    await run(http, usable[0].id, {"command": "true"})
    before = world.open_files()

    async def leave() -> None:
        body = b'{"command":"sleep 4"}'
        with raw_request(world, "POST", f"/v1/sandboxes/{usable[0].id}/exec", body=body) as client:
            await asyncio.sleep(chance.uniform(0.01, 0.8))
            if chance.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    for _ in range(4):
        await asyncio.gather(*(leave() for _ in range(50)))
    for _ in range(50):
        await asyncio.sleep(0.1)
        if world.open_files() <= before + 8:
            break
    assert world.open_files() <= before + 8
    assert "unhandled" not in world.log
