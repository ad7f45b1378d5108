"""What the client holds and lets go: connections, threads, leases, sandboxes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandman
from sandman import Limits, Output
from tests.integration.client.conftest import Place
from tests.service import Service

CLIENT = Path(sandman.__file__).resolve().parents[1]


def sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            pass
    return count


async def test_b146_abandoned_streams_give_back_what_they_held(place: Place) -> None:
    async with place.client() as client, place.sandbox(client) as sandbox:
        await sandbox.exec("true")
        before = sockets()
        for _ in range(500):
            async for event in sandbox.stream("echo x; sleep 1000"):
                assert isinstance(event, Output)
                break
        gc.collect()
        await asyncio.sleep(0.5)
        assert sockets() <= before + 2
        assert not sandbox._link._mux.busy
        assert (await sandbox.exec("echo later")).stdout == "later\n"
        for _ in range(50):
            execs = await sandbox.execs()
            running = [
                one.id for one in execs if one.state == "running" and one.command == "echo x; sleep 1000"
            ]
            if not running:
                break
            await asyncio.sleep(0.1)
        assert not running, "an abandoned stream ends its command"


async def test_b146_close_with_open_streams_is_quick(place: Place) -> None:
    async with place.client() as keeper, place.sandbox(keeper) as made:
        client = place.client()
        sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
        handles = [await sandbox.start("sleep 1000") for _ in range(10)]
        waiting = [asyncio.create_task(handle.wait()) for handle in handles]
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await client.aclose()
        assert time.monotonic() - started < 2
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, sandman.ClosedError) for result in results)
        for handle in handles:
            assert await made.signal(handle.id, "KILL"), "only the client was closed, not the commands"


def test_b146_handles_that_are_collected_and_exit_with_open_streams(place: Place) -> None:
    program = """
import sandman, sys
client = sandman.Client(sys.argv[1], sys.argv[2])
sandbox = client.direct() if sys.argv[3] == "daemon" else client.create()
stream = iter(sandbox.stream("echo first; sleep 1000"))
print(next(stream).data, end="")
handle = sandbox.start("sleep 1000")
del handle
other = sandbox.start("sleep 1000")
print("ending", flush=True)
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, place.url, place.key, place.kind],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(CLIENT)},
    )
    assert (done.returncode, done.stdout) == (0, "first\nending\n"), done.stderr
    assert "Traceback" not in done.stderr and time.monotonic() - started < 15
    if place.kind == "service":
        with place.blocking_client() as client:
            for sandbox in client.sandboxes(state="ready"):
                sandbox.delete()


def test_threads_share_one_sandbox_and_one_connection(place: Place) -> None:
    with place.blocking_client() as client, place.blocking_sandbox(client) as sandbox:
        sandbox.exec("true")
        before = sockets()
        wrong: list[object] = []

        def work(number: int) -> None:
            for turn in range(10):
                result = sandbox.exec(f"echo {number} {turn}")
                if result.stdout != f"{number} {turn}\n":
                    wrong.append(result)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong and sockets() <= before + 1


async def test_an_idle_connection_is_closed_and_remade(place: Place) -> None:
    async with place.client(timeouts=sandman.Timeouts(idle=0.3)) as client, place.sandbox(client) as sandbox:
        await sandbox.exec("true")
        assert client._slots.held == 1
        await asyncio.sleep(1)
        assert client._slots.held == 0
        assert (await sandbox.exec("echo again")).stdout == "again\n"


# With the service


@pytest.fixture
async def client(service: Service) -> AsyncIterator[sandman.AsyncClient]:
    async with sandman.AsyncClient(service.url, service.key) as opened:
        yield opened


async def live(client: sandman.AsyncClient) -> list[str]:
    states = "queued,creating,starting,ready"
    return [sandbox.id async for sandbox in client.sandboxes(state=states)]


