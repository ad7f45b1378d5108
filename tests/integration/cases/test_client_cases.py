"""The hard cases about the client, through the running service: what tests/integration/client does not show there.

Those run on the service too and are not repeated: the kinds of ends of a command (B141), long commands (B142), fan-outs (B144),
abandoned exec streams and quick ends (B146), limits of output in the foreground and in sessions (B148).
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import sandman
from tests.fakes.proxy import Fault, FaultProxy
from tests.integration.cases.box import SLOW, Box, fields, problem
from tests.integration.cases.plain import live
from tests.service import Service, eventually

MIB = 1024 * 1024
QUICK = sandman.RetryPolicy(total_seconds=0)


def test_b141_every_failure_has_a_type_under_one_base(own_service: Callable[..., Service]) -> None:
    """The service's own failures; those of commands are in test_client_exec."""
    service = own_service(env={"SANDMAN_QUEUE_TENANT_BOUND": "2", "SANDMAN_QUEUE_BOUND": "2"})
    with (
        sandman.Client(service.url, service.key, retry=QUICK) as client,
        client.create() as lost,
        client.create() as deleted,
    ):
        deleted.delete()
        with pytest.raises(sandman.ClosedError):
            deleted.exec("true")
        with pytest.raises(sandman.SandboxLost) as gone:
            client.sandbox(deleted.id).exec("true")
        assert gone.value.reason == "deleted"
        os.kill(service.children()["worker"], signal.SIGSTOP)
        waiting = [client.create(wait=0) for _ in range(2)]
        with pytest.raises(sandman.ServiceUnavailable) as full:
            client.create(wait=0)
        assert full.value.slug == "queue-full" and full.value.retryable and full.value.retry_after
        for one in waiting:
            one.delete()
        os.kill(service.children()["worker"], signal.SIGCONT)
        with pytest.raises(sandman.ValidationError) as invalid:
            client.create(cpu=-1)
        assert invalid.value.cause == "caller" and not invalid.value.retryable
        with (
            sandman.Client(service.url, "sm_" + "A" * 43, retry=QUICK) as stranger,
            pytest.raises(sandman.AuthError) as refused,
        ):
            stranger.sandbox(lost.id)
        for error in (full.value, invalid.value, refused.value):
            assert error.request_id and error.status
        lost.detach()
        service.kill()
        assert eventually(lambda: not service.service_processes(), 10)
        with pytest.raises(sandman.TransportError):
            client.stats()  # perhaps on a connection that was open before
        with pytest.raises(sandman.ConnectError) as down:
            client.stats()
        assert down.value.retryable and down.value.cause == "infra"
        errors = (gone.value, full.value, invalid.value, refused.value, down.value)
        assert len({type(error) for error in errors}) == len(errors)
        assert all(isinstance(error, sandman.SandmanError) for error in errors)


def test_b142_waiting_for_a_create_is_no_request_timeout(own_service: Callable[..., Service]) -> None:
    service = own_service()
    worker = service.children()["worker"]
    os.kill(worker, signal.SIGSTOP)
    threading.Timer(4.0, os.kill, (worker, signal.SIGCONT)).start()
    began = time.monotonic()
    with (
        sandman.Client(service.url, service.key, request_timeout=1.0) as client,
        client.create(wait=60) as sandbox,
    ):
        assert time.monotonic() - began > 3.5
        waits = threading.Thread(target=sandbox.exec, args=("sleep 2",), kwargs={"session": "s"})
        waits.start()
        time.sleep(0.5)
        result = sandbox.exec("sleep 0.3; echo done", session="s", timeout=600)
        waits.join()
        assert result.stdout == "done\n"
        assert result.usage.wall_seconds == pytest.approx(0.3, abs=0.25 * SLOW), (
            "waiting in the session counts as work"
        )
        late = sandbox.exec("sleep 30", timeout=0.5)
        assert late.timed_out and late.usage.wall_seconds < 10
    os.kill(service.children()["worker"], signal.SIGSTOP)
    with sandman.Client(service.url, service.key) as client, service.http() as http:
        began = time.monotonic()
        with pytest.raises(sandman.CreateTimeout):
            client.create(wait=1.5)
        assert 1.4 < time.monotonic() - began < 1.5 + 5 * SLOW
        assert eventually(lambda: not live(http), 10), "what was not ready in time is deleted"
    os.kill(service.children()["worker"], signal.SIGCONT)


def sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            continue
    return count


def test_b146_downloads_that_are_left_give_back_their_connections(box: Box, session_service: Service) -> None:
    box.sandbox.files.write("/srv/b146", os.urandom(4 * MIB))
    with sandman.Client(session_service.url, session_service.key) as client:
        sandbox = client.sandbox(box.sandbox.id)
        sandbox.exec("true")
        before = sockets()
        for _ in range(200):
            for chunk in sandbox.files.read_chunks("/srv/b146"):
                assert chunk
                break
        assert eventually(lambda: sockets() <= before + 20, 10), (before, sockets())
        half = [iter(sandbox.files.read_chunks("/srv/b146")) for _ in range(10)]
        assert all(next(one) for one in half)
        began = time.monotonic()
    assert time.monotonic() - began < 2 * SLOW, "close waits for half-read downloads"
    assert box.out("echo later") == "later\n"


PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


def http_answer(status: str, body: bytes = b"", *heads: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *heads, "", ""]
    return "\r\n".join(lines).encode() + body


GARBAGE = {
    "502 page": http_answer("502 Bad Gateway", PAGE, "Content-Type: text/html"),
    "503 empty": http_answer("503 Service Unavailable"),
    "504 json": http_answer(
        "504 Gateway Timeout", b'{"message": "upstream"}', "Content-Type: application/json"
    ),
    "429 with a hint": http_answer("429 Too Many Requests", b"slow down", "Retry-After: 1"),
    "429 without": http_answer("429 Too Many Requests", PAGE, "Content-Type: text/html"),
    "cut json": http_answer("200 OK", b'{"id": "sb-', "Content-Type: application/json"),
    "empty 200": http_answer("200 OK"),
    "short body": b'HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nContent-Type: application/json\r\n\r\n{"id"',
    "no http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
}


@pytest.fixture
def proxy(session_service: Service) -> Iterator[FaultProxy]:
    parts = urlsplit(session_service.url)
    assert parts.hostname and parts.port
    with FaultProxy(parts.hostname, parts.port) as made:
        yield made


@pytest.mark.parametrize("name", GARBAGE)
def test_b147_garbage_from_a_proxy_is_typed_and_passing_garbage_survived(
    session_service: Service, proxy: FaultProxy, name: str
) -> None:
    """Twice the proxy answers by itself, then it lets through: a create is one create all the same."""
    bad = Fault(answer=GARBAGE[name])
    proxy.faults = lambda number: bad
    with sandman.Client(proxy.url, session_service.key, retry=QUICK) as client:
        with pytest.raises(sandman.SandmanError) as caught:
            client.stats()
        assert isinstance(caught.value, sandman.ServiceUnavailable | sandman.TransportError), caught.value
        assert caught.value.cause == "infra" or "429" in name
        assert len(str(caught.value)) < 600
        if "page" in name:
            assert "502 Bad Gateway" in str(caught.value)
        if name == "429 with a hint":
            assert isinstance(caught.value, sandman.ServiceUnavailable) and caught.value.retry_after == 1
    first = proxy.seen.connections
    proxy.faults = lambda number: bad if number < first + 2 else Fault()
    began = time.monotonic()
    label = f"b147-{name.replace(' ', '-')}"
    with (
        sandman.Client(proxy.url, session_service.key) as client,
        client.create(labels={"name": label}) as sandbox,
    ):
        assert time.monotonic() - began < 15 * SLOW
        assert proxy.seen.connections >= first + 3, "it was repeated"
        assert sandbox.exec("echo through").stdout == "through\n"
        with session_service.http() as http:
            assert list(live(http, name=label)) == [sandbox.id], "repeats are one create"


