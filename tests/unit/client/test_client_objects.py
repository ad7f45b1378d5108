"""The objects' own rules: options, sizes, forks, loops, threads, and what is closed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import sandman
from sandman.aio.slots import Slots
from sandman.config import Limits, resolve
from sandman.options import create_body, parse_size, start_body
from sandman.sync.portal import Portal
from tests.fakes.scripted_http import ScriptedHttp, json_answer

STATS = json_answer(200, {"live": {}})


@pytest.mark.parametrize(
    "text, size",
    [("512MiB", 2**29), ("1.5GiB", 3 * 2**29), ("2G", 2 * 10**9), ("7", 7), ("1Ki", 1024), (5, 5)],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1X", "-1", "1 2"])
def test_senseless_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    "options",
    [{"timeout": float("nan")}, {"timeout": float("inf")}, {"env": {"a": "\ud800"}}, {"cwd": "\udcff"}],
)
def test_what_json_would_change_is_refused_here(options: dict[str, Any]) -> None:
    with pytest.raises(sandman.ValidationError):
        start_body("true", options)


def test_b048_what_no_frame_can_carry_is_refused_before_it_ends_the_connection() -> None:
    assert start_body("x" * 2**20, {})["command"]
    with pytest.raises(sandman.ValidationError) as caught:
        start_body("x" * 16 * 2**20, {})
    assert caught.value.field == "command"


def test_b146_a_client_that_is_dropped_without_close_lets_go_of_everything() -> None:
    with ScriptedHttp(
        lambda request, number: json_answer(
            201, {"id": "sb-" + "a" * 26, "state": "ready", "lease_seconds": 60}
        )
    ) as server:
        client = sandman.Client(server.url, "k")
        sandbox = client.create()
        loop = client._portal.loop
        del sandbox, client
        deadline = time.monotonic() + 5
        while names := [task.get_name() for task in asyncio.all_tasks(loop)]:
            assert time.monotonic() < deadline, names
            time.sleep(0.02)


def test_commands_are_text_or_a_list_of_text() -> None:
    assert start_body("a b", {})["command"] == "a b"
    assert start_body(("a", "b"), {})["argv"] == ["a", "b"]
    for wrong in (b"a", [b"a"], ["a", 1]):
        with pytest.raises(TypeError):
            start_body(wrong, {})  # type: ignore[arg-type]


def test_what_is_not_given_is_not_sent() -> None:
    assert create_body("host", None, {}) == {"image": "host"}
    assert create_body("x", "run-1", {"memory": "1KiB", "cpu": 0}) == {
        "image": "x",
        "run": "run-1",
        "memory": 1024,
        "cpu": 0,
    }


def test_limits_follow_the_file_limit() -> None:
    limits = Limits.for_this_process()
    import resource

    soft = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 16384)
    assert limits.calls + limits.waits + limits.transfers + limits.channels <= soft


def test_settings_by_precedence(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("sm_file\n")
    env = {"SANDMAN_DATA_DIR": str(tmp_path)}
    assert resolve(environ=env).api_key == "sm_file"
    assert resolve(environ=env).url == "http://127.0.0.1:8700"
    assert resolve(environ={**env, "SANDMAN_API_KEY": "sm_env"}).api_key == "sm_env"
    assert resolve(environ={**env, "SANDMAN_URL": "https://x/"}).websocket_url == "wss://x"
    assert resolve("http://y", "sm_arg", environ=env).api_key == "sm_arg"


# Slots


class Idle:
    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def give_up(self) -> None:
        self.slots.release()


async def test_b144_idle_connections_are_given_up_for_those_who_wait() -> None:
    slots = Slots(2, 5)
    await slots.acquire()
    await slots.acquire()
    slots.idle(Idle(slots))
    await asyncio.wait_for(slots.acquire(), 1)
    assert slots.held == 2


async def test_b144_the_queue_is_fair_bounded_and_says_which_limit_to_raise() -> None:
    slots = Slots(1, 0.2)
    await slots.acquire()
    order: list[int] = []

    async def one(number: int) -> None:
        await slots.acquire()
        order.append(number)
        slots.release()

    tasks = [asyncio.create_task(one(number)) for number in range(5)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    slots.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 2, 3, 4] and slots.held == 0
    await slots.acquire()
    with pytest.raises(sandman.ConnectionLimit, match="ulimit -n"):
        await slots.acquire()


# Life


def test_the_blocking_client_serves_many_threads() -> None:
    with ScriptedHttp(lambda request, number: STATS) as server, sandman.Client(server.url, "k") as client:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(20):
                    client.stats()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not errors and len(server.requests) == 160


def test_a_forked_child_gets_a_clear_error_and_can_make_its_own_client() -> None:
    with ScriptedHttp(lambda request, number: STATS) as server, sandman.Client(server.url, "k") as client:
        client.stats()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = b"nothing"
            try:
                client.stats()
            except sandman.ForkError:
                with sandman.Client(server.url, "k") as own:
                    said = b"fork error, own works" if own.stats() == {"live": {}} else b"own fails"
                client.close()  # of the parent: does nothing here
            finally:
                os.write(write, said)
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"fork error, own works"
        os.close(read)
        assert client.stats() == {"live": {}}


def test_an_async_client_of_another_loop_is_refused() -> None:
    with ScriptedHttp(lambda request, number: STATS) as server:
        client = sandman.AsyncClient(server.url, "k")
        asyncio.run(client.stats())
        with pytest.raises(sandman.LoopError):
            asyncio.run(client.stats())


async def test_a_closed_client_says_so_and_closes_twice() -> None:
    client = sandman.AsyncClient("http://127.0.0.1:9", "k")
    await client.aclose()
    await client.aclose()
    with pytest.raises(sandman.ClosedError):
        await client.stats()


def test_a_blocking_call_on_the_background_loop_is_refused_instead_of_waiting_for_itself() -> None:
    async def call_inside() -> None:
        Portal.shared().call(asyncio.sleep, 0)

    with pytest.raises(sandman.LoopError):
        Portal.shared().call(call_inside)


def test_b146_the_interpreter_ends_at_once_with_calls_open() -> None:
    program = """
import sandman, sys, threading, time
client = sandman.Client(sys.argv[1], "k", request_timeout=60)
threading.Thread(target=lambda: client.stats(), daemon=True).start()
time.sleep(0.5)
print("ending", flush=True)
"""
    from tests.fakes.scripted_http import HANG

    with ScriptedHttp(lambda request, number: HANG) as server:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program, server.url],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": str(Path(sandman.__file__).parents[1])},
        )
        assert done.returncode == 0 and done.stdout == "ending\n", done.stderr
        assert "Traceback" not in done.stderr
        assert time.monotonic() - started < 8


def test_ctrl_c_cancels_the_call_and_comes_out() -> None:
    program = """
import sandman, sys, time
client = sandman.Client(sys.argv[1], "k", request_timeout=60)
print("calling", flush=True)
started = time.monotonic()
try:
    client.create()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    import signal

    from tests.fakes.scripted_http import HANG

    sandbox_id = "sb-" + "a" * 26

    def script(request: Any, number: int) -> bytes:
        if request.method == "POST":
            return json_answer(202, {"id": sandbox_id, "state": "queued", "lease_seconds": 60})
        return HANG if request.method == "GET" else json_answer(200, {"id": sandbox_id, "state": "deleted"})

    with ScriptedHttp(script) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", program, server.url],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(sandman.__file__).parents[1])},
        )
        assert process.stdout is not None
        deadline = time.monotonic() + 20
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "calling\ninterrupted\n"
        assert process.wait(10) == 0
        assert server.requests[-1].method == "DELETE"
