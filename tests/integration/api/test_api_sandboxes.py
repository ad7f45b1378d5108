"""Creating, waiting, looking, renewing and deleting, through the real server over the real ledger."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from app.ledger.ledger import Ledger
from app.ledger.model import Reason, Reclaim, State
from tests.integration.api.world import World, raw_request

HOST = {"image": "host"}


def problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """The problem of an answer, which must be of this kind."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["type"] == f"urn:sandman:problem:{slug}"
    assert document["request_id"] == answer.headers["x-request-id"]
    assert document["cause"] in ("caller", "task", "infra")
    assert isinstance(document["retryable"], bool)
    return document


async def test_create_waits_until_ready(world: World, ledger: Ledger, http: httpx.AsyncClient) -> None:
    async with world.provisioning(ledger, delay=0.2):
        answer = await http.post("/v1/sandboxes?wait=10", json={**HOST, "memory": "512Mi", "user": 1000})
    assert answer.status_code == 201
    body = answer.json()
    assert body["state"] == "ready" and body["memory"] == 512 * 1024**2 and body["user"] == "1000"
    assert answer.headers["location"] == f"/v1/sandboxes/{body['id']}"
    assert set(body["timings"]) == {"queued", "creating", "starting", "ready"}
    record = await ledger.get(body["id"])
    assert record is not None and record.claimed


async def test_create_not_ready_in_time_is_202_and_claimed(ledger: Ledger, http: httpx.AsyncClient) -> None:
    started = time.monotonic()
    answer = await http.post("/v1/sandboxes?wait=0.5", json={**HOST, "lease_seconds": 40})
    assert answer.status_code == 202 and 0.4 < time.monotonic() - started < 2
    body = answer.json()
    assert body["state"] == "queued" and body["queue_position"] is not None
    record = await ledger.get(body["id"])
    assert record is not None and record.claimed and record.lease_expires_ms is not None
    assert record.lease_expires_ms - await ledger.now_ms() > 30_000
    await ledger.request_delete(body["id"])