def test_b147_answers_that_break_off_after_the_work_was_done(
    session_service: Service, proxy: FaultProxy
) -> None:
    """The request arrived and its answer is lost: create, exec and delete are repeated, and happen once."""
    with sandman.Client(proxy.url, session_service.key) as client:
        proxy.faults = lambda number: Fault(cut_after=40) if number < 2 else Fault()
        with client.create(labels={"name": "b147"}) as sandbox:
            with session_service.http() as http:
                assert list(live(http, name="b147")) == [sandbox.id]
            proxy.cut_all()
            first = proxy.seen.connections
            proxy.faults = lambda number: Fault(cut_after=400) if number < first + 2 else Fault()
            result = sandbox.exec("echo once >> /srv/log; sleep 0.3; cat /srv/log")
            assert result.stdout == "once\n"
            second = proxy.seen.connections
            proxy.cut_all()
            proxy.faults = lambda number: Fault(cut_after=40) if number < second + 1 else Fault()
        assert proxy.seen.cuts >= 2


@pytest.mark.parametrize(
    "url", ["http://nosuch.invalid:1", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "http://[::1]:1"]
)
def test_b147_what_cannot_be_reached_is_a_connect_error(session_service: Service, url: str) -> None:
    port = urlsplit(session_service.url).port
    began = time.monotonic()
    with sandman.Client(url.format(port=port), session_service.key, retry=QUICK) as client:
        with pytest.raises(sandman.ConnectError) as caught:
            client.create()
        assert caught.value.cause == "infra" and session_service.key not in str(caught.value)
    assert time.monotonic() - began < 10 * SLOW


def test_b147_a_create_does_not_wait_for_a_service_that_is_not_there(session_service: Service) -> None:
    """However long it would wait for a sandbox: an address that nobody answers at is given up after the retries' own time."""
    began = time.monotonic()
    patient = sandman.RetryPolicy(total_seconds=2)
    with sandman.Client("http://127.0.0.1:1", session_service.key, retry=patient) as client:
        with pytest.raises(sandman.ConnectError):
            client.create(wait=600)
        assert 0.5 < time.monotonic() - began < 2 * SLOW * 2


def test_b147_a_server_that_is_silent_is_a_request_timeout(session_service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with (
            sandman.Client(url, session_service.key, retry=QUICK, request_timeout=1) as client,
            pytest.raises(sandman.RequestTimeout),
        ):
            client.stats()


def test_b148_the_limit_is_the_same_on_every_path(box: Box) -> None:
    """Foreground, background and session, HTTP and client: half from each end, both streams, exact counts."""
    script = "seq 50000; seq 50000 >&2"
    whole = "".join(f"{number}\n" for number in range(1, 50001))
    found = [box.run(script, max_output_bytes=1000), box.run(script, max_output_bytes=1000, session="b148")]
    started = box.run(script, background=True)
    found.append(box.record(started["id"], wait=60, max_output_bytes=1000))
    for result in found:
        for stream in ("stdout", "stderr"):
            assert result[stream] == whole[:500] + whole[-500:], result["session"]
            assert result[f"{stream}_bytes"] == len(whole)
            assert (
                result[f"{stream}_truncated"] == len(whole) - 1000 and result[f"{stream}_head_bytes"] == 500
            )
    handle = box.sandbox.start(script, background=True, max_output_bytes=1000)
    kept = handle.wait()
    assert kept.stdout == kept.stderr == whole[:500] + whole[-500:]
    for limit in (0, 1, 7):
        small = box.run("printf 0123456789", max_output_bytes=limit)
        assert len(small["stdout"]) == limit and small["stdout_truncated"] == 10 - limit
    raised = box.post("head -c 60000000 /dev/zero | tr '\\0' x", max_output_bytes=64 * MIB).json()
    assert len(raised["stdout"]) == 60_000_000 and raised["stdout_truncated"] == 0
    for wrong in (200_000_000, -1, 1.5, "1000", True):
        answer = box.post("touch /srv/b148", max_output_bytes=wrong)
        assert fields(problem(answer, 422, answer.json()["type"].rsplit(":")[-1])) == {"max_output_bytes"}, (
            wrong
        )
    assert box.out("ls /srv/b148 2>&1 || :").strip().endswith("No such file or directory")
    box.http.delete(f"{box.path}/sessions/b148")
