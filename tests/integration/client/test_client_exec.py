"""Commands through the client: what comes out is what the command did."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from typing import Any

import pytest

import sandman
from sandman import Exit, Gap, Output
from tests.integration.client.conftest import Place


async def test_b030_short_commands_are_quick_in_sequence_and_in_parallel(
    sandbox: sandman.AsyncSandbox,
) -> None:
    await sandbox.exec("true")
    seconds = []
    for _ in range(100):
        started = time.perf_counter()
        assert (await sandbox.exec("true")).ok
        seconds.append(time.perf_counter() - started)
    seconds.sort()
    print(f"p50 {seconds[50] * 1000:.1f} ms, p95 {seconds[95] * 1000:.1f} ms")
    # A fixed poll interval would show as a floor under all of them, whatever else the machine is doing.
    assert seconds[0] < 0.05
    results = await asyncio.gather(*(sandbox.exec(f"exit {number}") for number in range(50)))
    assert [result.exit_code for result in results] == list(range(50))


async def test_b034_a_running_command_is_attached_to_from_anywhere_and_after_its_end(place: Place) -> None:
    async with place.client() as client, place.sandbox(client) as sandbox:
        handle = await sandbox.start("for i in $(seq 30); do echo $i; sleep 0.1; done", background=True)
        await handle.detach()
        async with place.client() as other:
            again = other.direct() if place.kind == "daemon" else await other.sandbox(sandbox.id)
            await asyncio.sleep(0.5)
            first = await again.attach(handle.id)
            events = [event async for event in first if isinstance(event, Output)]
            assert "".join(event.data for event in events) == "".join(f"{i}\n" for i in range(1, 31))
            assert first.result is not None and first.result.exit_code == 0
            late = await (await again.attach(handle.id, stdout_offset=10)).wait()
            assert late.stdout == "".join(f"{i}\n" for i in range(1, 31))[10:]
            assert late.stdout_truncated == 10 and late.stdout_bytes == len(
                "".join(f"{i}\n" for i in range(1, 31))
            )
            with pytest.raises(sandman.NotFound):
                await again.attach("ex-never-was")


async def test_b036_every_command_ends_with_exactly_one_exit_after_all_output(
    sandbox: sandman.AsyncSandbox,
) -> None:
    expected = "".join(f"{i}\n" for i in range(1, 5001))

    async def one() -> None:
        events = [event async for event in sandbox.stream("seq 1 5000")]
        assert [type(event) for event in events].count(Exit) == 1 and isinstance(events[-1], Exit)
        assert "".join(event.data for event in events if isinstance(event, Output)) == expected

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(20)))


async def test_b041_characters_split_over_writes_are_whole(sandbox: sandman.AsyncSandbox) -> None:
    script = r"printf '\342'; sleep 0.1; printf '\211'; sleep 0.1; printf '\244'; printf '\360' >&2; sleep 0.1; printf '\237\230\200' >&2"
    pieces: list[str] = []
    result = await sandbox.exec(script, on_stdout=pieces.append)
    assert (result.stdout, result.stderr) == ("≤", "😀") and pieces == ["≤"]
    assert (await sandbox.exec(r"printf 'ok\342\211'")).stdout == "ok\ufffd"
    boxes = await sandbox.exec("for i in $(seq 400); do printf '─%.0s' $(seq 200); echo; done")
    assert boxes.stdout == ("─" * 200 + "\n") * 400


async def test_b042_bytes_are_exact_and_text_never_fails(sandbox: sandman.AsyncSandbox) -> None:
    script = "head -c 1000000 /dev/urandom | tee random"
    data = await sandbox.exec(script, encoding=None)
    assert hashlib.sha256(data.stdout).digest() == hashlib.sha256(await sandbox.files.read("random")).digest()
    text = await sandbox.exec(r"printf 'a\377\376b\000c'; printf '\355\240\200'")
    assert text.stdout == b"a\xff\xfeb\0c\xed\xa0\x80".decode("utf-8", "replace")


async def test_b044_streams_are_apart_and_in_order_each(sandbox: sandman.AsyncSandbox) -> None:
    loop = "for i in $(seq 1000); do echo o$i; echo e$i >&2; done"
    result = await sandbox.exec(loop)
    assert result.stdout == "".join(f"o{i}\n" for i in range(1, 1001))
    assert result.stderr == "".join(f"e{i}\n" for i in range(1, 1001))
    merged = await sandbox.exec(loop, merge_stderr=True)
    assert merged.stdout == "".join(f"o{i}\ne{i}\n" for i in range(1, 1001)) and merged.stderr == ""


async def test_b040_unfinished_lines_come_at_once_and_unchanged(sandbox: sandman.AsyncSandbox) -> None:
    started = time.monotonic()
    first: float | None = None
    async for event in sandbox.stream("printf 'prompt> '; sleep 2; printf done"):
        if isinstance(event, Output) and first is None:
            first = time.monotonic() - started
            assert event.data == "prompt> "
    assert first is not None and first < 1.5
    assert (await sandbox.exec("printf '\\n\\n'")).stdout == "\n\n"


async def test_b045_stdin_and_both_outputs_do_not_wait_for_each_other(sandbox: sandman.AsyncSandbox) -> None:
    program = (
        "import sys; sys.stderr.write('e'*2**21); sys.stdout.write('o'*2**21); print(len(sys.stdin.read()))"
    )
    result = await sandbox.exec(["python3", "-c", program], stdin=b"x" * 2**20)
    assert result.stdout == "o" * 2**21 + "1048576\n" and result.stderr == "e" * 2**21


async def test_b008_without_stdin_a_reader_sees_the_end(sandbox: sandman.AsyncSandbox) -> None:
    assert (await sandbox.exec("cat", timeout=10)).ok
    handle = await sandbox.start("cat", stdin=True)
    await handle.write("a")
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "a"
    with pytest.raises(sandman.StdinClosed):
        await handle.write("b")


async def test_stdin_from_anything(sandbox: sandman.AsyncSandbox, tmp_path: Any) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(3_000_000))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    async def generate() -> Any:
        with path.open("rb") as file:
            while data := file.read(70_001):
                yield data

    with path.open("rb") as file:
        for source in (path.read_bytes(), file, generate()):
            result = await sandbox.exec("sha256sum", stdin=source)
            assert result.stdout.split()[0] == digest
    assert (await sandbox.exec("head -c 1", stdin=path.read_bytes(), encoding=None)).exit_code == 0

    def broken() -> Any:
        yield b"x"
        raise ValueError("the source's own")

    with pytest.raises(ValueError, match="own"):
        await sandbox.exec("cat", stdin=broken())


async def test_b141_every_kind_of_end_is_told_apart(place: Place, sandbox: sandman.AsyncSandbox) -> None:
    failed = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (failed.exit_code, failed.signal, failed.timed_out, failed.ok) == (3, None, False, False)
    assert (failed.stdout, failed.stderr) == ("out\n", "err\n")
    late = await sandbox.exec("echo before; sleep 30; echo after", timeout=0.5)
    assert late.timed_out and not late.ok and late.stdout == "before\n"
    killed = await sandbox.exec("kill -9 $$")
    assert (killed.exit_code, killed.signal, killed.timed_out) == (137, 9, False)
    with pytest.raises(sandman.ExecStartError) as start:
        await sandbox.exec(["/no/such/bin"])
    assert start.value.reason == "not_found"
    with pytest.raises(sandman.ExecStartError) as cwd:
        await sandbox.exec("touch marker", cwd="/nope")
    assert cwd.value.reason == "cwd"
    with pytest.raises(sandman.CommandFailed) as checked:
        await sandbox.exec("exit 4", check=True)
    assert checked.value.result.exit_code == 4
    with pytest.raises(sandman.ValidationError):
        await sandbox.exec("echo a\0b")
    async with sandman.AsyncClient(place.url, "sm_wrong") as stranger:
        with pytest.raises(sandman.AuthError):
            await stranger.direct().exec("true") if place.kind == "daemon" else await stranger.sandbox(
                sandbox.id
            )


async def test_b142_a_command_outlasts_the_request_timeout(place: Place) -> None:
    async with place.client(request_timeout=1.0) as client, place.sandbox(client) as sandbox:
        result = await sandbox.exec("sleep 3; echo done", timeout=600)
        assert result.stdout == "done\n"
        assert result.usage.wall_seconds == pytest.approx(3, abs=0.9)
    async with place.client() as client, place.sandbox(client) as sandbox:
        assert (await sandbox.exec("echo ok", timeout=None)).ok
        with pytest.raises(sandman.ValidationError):
            await sandbox.exec("true", timeout=0)


async def test_b148_the_limit_keeps_both_ends_counts_all_and_can_be_raised(
    sandbox: sandman.AsyncSandbox,
) -> None:
    script = "seq 100000; seq 100000 >&2"
    whole = "".join(f"{i}\n" for i in range(1, 100001))
    for session in (None, "s"):
        options: Any = {} if session is None else {"session": session}
        small = await sandbox.exec(script, max_output_bytes=1000, **options)
        for shown, truncated, total in (
            (small.stdout, small.stdout_truncated, small.stdout_bytes),
            (small.stderr, small.stderr_truncated, small.stderr_bytes),
        ):
            assert shown == whole[:500] + whole[-500:]
            assert (truncated, total) == (len(whole) - 1000, len(whole))
    assert (await sandbox.exec("seq 100000", max_output_bytes=0)).stdout == ""
    big = await sandbox.exec("head -c 40000000 /dev/zero", max_output_bytes=64 * 2**20, encoding=None)
    assert len(big.stdout) == 40_000_000 and big.stdout_truncated == 0


async def test_b053_what_the_spool_dropped_is_a_gap_and_offsets_beyond_the_end_are_refused(
    sandbox: sandman.AsyncSandbox,
) -> None:
    total = 200_000_000
    handle = await sandbox.start(f"head -c {total} /dev/zero", background=True, encoding=None)
    await handle.detach()
    await sandbox.exec_info(handle.id, wait=60)
    again = await sandbox.attach(handle.id, stdout_offset=1000, encoding=None)
    received, gaps, position = 0, [], 1000
    async for event in again:
        if isinstance(event, Gap):
            assert event.start == position
            gaps.append(event)
            position = event.end
        elif isinstance(event, Output):
            assert event.offset == position
            position += len(event.data)
            received += len(event.data)
    assert position == total and len(gaps) == 1 and gaps[0].lost_bytes + received == total - 1000
    assert again.result is not None and again.result.stdout_bytes == total
    for wrong in (total + 1, -1):
        with pytest.raises(sandman.ProblemError) as caught:
            await sandbox.attach(handle.id, stdout_offset=wrong)
        assert 400 <= caught.value.status < 500


async def test_b032_a_lost_handle_is_found_and_killed_by_id(sandbox: sandman.AsyncSandbox) -> None:
    handles = [await sandbox.start(f"sleep 10{number}", background=True) for number in range(3)]
    for handle in handles:
        await handle.detach()
    running = {record.id: record for record in await sandbox.execs() if record.state == "running"}
    assert {handle.id for handle in handles} <= set(running)
    assert running[handles[0].id].command == "sleep 100"
    for handle in handles:
        assert await sandbox.signal(handle.id, "TERM")
        assert (await sandbox.exec_info(handle.id, wait=10)).exit_code == 143
        assert not await sandbox.signal(handle.id, "KILL"), "it has ended: nothing was signalled"


async def test_a_cancelled_exec_kills_its_whole_tree(sandbox: sandman.AsyncSandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await sandbox.exec("sleep 7654 & setsid sleep 7654 & sleep 7654")
    for _ in range(50):
        left = (await sandbox.exec("ps -e -o args= | grep -c '[s]leep 7654'")).stdout.strip()
        if left == "0":
            break
        await asyncio.sleep(0.1)
    assert left == "0"


async def test_a_callback_that_fails_kills_the_command_and_comes_out(sandbox: sandman.AsyncSandbox) -> None:
    def fail(text: str) -> None:
        raise ZeroDivisionError(text)

    with pytest.raises(ZeroDivisionError):
        await sandbox.exec("echo now; sleep 7655", on_stdout=fail)
    await asyncio.sleep(0.3)
    assert (await sandbox.exec("ps -e -o args= | grep -c '[s]leep 7655'")).stdout.strip() == "0"


async def test_a_terminal_has_a_size_and_ctrl_c(sandbox: sandman.AsyncSandbox) -> None:
    handle = await sandbox.start("stty size; exec sleep 100", pty=(30, 100))
    seen = ""
    async for event in handle:
        if isinstance(event, Output):
            seen += event.data
            if "30 100" in seen:
                break
    await asyncio.sleep(0.3)  # a shell that is between two commands may pass a Ctrl-C over
    await handle.write(b"\x03")
    result = await asyncio.wait_for(handle.wait(), 20)
    assert result.exit_code == 130 or result.signal == 2


async def test_sessions_keep_state_and_run_in_order(sandbox: sandman.AsyncSandbox) -> None:
    await sandbox.exec("cd /tmp; export X=1; f() { echo F; }", session="a")
    assert (await sandbox.exec("pwd; echo $X; f", session="a")).stdout == "/tmp\n1\nF\n"
    results = await asyncio.gather(
        *(sandbox.exec(f"sleep 0.02; echo {n}; (exit {n})", session="a") for n in range(10))
    )
    assert [(result.stdout, result.exit_code) for result in results] == [(f"{n}\n", n) for n in range(10)]
    ended = await sandbox.exec("exit 3", session="a")
    assert ended.exit_code == 3 and ended.session_ended


def test_the_blocking_client_does_the_same(blocking_sandbox: sandman.Sandbox) -> None:
    sandbox = blocking_sandbox
    pieces: list[str] = []
    result = sandbox.exec(
        "for i in 1 2 3; do echo $i; sleep 0.05; done; echo e >&2; exit 5", on_stdout=pieces.append
    )
    assert (result.stdout, result.stderr, result.exit_code) == ("1\n2\n3\n", "e\n", 5)
    assert "".join(pieces) == result.stdout and len(pieces) > 1
    assert sandbox.exec(["cat"], stdin=b"\xff\x00", encoding=None).stdout == b"\xff\x00"
    events = list(sandbox.stream("echo x"))
    assert isinstance(events[-1], Exit) and events[-1].result.stdout == "x\n"
    with sandbox.start("cat", stdin=True) as handle:
        handle.write("hey")
        handle.close_stdin()
        assert handle.wait().stdout == "hey"
    again = sandbox.attach(handle.id)
    assert again.wait().stdout == "hey"

    def fail(text: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.exec("echo; sleep 100", on_stdout=fail)
    assert handle.id in {record.id for record in sandbox.execs()}