async def eventually_none(client: sandman.AsyncClient, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while left := await live(client):
        assert time.monotonic() < ends, f"still live: {left}"
        await asyncio.sleep(0.2)


async def test_files_and_processes_stay_between_calls_and_clients(
    service: Service, client: sandman.AsyncClient
) -> None:
    async with client.create() as sandbox:
        await sandbox.files.write("note", "kept")
        server = await sandbox.start("exec python3 -m http.server 8123", background=True)
        async with sandman.AsyncClient(service.url, service.key) as other:
            again = await other.sandbox(sandbox.id)
            assert await again.files.read_text("note") == "kept"
            probe = "import urllib.request as u, time\nfor _ in range(50):\n  try: print(u.urlopen('http://127.0.0.1:8123/').status); break\n  except OSError: time.sleep(.1)"
            assert (await again.exec(["python3", "-c", probe])).stdout == "200\n"
        assert await server.kill()


async def test_b076_one_key_is_one_sandbox_and_another_body_a_conflict(client: sandman.AsyncClient) -> None:
    key = f"b076-{time.time_ns()}"
    made = await asyncio.gather(*(client.create(idempotency_key=key) for _ in range(20)))
    assert len({sandbox.id for sandbox in made}) == 1
    again = await client.create(idempotency_key=key)
    assert again.id == made[0].id
    with pytest.raises(sandman.Conflict):
        await client.create(idempotency_key=key, labels={"other": "body"})
    await made[0].delete()
    assert await live(client) == []


async def test_a_create_that_is_cancelled_at_any_moment_leaves_nothing(client: sandman.AsyncClient) -> None:
    async def cancelled(after: float) -> None:
        try:
            async with asyncio.timeout(after):
                await (await client.create()).detach(5)
        except TimeoutError:
            pass

    await asyncio.gather(*(cancelled(0.004 * number) for number in range(40)))
    await eventually_none(client, 30)


async def test_leaving_the_run_takes_back_all_it_owns_and_its_report_stays(
    client: sandman.AsyncClient,
) -> None:
    async with client.run("test", labels={"a": "b"}, lease_seconds=20) as run:
        made = await asyncio.gather(*(run.create() for _ in range(5)))
        assert [sandbox.info.run for sandbox in made] == [run.id] * 5
        assert sorted([sandbox.id async for sandbox in run.sandboxes(state="ready")]) == sorted(
            s.id for s in made
        )
        assert (await made[0].exec("echo hi")).stdout == "hi\n"
    await eventually_none(client, 15)
    report = await run.report()
    assert report


async def test_a_sandbox_outlives_its_lease_while_it_is_open_and_not_when_it_is_dropped(
    client: sandman.AsyncClient,
) -> None:
    sandbox = await client.create(lease_seconds=2)
    await asyncio.sleep(5)
    assert (await sandbox.refresh()).state == "ready"
    name = sandbox.id
    del sandbox
    await asyncio.sleep(0.2)
    assert name in await live(client)
    await eventually_none(client, 15)


async def test_detaching_keeps_it_for_its_lease(client: sandman.AsyncClient) -> None:
    async with client.create(lease_seconds=30) as sandbox:
        name = await sandbox.detach()
    assert name in await live(client)
    again = await client.sandbox(name)
    assert (await again.exec("echo here")).ok
    await again.delete()
    await again.delete()


async def test_failures_are_typed(service: Service, client: sandman.AsyncClient) -> None:
    with pytest.raises(sandman.ValidationError) as invalid:
        await client.create("UPPER//x")
    assert invalid.value.request_id
    with pytest.raises(sandman.SandmanError) as missing:
        await client.create("/no/such/root")
    assert missing.value.cause in ("task", "caller")
    with pytest.raises(sandman.NotFound):
        await client.sandbox("sb-" + "a" * 26)
    async with sandman.AsyncClient(service.url, "sm_wrong") as stranger:
        with pytest.raises(sandman.AuthError):
            await stranger.stats()
    async with client.create() as sandbox:
        await sandbox.delete()
        with pytest.raises(sandman.ClosedError):
            await sandbox.exec("true")
    with pytest.raises(sandman.SandboxLost) as gone:
        await (await client.sandbox(sandbox.id)).exec("true")
    assert gone.value.reason == "deleted"


def test_a_client_killed_hard_leaves_nothing_beyond_its_lease(service: Service) -> None:
    program = """
import sandman, sys, time
client = sandman.Client()
sandboxes = [client.create(lease_seconds=2) for _ in range(3)]
sandboxes[0].start("sleep 1000")
print("made", flush=True)
time.sleep(1000)
"""
    env = {
        **os.environ,
        "PYTHONPATH": str(CLIENT),
        "SANDMAN_URL": service.url,
        "SANDMAN_API_KEY": service.key,
    }
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None and process.stdout.readline() == b"made\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with sandman.Client(service.url, service.key) as client:
        ends = time.monotonic() + 15
        while list(client.sandboxes(state="queued,creating,starting,ready")):
            assert time.monotonic() < ends
            time.sleep(0.2)


COUNT = int(os.environ.get("SANDMAN_TEST_FAN_OUT", "60"))


def test_b144_a_fan_out_fits_into_few_files(service: Service) -> None:
    """SANDMAN_TEST_FAN_OUT=1000 is the full size; the file limit shrinks with the count."""
    program = f"""
import asyncio, resource, sandman
count, files = {COUNT}, {max(64, COUNT * 1024 // 1000)}
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
async def main():
    async with sandman.AsyncClient() as client:
        async def one(number):
            async with client.create(wait=900) as sandbox:
                result = await sandbox.exec(f"echo {{number}}")
                assert result.stdout == f"{{number}}\\n", result
                return result
        results = await asyncio.gather(*(one(number) for number in range(count)), return_exceptions=True)
        bad = [result for result in results if isinstance(result, BaseException)]
        print(len(results) - len(bad), "good", *bad[:3])
asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB")
"""
    env = {
        **os.environ,
        "PYTHONPATH": str(CLIENT),
        "SANDMAN_URL": service.url,
        "SANDMAN_API_KEY": service.key,
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=900
    )
    print(done.stdout, done.stderr[-2000:])
    assert f"{COUNT} good\n" in done.stdout


async def test_b144_execs_queue_for_few_connections(service: Service) -> None:
    limits = Limits(channels=2)
    async with (
        sandman.AsyncClient(service.url, service.key, limits=limits) as client,
        client.run("few") as run,
    ):
        made = await asyncio.gather(*(run.create() for _ in range(6)))
        for _ in range(3):
            results = await asyncio.gather(*(sandbox.exec("sleep 0.05; hostname") for sandbox in made))
            assert all(result.ok for result in results)
        assert client._slots.held <= 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE)


