"""Against a server that says what it likes: repeats that are one create (B076), garbage that crashes nothing (B147), and faults
that can be told apart (B141, B142)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import sandman
from sandman.retry import RetryPolicy
from tests.fakes.proxy import Fault, FaultProxy
from tests.fakes.scripted_http import (
    HANG,
    RESET,
    Request,
    ScriptedHttp,
    answer,
    json_answer,
    problem_answer,
)

QUICK = RetryPolicy(total_seconds=3, base_seconds=0.01, cap_seconds=0.02)
ID = "sb-" + "a" * 26
READY = {"id": ID, "state": "ready", "lease_seconds": 60}


def client_for(server: ScriptedHttp, **options: Any) -> sandman.AsyncClient:
    return sandman.AsyncClient(server.url, "sm_test", **{"retry": QUICK, "request_timeout": 2.0, **options})


GARBAGE = {
    "html 502": answer(502, b"<html>Bad Gateway</html>", "text/html"),
    "html 200": answer(200, b"<html>Log in</html>", "text/html"),
    "empty 200": answer(200, b""),
    "cut json": answer(200, b'{"id":"sb-'),
    "foreign json": json_answer(200, {"hello": 1}),
    "json null": json_answer(200, None),
    "short body": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nConnection: close\r\n\r\n{",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n\r\nConnection: close",
    "reset": RESET,
    "503 empty": answer(503, b"", "text/plain"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_b147_garbage_is_a_typed_error(name: str) -> None:
    with ScriptedHttp(lambda request, number: GARBAGE[name]) as server:
        async with client_for(server, retry=RetryPolicy(total_seconds=0.3, base_seconds=0.01)) as client:
            with pytest.raises(sandman.SandmanError) as caught:
                await client.sandbox(ID)
            assert isinstance(caught.value, sandman.TransportError | sandman.ServiceUnavailable), caught.value
            assert caught.value.retryable and caught.value.cause == "infra"


@pytest.mark.parametrize("name", ["html 502", "reset", "503 empty", "short body", "no http"])
async def test_b147_a_get_survives_passing_faults(name: str) -> None:
    with ScriptedHttp(
        lambda request, number: GARBAGE[name] if number < 3 else json_answer(200, READY)
    ) as server:
        async with client_for(server) as client:
            assert (await client.sandbox(ID)).id == ID
            assert len(server.requests) == 4


async def test_b147_retry_after_is_obeyed() -> None:
    refused = problem_answer(429, "queue-full", retryable=True).replace(
        b"\r\n\r\n", b"\r\nRetry-After: 1\r\n\r\n", 1
    )
    with ScriptedHttp(lambda request, number: refused if number == 0 else json_answer(200, READY)) as server:
        async with client_for(server) as client:
            started = time.monotonic()
            await client.sandbox(ID)
            assert 1.0 <= time.monotonic() - started < 10


async def test_b147_413_and_other_refusals_are_not_repeated() -> None:
    with ScriptedHttp(lambda request, number: answer(413, b"<html>", "text/html")) as server:
        async with client_for(server) as client:
            with pytest.raises(sandman.ValidationError):
                await client.create()
            assert len(server.requests) == 1


@pytest.mark.parametrize("url", ["http://no-such-host.invalid:1", "http://127.0.0.1:9"])
async def test_b147_no_connection_is_a_connect_error(url: str) -> None:
    async with sandman.AsyncClient(url, "k", retry=RetryPolicy(total_seconds=0.1)) as client:
        with pytest.raises(sandman.ConnectError):
            await client.stats()


async def test_b147_a_tls_fault_is_told_as_one_and_not_repeated() -> None:
    with FaultProxy("127.0.0.1", 9, lambda number: Fault(answer=answer(400))) as proxy:
        async with sandman.AsyncClient(proxy.url.replace("http", "https"), "k", retry=QUICK) as client:
            with pytest.raises(sandman.ConnectError) as caught:
                await client.stats()
        assert not caught.value.retryable and proxy.seen.connections == 1


def creates(server: ScriptedHttp) -> list[Request]:
    return [
        request for request in server.requests if request.method == "POST" and "renew" not in request.target
    ]


async def test_b076_all_tries_of_a_create_carry_one_key_and_body() -> None:
    faults = [
        RESET,
        GARBAGE["html 502"],
        problem_answer(503, "shutting-down", retryable=True),
        GARBAGE["empty 200"],
    ]

    def script(request: Request, number: int) -> bytes:
        if request.method == "DELETE":
            return json_answer(200, {**READY, "state": "deleted"})
        return faults[number] if number < len(faults) else json_answer(201, READY)

    with ScriptedHttp(script) as server:
        async with client_for(server) as client, client.create("host", labels={"a": "b"}) as sandbox:
            assert sandbox.id == ID
        tries = creates(server)
        # The answer that was no JSON is not taken for a refusal: it is asked for again too.
        assert len(tries) >= 4
        assert len({request.headers["idempotency-key"] for request in tries}) == 1
        assert len({request.body for request in tries}) == 1


async def test_b076_two_creates_have_two_keys() -> None:
    with ScriptedHttp(
        lambda request, number: json_answer(201, {**READY, "id": f"{ID[:-1]}{number}"})
    ) as server:
        async with client_for(server) as client:
            one, other = await asyncio.gather(client.create(), client.create())
            assert one.id != other.id
        assert len({request.headers["idempotency-key"] for request in creates(server)}) == 2


async def test_a_create_that_failed_is_typed_and_not_repeated() -> None:
    said = problem_answer(
        503,
        "unschedulable",
        retryable=True,
        cause="infra",
        reason="unschedulable",
        sandbox_id=ID,
        detail="no node",
    )
    with ScriptedHttp(lambda request, number: said) as server:
        async with client_for(server) as client:
            with pytest.raises(sandman.SandboxFailed) as caught:
                await client.create()
        assert (
            caught.value.reason == "unschedulable" and caught.value.retryable and caught.value.sandbox == ID
        )
        assert len(server.requests) == 1


async def test_a_create_that_is_queued_is_waited_for_and_a_failed_record_is_typed() -> None:
    failed = {
        **READY,
        "state": "failed",
        "reason": "image_pull",
        "detail": "no such image",
        "cause": "task",
        "retryable": True,
    }

    def script(request: Request, number: int) -> bytes:
        if request.method == "POST":
            return json_answer(202, {**READY, "state": "queued"})
        if request.method == "DELETE":
            return json_answer(200, failed)
        return json_answer(200, {**READY, "state": "starting"} if number == 1 else failed)

    with ScriptedHttp(script) as server:
        async with client_for(server) as client:
            with pytest.raises(sandman.SandboxFailed) as caught:
                await client.create("x")
        assert (caught.value.reason, caught.value.cause) == ("image_pull", "task")


async def test_a_cancelled_create_deletes_what_it_knows() -> None:
    def script(request: Request, number: int) -> bytes:
        if request.method == "POST":
            return json_answer(202, {**READY, "state": "queued"})
        return HANG if request.method == "GET" else json_answer(200, {**READY, "state": "deleted"})

    with ScriptedHttp(script) as server:
        async with client_for(server) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.create()
        assert server.requests[-1].method == "DELETE" and server.requests[-1].target.endswith(ID)


async def test_a_create_that_is_cancelled_before_its_answer_hangs_up() -> None:
    with ScriptedHttp(lambda request, number: HANG) as server:
        async with client_for(server) as client:
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.create()
            assert time.monotonic() - started < 5
        assert [request.method for request in server.requests] == ["POST"]


async def test_a_create_that_is_not_ready_in_time_is_deleted() -> None:
    def script(request: Request, number: int) -> bytes:
        if request.method == "DELETE":
            return json_answer(200, {**READY, "state": "deleted"})
        return json_answer(202 if request.method == "POST" else 200, {**READY, "state": "queued"})

    with ScriptedHttp(script) as server:
        async with client_for(server) as client:
            with pytest.raises(sandman.CreateTimeout) as caught:
                await client.create(wait=0.4)
        assert caught.value.sandbox == ID and server.requests[-1].method == "DELETE"


async def test_b142_the_request_timeout_bounds_a_silent_server_and_says_so() -> None:
    with ScriptedHttp(lambda request, number: HANG) as server:
        async with client_for(server, request_timeout=0.3, retry=RetryPolicy(total_seconds=0)) as client:
            started = time.monotonic()
            with pytest.raises(sandman.RequestTimeout) as caught:
                await client.stats()
            assert time.monotonic() - started < 5
            assert isinstance(caught.value, TimeoutError)


async def test_a_lease_is_renewed_until_the_object_is_dropped() -> None:
    def script(request: Request, number: int) -> bytes:
        return json_answer(201, {**READY, "lease_seconds": 0.3})

    with ScriptedHttp(script) as server:
        async with client_for(server) as client:
            sandbox = await client.create()
            await asyncio.sleep(0.65)
            renewals = [request for request in server.requests if request.target.endswith("/renew")]
            assert 2 <= len(renewals) <= 8
            del sandbox
            await asyncio.sleep(0.15)
            count = len(server.requests)
            await asyncio.sleep(0.4)
            assert len(server.requests) == count


async def test_a_lost_lease_makes_the_next_call_say_why() -> None:
    gone = problem_answer(
        410, "gone", state="deleted", reclaim="lifetime", sandbox_id=ID, detail="taken back: lifetime"
    )

    def script(request: Request, number: int) -> bytes:
        return (
            gone if request.target.endswith("/renew") else json_answer(201, {**READY, "lease_seconds": 0.1})
        )

    with ScriptedHttp(script) as server:
        async with client_for(server) as client:
            sandbox = await client.create()
            await asyncio.sleep(0.2)
            with pytest.raises(sandman.SandboxLost) as caught:
                await sandbox.exec("true")
            assert caught.value.reason == "lifetime" and caught.value.sandbox == ID


async def test_renewals_are_not_held_up_by_a_thousand_waiting_creates() -> None:
    def script(request: Request, number: int) -> bytes:
        if (
            request.method == "POST"
            and "renew" not in request.target
            and "wait=" in request.target
            and number
        ):
            return HANG
        return json_answer(201, {**READY, "lease_seconds": 0.3})

    with ScriptedHttp(script) as server:
        limits = sandman.Limits(calls=2, waits=4)
        async with client_for(server, limits=limits) as client:
            sandbox = await client.create()
            waiting = [asyncio.create_task(client.create(wait=30).__aenter__()) for _ in range(4)]
            await asyncio.sleep(0.5)
            assert any(request.target.endswith("/renew") for request in server.requests)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            del sandbox


def test_the_key_never_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedHttp(lambda request, number: problem_answer(401, "unauthenticated")) as server:
        client = sandman.Client(server.url, "sm_secret")
        with client, pytest.raises(sandman.AuthError) as caught:
            client.stats()
        assert "sm_secret" not in repr(caught.value) + str(caught.value) + repr(client)
        assert "sm_secret" not in server.requests[0].target


@pytest.mark.parametrize(
    "url", ["127.0.0.1", "ftp://x", "http://", "http://h:0", "http://h:99999", "http://u:p@h", "http://h?x=1"]
)
def test_a_wrong_url_is_told_before_anything_is_sent(url: str) -> None:
    with pytest.raises(sandman.ConfigError):
        sandman.Client(url, "k")
