"""A lot of output, and big pieces of it: memory stays flat, frames stay small, and what is not kept is told exactly."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import sandman
from sandman import Exit, Gap, Output
from tests.integration.cases.box import Box, problem, resident_bytes

MIB = 1024**2
WHOLE = 524_288_000
LINE = b"0123456789\n"
FRAME_MAX = 256 * 1024
RETAINED = 8 * MIB


@contextmanager
def growing_at_most(limit: int, *pids: int) -> Iterator[None]:
    """The processes' resident memory, looked at all the while."""
    before = {pid: resident_bytes(pid) for pid in pids}
    most = dict(before)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for pid in pids:
                most[pid] = max(most[pid], resident_bytes(pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    grown = {pid: (most[pid] - before[pid]) // MIB for pid in pids}
    assert all(each < limit // MIB for each in grown.values()), f"MiB grown: {grown}"


def kept_ends_of(text: bytes, total: int, truncated: int) -> None:
    """`text` is the head and the tail of LINE, LINE, …: `total` bytes, of which `truncated` are left out in the middle."""
    head = (LINE * (len(text) // len(LINE) + 2))[: len(text) // 2 - 20]
    assert text.startswith(head)
    end = total % len(LINE)
    tail = (LINE * (len(text) // len(LINE) + 2) + LINE[:end])[-(len(text) // 2 - 20) :]
    assert text.endswith(tail)
    assert len(text) + truncated == total and truncated > 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_b037_half_a_gigabyte_leaves_memory_flat(box: Box, stream: str) -> None:
    command = f"yes 0123456789 | head -c 500M{' >&2' if stream == 'stderr' else ''}; exit 4"
    with growing_at_most(64 * MIB, box.daemon_pid(), box.app_pid()):
        answer = box.run(command, timeout_seconds=100)
    assert (answer["exit_code"], answer[f"{stream}_bytes"]) == (4, WHOLE)
    kept_ends_of(answer[stream].encode(), WHOLE, answer[f"{stream}_truncated"])
    with growing_at_most(64 * MIB, box.daemon_pid(), box.app_pid(), os.getpid()):
        result = box.sandbox.exec("yes 0123456789 | head -c 200M" + (" >&2" if stream == "stderr" else ""))
    text, truncated = getattr(result, stream), getattr(result, f"{stream}_truncated")
    assert getattr(result, f"{stream}_bytes") == 200 * MIB and result.ok
    kept_ends_of(text.encode(), 200 * MIB, truncated)


def test_b037_ten_at_once(box: Box) -> None:
    with (
        growing_at_most(10 * 64 * MIB, box.daemon_pid(), box.app_pid(), os.getpid()),
        ThreadPoolExecutor(10) as pool,
    ):
        for answer in pool.map(
            lambda _: box.run("yes 0123456789 | head -c 50M", max_output_bytes=100_000), range(10)
        ):
            assert (answer["exit_code"], answer["stdout_bytes"]) == (0, 50 * MIB)
            kept_ends_of(answer["stdout"].encode(), 50 * MIB, answer["stdout_truncated"])


def test_b037_all_of_it_can_be_had_by_streaming(box: Box) -> None:
    with growing_at_most(64 * MIB, box.daemon_pid(), box.app_pid(), os.getpid()):
        total = 0
        for event in box.sandbox.stream("yes 0123456789 | head -c 150M", encoding=None, max_output_bytes=0):
            match event:
                case Output(data=data, offset=offset):
                    assert offset == total and data[:1] == LINE[total % 11 : total % 11 + 1]
                    total += len(data)
                case Gap():
                    raise AssertionError(event)
        assert total == 150 * MIB


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import os\nd=b'x'*5_000_000\nwhile d: d=d[os.write(1,d):]", b"x" * 5_000_000),
        ("import os\nd=bytes(900_000)\nwhile d: d=d[os.write(1,d):]", bytes(900_000)),
        ("import os\nd=b'\"'*900_000\nwhile d: d=d[os.write(1,d):]", b'"' * 900_000),
        ("import os\nd=b'\\xff\\\\'*450_000\nwhile d: d=d[os.write(1,d):]", b"\xff\\" * 450_000),
    ],
)
def test_b048_big_writes_come_in_small_frames(box: Box, script: str, expected: bytes) -> None:
    with box.channel() as channel:  # with the default bound of 1 MiB a message
        channel.start(1, ["python3", "-c", script])
        seen = channel.until(1)
        assert bytes(seen.stdout) == expected and channel.largest <= FRAME_MAX
    result = box.sandbox.exec(["python3", "-c", script], encoding=None)
    assert result.stdout == expected
    assert box.run(["python3", "-c", script])["stdout"] == expected.decode("utf-8", "replace")


def test_b048_five_megabytes_of_input(box: Box) -> None:
    data = os.urandom(5_000_000)
    assert box.sandbox.exec("cat", stdin=data, encoding=None).stdout == data
    with box.channel() as channel:
        channel.start(1, "cat", stdin="stream")
        channel.write(1, data)
        channel.say("eof", 1)
        assert bytes(channel.until(1).stdout) == data and channel.largest <= FRAME_MAX


def test_b048_a_frame_that_is_too_large_gets_a_typed_error(box: Box) -> None:
    with box.channel() as channel:
        channel.start(1, "cat", stdin="stream")
        channel.start(2, "cat", stdin="stream")
        channel.write(2, b"kept")
        channel.socket.send(struct.pack(">BI", 0, 9) + b"x" * 1_000_000)
        message = channel.socket.recv(timeout=20)
        while isinstance(message, bytes) or '"error"' not in message:
            message = channel.socket.recv(timeout=20)
        assert "urn:sandman:problem:frame-too-large" in message
        for number in (1, 2):
            channel.say("eof", number)
            end = channel.until(number).end
            assert end and end["exit_code"] == 0
    with pytest.raises(sandman.ValidationError):
        box.sandbox.exec("x" * 20_000_000)
    assert box.http.post(f"{box.path}/exec", content=b" " * 20_000_000).status_code == 413


@pytest.fixture(scope="module")
def tight(module_boxes: Callable[..., Box]) -> Box:
    """A sandbox that keeps 8 MiB of each stream: a sixteenth of its disk."""
    return module_boxes(disk="128MiB")


def test_b053_what_is_no_longer_kept_is_a_gap(tight: Box) -> None:
    exec_id = tight.run("yes 0123456789 | head -c 50000000", background=True)["id"]
    total = tight.record(exec_id, wait=60, max_output_bytes=0)["stdout_bytes"]
    assert total == 50_000_000
    for asked in (1_000_000, 5_000_000, 20_000_000):
        with tight.channel() as channel:
            channel.attach(1, exec_id, stdout=asked)
            seen = channel.until(1)
            assert seen.end and seen.end["exit_code"] == 0
            (gap,) = seen.gaps
            first = gap["from"] - asked
            assert 0 <= first <= RETAINED // 2 and gap["to"] >= total - RETAINED
            assert len(seen.stdout) == total - asked - (gap["to"] - gap["from"])
            whole = (LINE * (total // 11 + 1))[:total]
            assert bytes(seen.stdout) == whole[asked : gap["from"]] + whole[gap["to"] :]
        events = list(tight.sandbox.attach(exec_id, stdout_offset=asked, encoding=None))
        (told,) = [event for event in events if isinstance(event, Gap)]
        assert (told.start, told.end, told.lost_bytes) == (gap["from"], gap["to"], gap["to"] - gap["from"])
        assert sum(len(event.data) for event in events if isinstance(event, Output)) == len(seen.stdout)
        assert isinstance(events[-1], Exit)
    answer = tight.http.get(f"{tight.path}/execs/{exec_id}/output?stream=stdout&offset={RETAINED}")
    start, end = map(int, answer.headers["sandman-gap"].split("-"))
    assert start == RETAINED and len(answer.content) == total - end == total - int(
        answer.headers["sandman-offset"]
    )
    assert answer.headers["sandman-total"] == str(total) and answer.headers["sandman-complete"] == "true"


@pytest.mark.parametrize("offset", [50_000, -1, 2**63, 2**70])
def test_b053_an_offset_that_cannot_be_is_refused(tight: Box, offset: int) -> None:
    exec_id = tight.run("echo short", background=True)["id"]
    tight.record(exec_id, wait=20)
    answer = tight.http.get(f"{tight.path}/execs/{exec_id}/output?stream=stdout&offset={offset}")
    assert answer.status_code in (416, 422), answer.text
    if offset == 50_000:
        assert problem(answer, 416, "offset-out-of-range")["total_bytes"] == 6
    with tight.channel() as channel:
        channel.attach(1, exec_id, stdout=offset)
        seen = channel.until(1)
        assert seen.end and seen.end["op"] == "error" and seen.end["status"] in (416, 422), seen
    with pytest.raises(sandman.SandmanError):
        tight.sandbox.attach(exec_id, stdout_offset=offset).wait()


def test_b053_the_offset_of_another_exec_is_nobodys(tight: Box) -> None:
    long = tight.run("seq 100000")["id"]
    short = tight.run("echo short")["id"]
    size = tight.record(long, max_output_bytes=0)["stdout_bytes"]
    with tight.channel() as channel:
        channel.attach(1, short, stdout=size)
        end = channel.until(1).end
        assert end and end["type"].endswith("offset-out-of-range")
        channel.attach(2, long, stdout=size)
        assert channel.until(2).end and not channel.seen[2].stdout
