"""Networks and callers that fail: nothing is lost or doubled, the others notice nothing, and nothing of it stays."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from sandman import Exit, Gap, Output
from tests.fakes.idle_proxy import IdleProxy
from tests.fakes.proxy import Fault
from tests.integration.cases.box import Box, Channel, open_files, resident_bytes
from tests.service import eventually

MIB = 1024**2
NUMBERS = "".join(f"{number}\n" for number in range(1, 200_001))
PROXY_IDLE_SECONDS = 18.0
"""In place of nginx' 60 s; the service's heartbeat comes each 15 s, which is half of the 30 s that the case allows."""
QUIET_SECONDS = 22


def address(box: Box) -> tuple[str, int]:
    parts = urlsplit(box.service.url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_b049_quiet_commands_outlive_an_impatient_proxy(box: Box) -> None:
    """A command, a terminal and an input that nobody writes to, each on its first connection."""
    with IdleProxy(*address(box), PROXY_IDLE_SECONDS) as proxy, ThreadPoolExecutor(4) as pool:

        def command() -> None:
            with Channel(proxy.url, box.sandbox.id, box.service.key, ping_interval=None) as channel:
                channel.start(1, f"sleep {QUIET_SECONDS}; echo done")
                assert bytes(channel.until(1, seconds=QUIET_SECONDS + 30).stdout) == b"done\n"

        def terminal() -> None:
            with Channel(proxy.url, box.sandbox.id, box.service.key, ping_interval=None) as channel:
                channel.start(1, ["sh"], pty={"rows": 24, "cols": 80}, env={"PS1": "$ "})
                channel.until(1, b"$ ")
                quiet_until = time.monotonic() + QUIET_SECONDS
                while (left := quiet_until - time.monotonic()) > 0:
                    channel.step(left)
                channel.write(1, b"echo $((1 + 2)); exit 4\r")
                seen = channel.until(1)
                assert b"3\r\n" in seen.stdout and seen.end and seen.end["exit_code"] == 4

        def upload() -> None:
            with Channel(proxy.url, box.sandbox.id, box.service.key, ping_interval=None) as channel:
                channel.start(1, "wc -c", stdin="stream")
                channel.write(1, b"first")
                quiet_until = time.monotonic() + QUIET_SECONDS
                while (left := quiet_until - time.monotonic()) > 0:
                    channel.step(left)
                channel.write(1, b"second")
                channel.say("eof", 1)
                assert bytes(channel.until(1).stdout) == b"11\n"

        def client() -> None:
            with box.client_at(proxy.url) as sandbox:
                assert sandbox.exec(f"sleep {QUIET_SECONDS}; echo done").stdout == "done\n"

        for done in [pool.submit(each) for each in (command, terminal, upload, client)]:
            done.result()
        # What was cut is the idle plain-HTTP connection of the client, which is its proxy's to close.
        assert proxy.cuts <= 1


def test_b049_a_plain_request_that_was_cut_attaches_by_its_id(box: Box) -> None:
    """One request has no heartbeat; the same id finds the same command."""
    body = {"command": "sleep 4; echo once >>/tmp/b049; echo done", "id": "b049-plain"}
    with IdleProxy(*address(box), 1.5) as proxy:
        attempts = 0
        headers = {"Authorization": f"Bearer {box.service.key}"}
        with httpx.Client(base_url=proxy.url, headers=headers, timeout=60) as http:
            while True:
                attempts += 1
                try:
                    answer = http.post(f"{box.path}/exec", json=body)
                    break
                except httpx.HTTPError:
                    assert attempts < 10
        assert answer.json()["stdout"] == "done\n" and attempts == proxy.cuts + 1 >= 3
    assert box.out("cat /tmp/b049; rm /tmp/b049") == "once\n"


@pytest.mark.parametrize("seed", [51, 52])
def test_b051_twenty_cuts_lose_and_double_nothing(box: Box, seed: int) -> None:
    chance = random.Random(seed)
    cuts = [chance.randrange(300, 120_000) for _ in range(20)]
    with box.proxy() as proxy, box.client_at(proxy.url) as sandbox:
        sandbox.exec("true")
        proxy.faults = lambda number: Fault(cut_after=cuts.pop()) if cuts else Fault()
        proxy.cut_all()
        text, exits = "", []
        for event in sandbox.stream(f"seq 1 200000; exit {seed}"):
            match event:
                case Output(data=data):
                    text += data
                case Exit(result=result):
                    exits.append(result.exit_code)
                case Gap():
                    raise AssertionError(event)
        assert text == NUMBERS and exits == [seed] and proxy.seen.cuts == 20


def test_b051_raw_reconnects_by_offset_meet_exactly(box: Box) -> None:
    """Without our client: attach again and again with what was received so far, also after the end."""
    chance = random.Random(53)
    exec_id = box.run("seq 1 200000; sleep 0.3; exit 9", background=True)["id"]
    joined, ends = b"", []
    for _ in range(20):
        with box.proxy() as proxy:
            proxy.faults = lambda _: Fault(cut_after=chance.randrange(500, 150_000))
            try:
                with Channel(proxy.url, box.sandbox.id, box.service.key) as channel:
                    seen = channel.attach(1, exec_id, stdout=len(joined))
                    channel.until(1)
                    ends.append(seen.end)
            except OSError:
                continue
            except Exception as error:
                assert "close" in type(error).__name__.lower() or "invalid" in type(error).__name__.lower(), (
                    error
                )
            finally:
                joined += bytes(seen.stdout)
        if ends:
            break
    with box.channel() as channel:
        seen = channel.attach(2, exec_id, stdout=len(joined))
        channel.until(2)
        joined += bytes(seen.stdout)
        assert seen.end and seen.end["exit_code"] == 9
    assert joined == NUMBERS.encode()


def test_b051_a_command_that_ends_while_nobody_is_connected_is_told(box: Box) -> None:
    with box.proxy() as proxy, box.client_at(proxy.url) as sandbox:
        handle = sandbox.start("echo before; sleep 1; echo after; exit 6")
        down_until = time.monotonic() + 2
        proxy.faults = lambda _: Fault(refuse=time.monotonic() < down_until)
        proxy.cut_all()
        result = handle.wait()
        assert (result.stdout, result.exit_code) == ("before\nafter\n", 6)


def test_b054_five_hundred_lost_sockets_leave_nothing(box: Box) -> None:
    with box.channel() as channel:
        channel.start(1, "true")
        channel.until(1)
    app, daemon = box.app_pid(), box.daemon_pid()
    time.sleep(0.5)
    before = len(open_files(app)), len(open_files(daemon))
    running = len(box.running())
    log = len(box.service.output())

    def lose(number: int) -> None:
        channel = box.channel(open_timeout=30)
        if number % 10:
            channel.attach(1, silent)
        else:
            channel.start(1, ["sleep", "300"])
        while not channel.seen[1].started:
            assert channel.step(30)
        if number % 2:
            reset_under(channel)
        else:
            channel.socket.socket.shutdown(socket.SHUT_RDWR)
        channel.socket.close_timeout = 0.1
        channel.close()

    silent = box.run(["sleep", "300"], background=True)["id"]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lose, range(500)))
    # What a silent command costs while it runs is its pipes; the policy is that it goes on, and here it is ended.
    left = box.running()
    assert len(left) == running + 1 + 50 and all(item["argv"] == ["sleep", "300"] for item in left)
    for item in left:
        assert box.signal(item["id"], "KILL").json()["signalled"] == 1

    def settled() -> bool:
        return len(open_files(app)) <= before[0] + 4 and len(open_files(daemon)) <= before[1] + 8

    assert eventually(settled, 20, pause=0.2), (before, len(open_files(app)), len(open_files(daemon)))
    written = box.service.output()[log:]
    # One line for each request, as ever, and nothing else.
    assert [line for line in written.splitlines() if "request method=" not in line] == []
    assert written.count("\n") <= 500 + 2 * len(left) + 20


def reset_under(channel: Channel) -> None:
    channel.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("way", ["reset", "stall"])
def test_b055_a_dead_watcher_costs_the_others_nothing(box: Box, way: str) -> None:
    command = "for n in $(seq 60); do head -c 100000 /dev/zero | tr '\\0' x; sleep 0.02; done; exit 8"
    exec_id = box.run(command, background=True)["id"]
    dead = box.channel(max_queue=1)
    dead.attach(1, exec_id, credit=10**9)
    results: dict[int, int] = {}

    def watch(number: int) -> None:
        with box.channel() as channel:
            seen = channel.attach(1, exec_id)
            channel.until(1)
            assert seen.end and seen.end["exit_code"] == 8
            results[number] = len(seen.stdout)

    watchers = [threading.Thread(target=watch, args=(number,)) for number in range(2)]
    for watcher in watchers:
        watcher.start()
    dead.until(1, b"x")
    time.sleep(0.3)
    if way == "reset":
        reset_under(dead)
        os.close(os.dup(dead.socket.socket.fileno()))
        dead.socket.socket.shutdown(socket.SHUT_RD)
        dead.socket.socket.close()
    for watcher in watchers:
        watcher.join(60)
    assert results == {0: 6_000_000, 1: 6_000_000}
    dead.socket.close_timeout = 0.1
    dead.close()


def abort_after(box: Box, path: str, size: int) -> None:
    """A GET whose caller goes away after so many bytes."""
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.service.key}\r\n\r\n"
    with socket.create_connection(address(box), timeout=30) as connection:
        connection.sendall(request.encode())
        received = 0
        while received < size:
            data = connection.recv(MIB)
            assert data, "the answer ended"
            received += len(data)
        reset(connection)


@pytest.mark.parametrize("what", ["file", "output"])
def test_b058_a_caller_that_leaves_stops_the_reading(box: Box, what: str) -> None:
    if what == "file":
        box.out("truncate -s 5G /tmp/big")
        path = f"{box.path}/files?path=/tmp/big"
    else:
        exec_id = box.run("exec yes", background=True)["id"]
        path = f"{box.path}/execs/{exec_id}/output?stream=stdout&follow=true"
    app, daemon = box.app_pid(), box.daemon_pid()
    abort_after(box, path, MIB)
    time.sleep(0.5)
    files = len(open_files(app)), len(open_files(daemon))
    memory = resident_bytes(app), resident_bytes(daemon)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: abort_after(box, path, MIB), range(200)))

    def settled() -> bool:
        return (
            len(open_files(app)) <= files[0] + 4
            and len(open_files(daemon)) <= files[1] + 4
            and not any("/tmp/big" in name for name in open_files(daemon))
        )

    assert eventually(settled, 6), (files, len(open_files(app)), len(open_files(daemon)))
    if what == "output":
        box.signal(exec_id, "KILL")
        box.record(exec_id, wait=20, max_output_bytes=0)
    assert eventually(lambda: cpu_share(daemon) < 0.2, 10)
    grown = resident_bytes(app) - memory[0], resident_bytes(daemon) - memory[1]
    assert max(grown) < 64 * MIB, grown
    assert box.out("rm -f /tmp/big; echo fine") == "fine\n"


def cpu_share(pid: int, seconds: float = 0.5) -> float:
    def used() -> int:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(seconds)
    return (used() - before) / os.sysconf("SC_CLK_TCK") / seconds


def test_b058_a_caller_that_only_stops_reading_holds_nothing_up(
    box: Box, own_box: Callable[..., Box]
) -> None:
    other = own_box()
    other.out("truncate -s 5G /tmp/big")
    memory = resident_bytes(box.app_pid()), resident_bytes(other.daemon_pid())
    request = f"GET {other.path}/files?path=/tmp/big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.service.key}\r\n\r\n"
    with socket.create_connection(address(box), timeout=30) as connection:
        connection.sendall(request.encode())
        connection.recv(1000)
        time.sleep(1)
        assert other.out("echo fine") == box.out("echo fine") == "fine\n"
        grown = resident_bytes(box.app_pid()) - memory[0], resident_bytes(other.daemon_pid()) - memory[1]
        assert max(grown) < 64 * MIB, grown
