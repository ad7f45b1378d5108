"""Output as it is written: complete, in order, byte for byte, as soon as it is there, and with one end behind it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import time

import pytest

import sandman
from sandman import Exit, Output
from tests.integration.cases.box import SLOW, Box, problem, timed

COUNTER = "for n in $(seq 1 400); do echo $n; sleep 0.01; done; exit 5"
COUNTED = "".join(f"{n}\n" for n in range(1, 401))
ATTACH = """
import os, sys, sandman
with sandman.Client() as client:
    handle = client.sandbox(sys.argv[1]).attach(sys.argv[2], stdout_offset=int(sys.argv[3]))
    result = handle.wait()
    sys.stdout.write(result.stdout)
    sys.exit(result.exit_code)
"""


def attach_from_elsewhere(box: Box, exec_id: str, offset: int) -> subprocess.Popen[str]:
    env = {"SANDMAN_URL": box.service.url, "SANDMAN_API_KEY": box.service.key, "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-c", ATTACH, box.sandbox.id, exec_id, str(offset)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_b034_a_running_command_can_be_followed_at_any_time_from_anywhere(box: Box) -> None:
    exec_id = box.run(COUNTER, background=True)["id"]
    followers = []
    for pause, offset in ((0.2, 0), (1.5, 0), (1, 17), (1, 300)):
        time.sleep(pause)
        followers.append((offset, attach_from_elsewhere(box, exec_id, offset)))
    for offset, follower in followers:
        out, err = follower.communicate(timeout=60)
        assert (follower.returncode, out) == (5, COUNTED[offset:]), err
    assert box.record(exec_id)["state"] == "exited"
    # After the end: all is still there, by every way.
    for offset in (0, 100, len(COUNTED)):
        out, err = attach_from_elsewhere(box, exec_id, offset).communicate(timeout=60)
        assert out == COUNTED[offset:], err
        answer = box.http.get(f"{box.path}/execs/{exec_id}/output?stream=stdout&follow=true&offset={offset}")
        assert answer.text == COUNTED[offset:]
    with box.channel() as channel:
        channel.attach(1, exec_id)
        seen = channel.until(1)
        assert seen.started and seen.started["attached"] and seen.end and seen.end["exit_code"] == 5
    with pytest.raises(sandman.NotFound):
        box.sandbox.attach("b034-never-was").wait()
    problem(box.http.get(f"{box.path}/execs/b034-never-was"), 404, "exec-not-found")


def test_b034_records_end_at_the_bound_and_are_told_as_expired(box: Box) -> None:
    first = box.run("echo first", id="b034-first")["id"]
    with box.channel() as channel:
        for start in range(0, 4200, 100):
            for number in range(start, start + 100):
                channel.start(number % 1000, ["/no/such"])
            for number in range(start, start + 100):
                channel.until(number % 1000)
    problem(box.http.get(f"{box.path}/execs/{first}"), 410, "exec-expired")
    problem(box.http.get(f"{box.path}/execs/{first}/output?stream=stdout"), 410, "exec-expired")
    with pytest.raises(sandman.Gone):
        box.sandbox.attach(first).wait()
    box.refused("echo first", 410, "exec-expired", id=first)


@pytest.mark.parametrize(
    ("command", "stdout"), [("true", ""), ("seq 1 5000", None), ("false", ""), ("echo -n x", "x")]
)
def test_b036_every_stream_ends_once_behind_all_output(box: Box, command: str, stdout: str | None) -> None:
    expected = ("".join(f"{n}\n" for n in range(1, 5001)) if stdout is None else stdout).encode()
    code = 1 if command == "false" else 0
    with box.channel() as channel:  # the channel refuses anything behind an end, and output behind a hole
        for start in range(0, 300, 30):
            for number in range(start, start + 30):
                channel.start(number, command)
            for number in range(start, start + 30):
                seen = channel.until(number)
                assert seen.end and (bytes(seen.stdout), seen.end["exit_code"]) == (expected, code)
        assert not channel.step(0.2)
        began = time.monotonic()
        channel.close()
        assert timed(began) < 0.1 * SLOW
        assert channel.socket.close_code == 1000
    for number in range(40):
        answer = box.post(command, id=f"b036-{abs(hash(command))}-{number}")
        assert answer.json()["stdout"].encode() == expected
        with box.http.stream(
            "GET", f"{box.path}/execs/{answer.json()['id']}/output?stream=stdout&follow=true"
        ) as output:
            assert output.read() == expected
    for handle in (box.sandbox.stream(command) for _ in range(20)):
        events = list(handle)
        assert isinstance(events[-1], Exit) and not any(isinstance(event, Exit) for event in events[:-1])
        assert "".join(event.data for event in events if isinstance(event, Output)).encode() == expected


def test_b036_curl_is_content_too(box: Box) -> None:
    exec_id = box.run("seq 1 5000; sleep 0.5; echo end", background=True)["id"]
    argv = ["curl", "-sS", "--fail", "-K", "-", "--max-time", "20"]
    config = f'url = "{box.service.url}{box.path}/execs/{exec_id}/output?stream=stdout&follow=true"\n'
    config += f'header = "Authorization: Bearer {box.service.key}"\n'
    done = subprocess.run(argv, input=config, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 5001)) + "end\n"


@pytest.mark.parametrize(
    ("command", "first", "stdout"),
    [
        ("printf 'prompt> '; sleep 0.7; printf done", "prompt> ", "prompt> done"),
        ("printf x; sleep 0.7; printf '\\r'; printf y", "x", "x\ry"),
        ("printf '\\0'; sleep 0.7; printf ' '", "\0", "\0 "),
    ],
)
def test_b040_output_comes_at_once_without_a_line_end(
    box: Box, command: str, first: str, stdout: str
) -> None:
    for more in ({}, {"session": "b040"}, {"pty": {"rows": 24, "cols": 80}}):
        with box.channel() as channel:
            seen = channel.start(1, command, **more)
            while not seen.started:
                assert channel.step(20)
            began = time.monotonic()
            channel.until(1, first.encode())
            assert timed(began) < 0.3 * SLOW and not seen.end
            assert bytes(channel.until(1).stdout) == stdout.encode()
    began = time.monotonic()
    for event in (handle := box.sandbox.stream(command)):
        assert isinstance(event, Output) and event.data == first and timed(began) < 0.4 * SLOW
        break
    assert handle.wait().stdout == stdout
    assert box.out(command) == stdout


@pytest.mark.parametrize(
    ("command", "stdout"), [("printf ''", ""), ("printf '\\n\\n'", "\n\n"), ("printf ' '", " ")]
)
def test_b040_nothing_is_added_and_nothing_taken(box: Box, command: str, stdout: str) -> None:
    for more in ({}, {"session": "b040"}, {"encoding": "base64"}):
        answer = box.run(command, **more)
        text = answer["stdout"] if "encoding" not in more else base64.b64decode(answer["stdout"]).decode()
        assert (text, answer["stdout_bytes"], answer["stderr"]) == (stdout, len(stdout), "")
    assert box.sandbox.exec(command).stdout == stdout


SPLIT = """
import os, sys, time
for piece in %r:
    for fd in (1, 2):
        os.write(fd, piece)
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"\xe2", b"\x89", b"\xa4"], "≤"),
        ([b"\xf0", b"\x9f\x98\x80"], "😀"),
        ([b"a\xf0\x9f", b"\x98", b"\x80b"], "a😀b"),
        ([b"end \xe2\x89"], "end \ufffd"),
        ([b"\xe2", b"\x89", b"x"], "\ufffdx"),
    ],
)
def test_b041_a_character_in_pieces_is_one_character(box: Box, pieces: list[bytes], text: str) -> None:
    argv = ["python3", "-c", SPLIT % pieces]
    answer = box.run(argv)
    assert (answer["stdout"], answer["stderr"]) == (text, text)
    streams = {"stdout": "", "stderr": ""}
    for event in box.sandbox.stream(argv):
        if isinstance(event, Output):
            assert "\ufffd" not in event.data or "\ufffd" in text
            streams[event.stream] += event.data
    assert streams == {"stdout": text, "stderr": text}
    result = box.sandbox.exec(argv)
    assert (result.stdout, result.stderr) == (text, text)