# The command line


def cli(service: Service, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {
        **os.environ,
        "PYTHONPATH": str(CLIENT),
        "SANDMAN_URL": service.url,
        "SANDMAN_API_KEY": service.key,
    }
    return subprocess.run(
        [sys.executable, "-m", "sandman", *words],
        input=stdin if stdin is not None else b"",
        capture_output=True,
        env=env,
        timeout=60,
    )


def test_the_command_line_from_create_to_rm(service: Service, scratch: Path) -> None:
    made = cli(service, "create", "--label", "a=b", "--memory", "256MiB")
    assert made.returncode == 0, made.stderr
    name = made.stdout.decode().strip()
    assert cli(service, "exec", name, "--", "echo out; echo err >&2; exit 7").returncode == 7
    assert cli(service, "exec", name, "cat", stdin=b"\x00piped\xff").stdout == b"\x00piped\xff"
    assert cli(service, "exec", name, "--", "printf", "%s|", "a b", "c").stdout == b"a b|c|"
    assert cli(service, "exec", name, "--timeout", "0.3", "--", "sleep", "9").returncode == 124
    assert cli(service, "exec", name, "--", "/nope", "x").returncode == 127
    assert cli(service, "exec", name, "--", "kill -9 $$").returncode == 137
    told = json.loads(cli(service, "exec", name, "--json", "--", "echo x; exit 2").stdout)
    assert (told["stdout"], told["exit_code"]) == ("x\n", 2)
    assert name.encode() in cli(service, "ls").stdout
    (scratch / "d").mkdir()
    (scratch / "d" / "f").write_bytes(b"1\n")
    assert cli(service, "cp", str(scratch / "d"), f"{name}:/tmp/").returncode == 0
    assert cli(service, "cp", f"{name}:/tmp/d", str(scratch / "back")).returncode == 0
    assert (scratch / "back" / "f").read_bytes() == b"1\n"
    assert cli(service, "cp", "-", f"{name}:/tmp/in", stdin=b"data").returncode == 0
    assert cli(service, "cp", f"{name}:/tmp/in", "-").stdout == b"data"
    assert b"/tmp/d/f" in cli(service, "ls", f"{name}:/tmp/d").stdout
    detached = cli(service, "exec", name, "-d", "--", "sleep 1000").stdout.decode().strip()
    assert detached.startswith("ex-")
    assert cli(service, "stats", "--json").returncode == 0
    assert cli(service, "rm", name).returncode == 0
    gone = cli(service, "exec", name, "true")
    assert gone.returncode == 125 and b"Traceback" not in gone.stderr and b"gone" in gone.stderr


def test_the_command_line_runs_in_one_go_and_leaves_nothing(service: Service) -> None:
    done = cli(service, "run", "--cpu", "0.5", "--", "echo hi; exit 3")
    assert (done.returncode, done.stdout) == (3, b"hi\n"), done.stderr
    assert b"usage" in cli(service, "run").stderr or cli(service, "run").returncode == 2


def test_ctrl_c_goes_to_the_command_and_a_second_one_kills(service: Service) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(CLIENT),
        "SANDMAN_URL": service.url,
        "SANDMAN_API_KEY": service.key,
    }
    script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "sandman", "run", "-n", "--", script], stdout=subprocess.PIPE, env=env
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"caught\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 137


def test_the_example_runs(service: Service) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(CLIENT),
        "SANDMAN_URL": service.url,
        "SANDMAN_API_KEY": service.key,
    }
    example = CLIENT / "examples" / "rollouts.py"
    done = subprocess.run(
        [sys.executable, str(example), "--rollouts", "10", "--concurrency", "5", "--steps", "2"],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "10 rollouts x 2 steps" in done.stdout and "'done': 10" in done.stdout
