"""Terminals: the keys reach whoever is in the foreground, and a lost caller leaves no orphan that nobody can find."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.integration.cases.box import SLOW, Box, Channel
from tests.service import eventually

SIZE = {"rows": 24, "cols": 80}


@pytest.fixture
def terminal(box: Box) -> Iterator[Channel]:
    with box.channel() as channel:
        channel.start(
            1, ["bash", "--norc", "--noprofile"], pty=SIZE, env={"PS1": "ready> ", "TERM": "dumb"}, id=name()
        )
        channel.until(1, b"ready> ")
        yield channel


counter = iter(range(1000))


def name() -> str:
    return f"b059-{time.monotonic_ns()}-{next(counter)}"


def typed(channel: Channel, keys: bytes, answer: str, seconds: float = 20) -> str:
    """Type and wait until the terminal has shown what `answer` matches."""
    seen = channel.seen[1]
    begin = len(seen.stdout)
    channel.write(1, keys)
    deadline = time.monotonic() + seconds
    while True:
        text = seen.stdout[begin:].decode(errors="replace")
        if re.search(answer, text, re.DOTALL):
            return text
        assert time.monotonic() < deadline and seen.end is None, (text, seen.end)
        channel.step(0.2)


def test_b059_ctrl_c_interrupts_the_foreground_and_the_shell_stays(box: Box, terminal: Channel) -> None:
    for program in ("sleep 100", "cat", "sh -c 'sleep 100; echo never'", "sleep 100 | cat"):
        terminal.write(1, program.encode() + b"\r")
        assert eventually(lambda: box.alive("sleep") or box.alive("cat"), 10)
        time.sleep(0.2)
        typed(terminal, b"\x03", r"\^C.*ready> ")
        assert "130" in typed(terminal, b"echo code $?\r", r"code \d+\r\n.*ready> ")
        assert box.alive("sleep") == box.alive("cat") == []
    typed(terminal, b"echo $((40 + 2))\r", "42\r\n")
    end(terminal, b"exit 7\r", 7)


def test_b059_a_raw_program_reads_the_key_itself(terminal: Channel) -> None:
    program = b"""python3 -c "import tty,sys;tty.setraw(0);print('raw',flush=True);print(repr(sys.stdin.read(1)))"\r"""
    for key, shown in ((b"\x03", r"'\\x03'"), (b"\x04", r"'\\x04'"), (b"\x1a", r"'\\x1a'")):
        typed(terminal, program, r"raw\r?\n")
        typed(terminal, key, shown)
    end(terminal, b"exit\r", 0)


def test_b059_the_size_is_seen_and_follows(terminal: Channel) -> None:
    typed(terminal, b"stty size\r", "24 80\r\n")
    terminal.say("resize", 1, rows=40, cols=132)
    typed(terminal, b"stty size; echo $(tput cols 2>/dev/null)\r", "40 132\r\n")
    typed(terminal, b"trap 'echo size $(stty size)' WINCH; echo set\r", "\nset\r\n")
    terminal.say("resize", 1, rows=50, cols=10)
    typed(terminal, b"\r", "size 50 10\r\n")
    end(terminal, b"exit\r", 0)


def test_b059_end_of_file_ends_the_shell_with_its_code(terminal: Channel) -> None:
    typed(terminal, b"(exit 9)\r", "ready> ")
    end(terminal, b"\x04", 9)


def test_b059_a_closed_socket_detaches_and_the_terminal_can_be_taken_up_again(
    box: Box, terminal: Channel
) -> None:
    started = terminal.seen[1].started
    assert started
    typed(terminal, b"echo $((20 + 3)); sleep 400\r", "23\r\n")
    terminal.close()
    time.sleep(0.5)
    assert len(box.alive("sleep")) == 1
    with box.channel() as channel:
        seen = channel.attach(1, started["id"])
        channel.until(1, b"23\r\n")
        assert seen.started and seen.started["attached"]
        typed(channel, b"\x03", r"\^C.*ready> ")
        typed(channel, b"sleep 400\r", "sleep 400\r\n")
    # As it is documented: whoever does not come back sends HUP to the tree, and nothing is left.
    assert eventually(lambda: len(box.alive("sleep")) == 1, 10)
    assert box.signal(started["id"], "HUP").json()["signalled"] in (
        1,
        2,
    )  # the shell may end by the HUP of its job first
    assert box.record(started["id"], wait=20)["signal"] == 1
    assert box.alive("sleep") == []


def test_b059_the_client_and_plain_http_have_terminals_too(box: Box) -> None:
    handle = box.sandbox.start(["bash", "--norc"], pty=(30, 100), env={"PS1": "$ "})
    handle.write("stty size; sleep 100\r")
    text = ""
    for event in handle:
        text += getattr(event, "data", "")
        if "30 100\r\n" in text:
            break
    assert eventually(lambda: box.alive("sleep"), 10)
    handle.write("\x03")
    handle.resize(31, 101)
    handle.write("stty size; exit 3\r")
    result = handle.wait()
    assert result.exit_code == 3 and "31 101\r\n" in result.stdout
    assert box.alive("sleep") == []
    answer = box.run("stty size; test -t 0 && test -t 1 && test -t 2; echo $?", pty={"rows": 5, "cols": 6})
    assert (answer["stdout"], answer["stderr"], answer["exit_code"]) == ("5 6\r\n0\r\n", "", 0)
    assert box.run("cat", pty=SIZE, stdin="typed\n", timeout_seconds=10 * SLOW)["exit_code"] == 0


def end(channel: Channel, keys: bytes, code: int) -> None:
    channel.write(1, keys)
    seen = channel.until(1)
    assert seen.end and (seen.end["exit_code"], seen.end["signal"]) == (code, None), seen.end