def test_b041_long_text_of_wide_characters_on_both_streams(box: Box) -> None:
    script = "import sys\nfor n in range(400):\n for f in (sys.stdout, sys.stderr): f.write('─│┌' * 66 + '┐┘\\n'); f.flush()"
    expected = ("─│┌" * 66 + "┐┘\n") * 400
    argv = ["python3", "-c", script]
    for more in ({}, {"env": {"PYTHONIOENCODING": "utf-8"}}):
        answer = box.run(argv, **{"env": {"PYTHONUTF8": "1"}, **more})
        assert answer["stdout"] == answer["stderr"] == expected
    result = box.sandbox.exec(argv, env={"PYTHONUTF8": "1"})
    assert result.stdout == result.stderr == expected
    small = box.sandbox.exec(argv, env={"PYTHONUTF8": "1"}, max_output_bytes=10_001)
    assert "\ufffd" not in small.stdout and small.stdout_truncated
    assert len(small.stdout.encode()) + small.stdout_truncated == small.stdout_bytes == len(expected.encode())
    cut = box.run(argv, env={"PYTHONUTF8": "1"}, max_output_bytes=10_001)
    assert (
        "\ufffd" not in cut["stdout"]
        and len(cut["stdout"].encode()) + cut["stdout_truncated"] == cut["stdout_bytes"]
    )