async def test_get_waits_and_a_waiting_get_claims(
    world: World, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    created = (await http.post("/v1/sandboxes", json=HOST)).json()
    looking = asyncio.create_task(http.get(f"/v1/sandboxes/{created['id']}", params={"wait": 10}))
    await asyncio.sleep(0.2)
    async with world.provisioning(ledger):
        answer = await looking
    assert answer.status_code == 200 and answer.json()["state"] == "ready"


@pytest.mark.parametrize(
    ("reason", "status", "slug", "cause", "retryable"),
    [
        (Reason.IMAGE_PULL, 422, "image-pull", "task", True),
        (Reason.IMAGE_INVALID, 422, "image-invalid", "task", False),
        (Reason.QUOTA, 429, "quota", "caller", True),
        (Reason.UNSCHEDULABLE, 503, "unschedulable", "infra", True),
        (Reason.BACKEND_ERROR, 503, "backend-error", "infra", True),
        (Reason.DAEMON_UNREADY, 503, "daemon-unready", "infra", True),
        (Reason.DEADLINE, 504, "deadline", "infra", False),
    ],
)
async def test_failed_create_is_typed_by_its_reason(
    world: World,
    ledger: Ledger,
    http: httpx.AsyncClient,
    reason: Reason,
    status: int,
    slug: str,
    cause: str,
    retryable: bool,
) -> None:
    async with world.provisioning(ledger, fail=lambda _record: reason):
        document = problem(await http.post("/v1/sandboxes?wait=10", json=HOST), status, slug)
    assert (document["cause"], document["retryable"]) == (cause, retryable)
    assert document["sandbox"]["state"] == "failed" and document["sandbox"]["reason"] == reason
    assert document["detail"] == "as the test wants it"


async def test_b079_delete_while_creating_answers_the_creator(
    ledger: Ledger, http: httpx.AsyncClient
) -> None:
    creating = asyncio.create_task(
        http.post("/v1/sandboxes?wait=10", json={**HOST, "labels": {"case": "b079"}})
    )
    found: list[Any] = []
    while not found:
        await asyncio.sleep(0.05)
        found = (await http.get("/v1/sandboxes", params={"label": "case=b079"})).json()["items"]
    assert (await http.delete(f"/v1/sandboxes/{found[0]['id']}")).status_code in (200, 202)
    document = problem(await creating, 409, "cancelled")
    assert document["sandbox_id"] == found[0]["id"] and document["reclaim"] == "cancelled"


async def test_b076_one_key_one_sandbox(world: World, ledger: Ledger, http: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": secrets.token_hex(8)}
    async with world.provisioning(ledger, delay=0.3):
        answers = await asyncio.gather(
            *(http.post("/v1/sandboxes?wait=10", json=HOST, headers=headers) for _ in range(20))
        )
        again = await http.post("/v1/sandboxes?wait=10", json={**HOST, "cpu": None}, headers=headers)
    ids = {answer.json()["id"] for answer in (*answers, again)}
    assert len(ids) == 1 and {answer.status_code for answer in answers} == {201}
    other = await http.post("/v1/sandboxes", json={**HOST, "cpu": 2}, headers=headers)
    assert problem(other, 409, "idempotency-conflict")["sandbox_id"] in ids
    await http.delete(f"/v1/sandboxes/{ids.pop()}")
    over = await http.post("/v1/sandboxes?wait=1", json=HOST, headers=headers)
    assert problem(over, 410, "gone")["reclaim"] == "deleted"


async def test_b076_keys_of_two_tenants_do_not_meet(world: World, http: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "same-for-both"}
    one = await http.post("/v1/sandboxes", json=HOST, headers=headers)
    two = await http.post("/v1/sandboxes", json=HOST, headers={**headers, **world.auth("bob")})
    assert one.json()["id"] != two.json()["id"]


async def test_b078_hung_up_creates_are_taken_back_or_tracked(
    own_world: Any,
) -> None:
    """200 callers close their sockets after 20–2000 ms; whatever they left is gone a grace later, and none is held for ever."""
    world = own_world(SANDMAN_HOLD_SECONDS="3")
    chance = random.Random(78)
    async with world.ledger() as ledger:

        async def hang_up() -> None:
            await asyncio.sleep(chance.uniform(0, 0.5))
            _, writer = await asyncio.open_connection("127.0.0.1", world.port)
            body = b'{"image":"host","labels":{"case":"b078"},"lease_seconds":2}'
            writer.write(
                b"POST /v1/sandboxes?wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (world.keys["alice"].encode(), len(body), body)
            )
            await asyncio.sleep(chance.uniform(0.02, 2.0))
            if chance.random() < 0.5:
                writer.transport.abort()
            writer.close()

        async with world.provisioning(ledger, delay=0.5):
            await asyncio.gather(*(hang_up() for _ in range(200)))
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                await ledger.expire(1000)
                live = (await ledger.list(limit=500)).items
                live = [record for record in live if record.live]
                if not live:
                    break
                await asyncio.sleep(0.5)
        assert not live, [(record.state, record.claimed, record.lease_expires_ms) for record in live]
        reclaims = {entry.reclaim for entry in (await ledger.reclaims(limit=1000)).items}
        assert Reclaim.HUNG_UP in reclaims
        assert reclaims <= {Reclaim.HUNG_UP, Reclaim.LEASE_EXPIRED}


async def test_b078_waiting_is_held_for_longer_than_the_grace(own_world: Any) -> None:
    world = own_world(SANDMAN_HOLD_SECONDS="4")
    async with world.ledger() as ledger, httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http:
        waiting = asyncio.create_task(http.post("/v1/sandboxes?wait=30", json=HOST, timeout=40))
        for _ in range(14):
            await asyncio.sleep(0.5)
            await ledger.expire(100)
            assert not waiting.done()
        async with world.provisioning(ledger):
            answer = await waiting
        assert answer.status_code == 201


async def test_b078_the_server_is_killed_while_a_create_waits(own_world: Any) -> None:
    """SIGKILL of the API: the same key finds the same sandbox within the grace, and it is answered."""
    world = own_world(SANDMAN_HOLD_SECONDS="10")
    async with world.ledger() as ledger:
        body = b'{"image":"host"}'
        with raw_request(
            world, "POST", "/v1/sandboxes?wait=60", body=body, headers={"Idempotency-Key": "killed"}
        ) as client:
            await asyncio.sleep(0.5)
            before = (await ledger.list(limit=10)).items
            world.stop(signal.SIGKILL)
            client.settimeout(5)
            assert client.recv(10) == b""
        world.start()
        async with (
            httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http,
            world.provisioning(ledger),
        ):
            answer = await http.post(
                "/v1/sandboxes?wait=10", content=body, headers={"idempotency-key": "killed"}
            )
        assert answer.status_code == 201 and answer.json()["id"] == before[0].id
        assert len((await ledger.list(limit=10)).items) == 1


async def test_b078_the_server_is_away_for_longer_than_the_grace(own_world: Any) -> None:
    """Nobody was told of the first sandbox, and it was us who did not hold it: the same create is answered all the same."""
    world = own_world(SANDMAN_HOLD_SECONDS="1")
    async with world.ledger() as ledger:
        body = b'{"image":"host"}'
        with raw_request(
            world, "POST", "/v1/sandboxes?wait=60", body=body, headers={"Idempotency-Key": "away"}
        ):
            await asyncio.sleep(0.5)
            before = (await ledger.list(limit=10)).items
            world.stop(signal.SIGKILL)
        await asyncio.sleep(1.2)
        assert [one.reclaim for one in await ledger.expire()] == [Reclaim.HUNG_UP]
        world.start()
        async with (
            httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http,
            world.provisioning(ledger),
        ):
            again = await http.post(
                "/v1/sandboxes?wait=10", content=body, headers={"idempotency-key": "away"}
            )
        assert again.status_code == 201 and again.json()["id"] != before[0].id


async def test_b078_a_wait_whose_hold_the_service_lost_is_no_fault_of_the_caller(own_world: Any) -> None:
    world = own_world()
    async with world.ledger() as ledger, httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http:
        waiting = asyncio.create_task(http.post("/v1/sandboxes?wait=20", json=HOST, timeout=30))
        await asyncio.sleep(0.5)
        [record] = (await ledger.list(limit=10)).items
        await ledger.request_delete(record.id, Reclaim.HUNG_UP)
        answer = await waiting
        assert answer.headers["retry-after"] == "1"
        lost = problem(answer, 503, "cancelled")
        assert (lost["cause"], lost["retryable"], lost["reclaim"]) == ("infra", True, "hung_up")


@pytest.mark.parametrize("field", ["lease_seconds", "lifetime_seconds"])
@pytest.mark.parametrize(
    "value", ["0", "-1", "1e12", '"30s"', "NaN", "Infinity", "true", "[]", "1e400", "0.01"]
)
async def test_b088_bad_times_name_their_field(http: httpx.AsyncClient, field: str, value: str) -> None:
    body = f'{{"image":"host","{field}":{value}}}'
    document = problem(await http.post("/v1/sandboxes", content=body.encode()), 422, "invalid")
    assert document["errors"][0]["field"] == field


@pytest.mark.parametrize(("given", "lease"), [("null", 60.0), ("1.5", 1.5), ("30", 30.0)])
async def test_b088_good_times_are_echoed(http: httpx.AsyncClient, given: str, lease: float) -> None:
    answer = await http.post("/v1/sandboxes", content=f'{{"image":"host","lease_seconds":{given}}}'.encode())
    assert answer.status_code == 202 and answer.json()["lease_seconds"] == lease


@pytest.mark.parametrize("value", ["0", "-1", "1e12", '"30s"', "NaN", "false"])
async def test_b088_bad_renewals(world: World, ledger: Ledger, http: httpx.AsyncClient, value: str) -> None:
    record = await world.sandbox(ledger)
    content = f'{{"lease_seconds":{value}}}'.encode()
    document = problem(await http.post(f"/v1/sandboxes/{record.id}/renew", content=content), 422, "invalid")
    assert document["errors"][0]["field"] == "lease_seconds"


@pytest.mark.parametrize("wait", ["-1", "601", "nan", "inf", "x", "", "1e400", "1&wait=2"])
async def test_b088_bad_waits(http: httpx.AsyncClient, wait: str) -> None:
    document = problem(await http.post(f"/v1/sandboxes?wait={wait}", json=HOST), 422, "invalid")
    assert document["errors"][0]["field"] == "wait"


async def test_renew(world: World, ledger: Ledger, http: httpx.AsyncClient) -> None:
    record = await world.sandbox(ledger, lease_seconds=5)
    answer = await http.post(f"/v1/sandboxes/{record.id}/renew", json={"lease_seconds": 50})
    assert answer.status_code == 200 and answer.json()["lease_seconds"] == 50
    assert (await http.post(f"/v1/sandboxes/{record.id}/renew")).status_code == 200


CALLS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/renew"),
    ("POST", "/exec"),
    ("GET", "/execs"),
    ("GET", "/execs/x"),
    ("GET", "/execs/x/output?stream=stdout"),
    ("POST", "/execs/x/signal"),
    ("GET", "/files?path=/x"),
    ("HEAD", "/files?path=/x"),
    ("PUT", "/files?path=/x"),
    ("DELETE", "/files?path=/x"),
    ("GET", "/files/list?path=/"),
    ("GET", "/files/stat?path=/"),
    ("POST", "/files/move"),
    ("POST", "/files/mkdir"),
    ("GET", "/archive?path=/"),
    ("PUT", "/archive?path=/"),
]
BODIES: dict[str, bytes] = {"/exec": b'{"command":"true"}', "/execs/x/signal": b'{"signal":"TERM"}'}


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_b093_unknown_foreign_and_malformed_ids_are_the_same(
    world: World, ledger: Ledger, http: httpx.AsyncClient, method: str, path: str
) -> None:
    foreign = await world.sandbox(ledger, tenant="other")
    bodies = []
    for sandbox_id in (
        "sb-" + "a" * 26,
        foreign.id,
        "nonsense",
        "sb-" + "A" * 26,
        "%00",
        "sb-%ff",
        "x" * 300,
    ):
        started = time.monotonic()
        answer = await http.request(
            method, f"/v1/sandboxes/{sandbox_id}{path}", content=BODIES.get(path, b"")
        )
        assert answer.status_code == 404 and time.monotonic() - started < 1.0
        if method != "HEAD":
            document = problem(answer, 404, "not-found")
            bodies.append({name: value for name, value in document.items() if name != "request_id"})
    assert all(body == bodies[0] for body in bodies)


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize("ending", ["deleted", "failed", "expired"])
async def test_b093_ended_ones_are_gone(
    world: World, ledger: Ledger, http: httpx.AsyncClient, method: str, path: str, ending: str
) -> None:
    if ending == "failed":
        record = await world.sandbox(ledger, upto="failed")
    else:
        record = await world.sandbox(ledger)
        await ledger.request_delete(
            record.id, Reclaim.DELETED if ending == "deleted" else Reclaim.LEASE_EXPIRED
        )
    answer = await http.request(method, f"/v1/sandboxes/{record.id}{path}", content=BODIES.get(path, b""))
    if path == "" and method in ("GET", "DELETE"):
        assert answer.status_code in (200, 202)
        assert answer.json()["state"] in (State.DELETING, State.DELETED, State.FAILED)
    elif method == "HEAD":
        assert answer.status_code == 410
    else:
        document = problem(answer, 410, "gone")
        assert document["state"] in (State.DELETING, State.DELETED, State.FAILED)
        assert document["reason"] == ("image_pull" if ending == "failed" else None)


async def test_b093_delete_twice(world: World, ledger: Ledger, http: httpx.AsyncClient) -> None:
    record = await world.sandbox(ledger)
    answers = [await http.delete(f"/v1/sandboxes/{record.id}") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {202}

    async def clean() -> None:
        await asyncio.sleep(0.3)
        await ledger.cleanup_due(100)
        await ledger.cleanup_done(record.id)

    cleaning = asyncio.create_task(clean())
    waited = await http.delete(f"/v1/sandboxes/{record.id}", params={"wait": 10})
    await cleaning
    assert waited.status_code == 200 and waited.json()["state"] == "deleted"


async def test_exec_before_ready_is_409(world: World, ledger: Ledger, http: httpx.AsyncClient) -> None:
    record = await world.sandbox(ledger, upto="creating")
    document = problem(
        await http.post(f"/v1/sandboxes/{record.id}/exec", json={"command": "true"}), 409, "not-ready"
    )
    assert document["retryable"] and document["state"] == "creating"


@pytest.mark.parametrize(
    "labels",
    [
        {"kubernetes.io/x": "1"},
        {"app.kubernetes.io/name": "1"},
        {"sandman.dev/id": "1"},
        {"-leading": "1"},
        {"ü 🤣/x": "1"},
        {"": "1"},
        {"k" * 64: "1"},
        {"a/b/c": "1"},
        {"ok": "has space"},
        {"ok": "v" * 64},
        {"ok": "-leading"},
        {"ok": "new\nline"},
        {f"k{n}": "v" for n in range(2000)},
    ],
)
async def test_b121_labels_under_the_rule_of_kubernetes(
    http: httpx.AsyncClient, labels: dict[str, str]
) -> None:
    document = problem(await http.post("/v1/sandboxes", json={**HOST, "labels": labels}), 422, "invalid")
    assert document["errors"][0]["field"].startswith("labels")


async def test_b121_good_labels_and_listing_by_them(http: httpx.AsyncClient) -> None:
    labels = {"My_Sandbox": "1abc", "example.org/a.b-c_d": "", "k" * 63: "v" * 63}
    created = await http.post("/v1/sandboxes", json={**HOST, "labels": labels})
    assert created.status_code == 202 and created.json()["labels"] == labels
    found = await http.get("/v1/sandboxes", params={"label": "My_Sandbox=1abc", "state": "queued,creating"})
    assert created.json()["id"] in {item["id"] for item in found.json()["items"]}


async def test_lists_have_pages(world: World, ledger: Ledger, http: httpx.AsyncClient) -> None:
    run = (await http.post("/v1/runs", json={"name": "pages"})).json()
    made = {
        (await http.post("/v1/sandboxes", json={**HOST, "run": run["id"]})).json()["id"] for _ in range(7)
    }
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"run": run["id"], "limit": "3", **({"cursor": cursor} if cursor else {})}
        page = (await http.get("/v1/sandboxes", params=params)).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(seen) == 7 and set(seen) == made
    problem(await http.get("/v1/sandboxes", params={"cursor": "../x"}), 422, "invalid")
    problem(await http.get("/v1/sandboxes", params={"stat": "ready"}), 422, "invalid")
    await http.delete(f"/v1/runs/{run['id']}")


async def test_half_a_body_is_nobody(world: World) -> None:
    """A caller that dies in the middle of its body leaves nothing behind."""
    with raw_request(world, "POST", "/v1/sandboxes?wait=5", headers={"Content-Length": "500"}) as client:
        client.sendall(b'{"image":"host"')
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await asyncio.sleep(0.2)
    assert "unhandled" not in world.log


async def test_b096_a_burst_leaves_health_alone(world: World, ledger: Ledger) -> None:
    """1,000 creates at once: all are answered, and the probe in between too. Plain sockets, and the probe in a thread: a client
    library would measure itself."""
    head = b"POST /v1/sandboxes?wait=60 HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: 16\r\n\r\n"
    request = head % world.keys["bob"].encode() + b'{"image":"host"}'

    async def create() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return answer.split(b" ")[1]

    health: list[float] = []
    over = threading.Event()

    def probe() -> None:
        with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
            while not over.wait(0.03):
                started = time.monotonic()
                client.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
                health.append(time.monotonic() - started)

    probing = asyncio.create_task(asyncio.to_thread(probe))
    async with world.provisioning(ledger, delay=0.5):
        answers = await asyncio.gather(*(create() for _ in range(1000)))
    over.set()
    await probing
    assert set(answers) == {b"201"}
    health.sort()
    print(f"health p50 {health[len(health) // 2]:.3f} max {health[-1]:.3f} s of {len(health)}")
    # The contract says 200 ms at p99 on a machine that does nothing else; this one runs the test's own worker too.
    assert health[len(health) // 2] < 0.2 and health[-1] < 3