@pytest.mark.parametrize(
    ("command", "raw"),
    [
        ("printf 'a\\377\\376b\\000c'", b"a\xff\xfeb\0c"),
        ("printf 'caf\\351 \\374ber'", b"caf\xe9 \xfcber"),
        ("printf '\\355\\240\\200'", b"\xed\xa0\x80"),
        ("printf '\\360\\200\\200\\200\\300\\257'", b"\xf0\x80\x80\x80\xc0\xaf"),
        ("printf '\\364\\220\\200\\200\\000'", b"\xf4\x90\x80\x80\0"),
        ("printf '\\357\\273\\277bom'", b"\xef\xbb\xbfbom"),
        ("printf '\\033[31m\\001\\177\"\\\\'", b'\x1b[31m\x01\x7f"\\'),
    ],
)
def test_b042_bytes_that_are_no_text_cost_nothing_else(box: Box, command: str, raw: bytes) -> None:
    answer = box.post(command)
    document = json.loads(answer.content.decode("utf-8"))
    document["stdout"].encode("utf-8")
    assert document["stdout"] == raw.decode("utf-8", "replace") and document["stdout_bytes"] == len(raw)
    assert base64.b64decode(box.run(command, encoding="base64")["stdout"]) == raw
    assert box.sandbox.exec(command).stdout == raw.decode("utf-8", "replace")
    assert box.sandbox.exec(command, encoding=None).stdout == raw
    with box.channel() as channel:
        channel.start(1, command)
        assert bytes(channel.until(1).stdout) == raw


def test_b042_a_megabyte_of_noise_is_bit_exact(box: Box) -> None:
    result = box.sandbox.exec("head -c 1000000 /dev/urandom | tee /tmp/noise", encoding=None)
    digest = box.out("sha256sum </tmp/noise")[:64]
    assert hashlib.sha256(result.stdout).hexdigest() == digest
    answer = box.run("cat /tmp/noise", encoding="base64")
    assert hashlib.sha256(base64.b64decode(answer["stdout"])).hexdigest() == digest
    answer = box.run("cat /tmp/noise; cat /tmp/noise >&2; rm /tmp/noise")
    assert answer["stdout"] == answer["stderr"] == result.stdout.decode("utf-8", "replace")
    assert answer["exit_code"] == 0


LOOP = "for i in $(seq 1000); do echo o$i; echo e$i >&2; done"


def test_b044_both_streams_are_complete_and_apart(box: Box) -> None:
    out, err = ("".join(f"{letter}{n}\n" for n in range(1, 1001)) for letter in "oe")
    for more in ({}, {"session": "b044"}):
        answer = box.run(LOOP, **more)
        assert (answer["stdout"], answer["stderr"]) == (out, err)
        with box.channel() as channel:  # the offsets are the sequence numbers, and the channel checks them
            channel.start(1, LOOP, **more)
            seen = channel.until(1)
            assert (seen.stdout.decode(), seen.stderr.decode()) == (out, err)
    result = box.sandbox.exec(LOOP)
    assert (result.stdout, result.stderr) == (out, err)


def test_b044_merged_streams_keep_the_order_of_writing(box: Box) -> None:
    both = "".join(f"o{n}\ne{n}\n" for n in range(1, 1001))
    for answer in (
        box.run(LOOP, merge_stderr=True),
        box.run(f"{{ {LOOP}; }} 2>&1"),
        box.run(LOOP, merge_stderr=True, session="b044"),
        box.run(f"exec 2>&1; {LOOP}"),
    ):
        assert (answer["stdout"], answer["stderr"], answer["stderr_bytes"]) == (both, "", 0)
    assert box.sandbox.exec(LOOP, merge_stderr=True).stdout == both


FULL = "import sys; sys.stderr.write('e'*2**21); sys.stdout.write('o'*2**21); print(len(sys.stdin.read()))"
FULL_BACKWARDS = (
    "import sys; sys.stdout.write('o'*2**21); sys.stderr.write('e'*2**21); print(len(sys.stdin.read()))"
)


@pytest.mark.parametrize("script", [FULL, FULL_BACKWARDS])
def test_b045_full_pipes_in_all_directions_do_not_lock(box: Box, script: str) -> None:
    expected = ("o" * 2**21 + "1048576\n", "e" * 2**21)
    began = time.monotonic()
    answer = box.run(["python3", "-c", script], stdin="i" * 2**20)
    assert timed(began) < 2 * SLOW
    assert (answer["stdout"], answer["stderr"]) == expected
    began = time.monotonic()
    result = box.sandbox.exec(["python3", "-c", script], stdin="i" * 2**20)
    assert (result.stdout, result.stderr) == expected and timed(began) < 2 * SLOW
    began = time.monotonic()
    answer = box.run(f'python3 -c "{script}"', stdin="i" * 2**20, session="b045")
    assert (answer["stdout"], answer["stderr"]) == expected and timed(began) < 2 * SLOW
