"""The exec channel without I/O: frames, credit, resuming. Random cuts must neither lose nor double a byte (B051, B053)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandman import frames
from sandman.channel import STDIN_WINDOW, Channel, Ended, Failed, Phase, Started, Stdin
from sandman.errors import BadAnswer, ConnectionLost, NotFound
from sandman.frames import FrameError, OutputFrame
from sandman.models import Gap, Output
from sandman.mux import Mux
from tests.fakes.exec_channel import FakeDaemon, FakeExec


def start(exec_id: str = "a", command: str = "go", **options: Any) -> Channel:
    return Channel(exec_id, ("start", {"id": exec_id, "command": command}), **options)


# Frames


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_frames_round_trip(stream: Any) -> None:
    frame = OutputFrame(stream, 0xFFFFFFFF, 2**40, b"\x00\xff")
    assert frames.decode_output(frames.encode_output(frame)) == frame


def test_stdin_frames_are_as_the_protocol_says() -> None:
    assert frames.encode_stdin(258, b"hi") == b"\x00\x00\x00\x01\x02hi"


@given(st.binary(max_size=64))
def test_any_binary_frame_is_decoded_or_refused(message: bytes) -> None:
    try:
        frame = frames.decode_output(message)
    except FrameError:
        return
    assert frames.encode_output(frame) == message


@given(st.text(max_size=64))
def test_any_text_frame_is_decoded_or_refused(message: str) -> None:
    try:
        frames.decode_control(message)
    except FrameError:
        pass


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.text(max_size=40),
            st.sampled_from(
                [
                    '{"op":"exit","ch":1}',
                    '{"op":"started","ch":1}',
                    '{"op":"gap","ch":1,"stream":"stdout","from":1,"to":9}',
                    '{"op":"error","ch":1,"title":"x"}',
                    '{"op":"stdin_credit","ch":1,"bytes":9}',
                    '{"op":"new","ch":1}',
                ]
            ),
        ),
        max_size=12,
    )
)
def test_a_mux_survives_any_messages(messages: list[bytes | str]) -> None:
    mux = Mux()
    channel = start()
    mux.open(channel)
    mux.connected()
    for message in messages:
        try:
            mux.receive(message)
        except FrameError:
            mux.disconnected()
            mux.connected()
        list(mux.take_outgoing())
    ends = [event for event in channel.events if isinstance(event, Ended | Failed)]
    assert len(ends) <= 1 and channel.over == bool(ends)


# One channel


def test_overlapping_output_is_trimmed_and_a_leap_is_told() -> None:
    channel = start()
    channel.output("stdout", 0, b"abc")
    channel.output("stdout", 1, b"bcd")
    channel.output("stdout", 0, b"abcd")
    channel.output("stdout", 6, b"g")
    assert list(channel.events) == [
        Output("stdout", b"abc", 0),
        Output("stdout", b"d", 3),
        Gap("stdout", 4, 6),
        Output("stdout", b"g", 6),
    ]


def test_bytes_that_the_exit_counts_and_that_never_came_are_a_gap() -> None:
    channel = start()
    channel.output("stdout", 0, b"ab")
    channel.exited({"id": "a", "exit_code": 0, "stdout_bytes": 5})
    events = list(channel.events)
    assert events[1] == Gap("stdout", 2, 5)
    assert isinstance(events[2], Ended) and channel.over


def test_nothing_comes_after_the_end() -> None:
    channel = start()
    channel.exited({"id": "a", "exit_code": 3})
    channel.output("stdout", 0, b"late")
    channel.exited({"id": "a", "exit_code": 4})
    channel.fail(NotFound("late"))
    assert [type(event) for event in channel.events] == [Ended]


def test_a_senseless_exit_is_a_failure_and_no_made_up_code() -> None:
    channel = start()
    channel.exited({"id": "a", "exit_code": "zero"})
    (event,) = channel.events
    assert isinstance(event, Failed) and isinstance(event.error, BadAnswer)


def test_a_start_without_an_answer_is_repeated_and_a_confirmed_one_is_attached_to() -> None:
    channel = start(window=100)
    assert channel.opening() == ("start", {"id": "a", "command": "go", "credit": 100, "overflow": "block"})
    channel.started({"id": "a", "pid": 5})
    channel.output("stderr", 0, b"x" * 30)
    op, members = channel.opening()
    assert op == "attach"
    assert members == {"id": "a", "overflow": "block", "credit": 70, "stdout_offset": 0, "stderr_offset": 30}
    channel.take()
    channel.take()
    assert channel.opening()[1]["credit"] == 100
    assert channel.phase is Phase.RUNNING


def test_credit_is_granted_in_halves_of_the_window() -> None:
    channel = start(window=100)
    channel.output("stdout", 0, b"x" * 49)
    channel.output("stdout", 49, b"x")
    channel.take()
    assert channel.take_credit() == 0
    channel.take()
    assert channel.take_credit() == 50
    assert channel.take_credit() == 0


# Stdin


def test_stdin_waits_for_credit_and_ends_once_a_connection() -> None:
    stdin = Stdin()
    assert stdin.write(b"abcdef") == 6
    stdin.close()
    assert stdin.take() is None and not stdin.take_eof()
    stdin.resumed(0, 4)
    assert (stdin.take(), stdin.take(), stdin.take_eof()) == (b"abcd", None, False)
    stdin.grant(4)
    assert (stdin.take(), stdin.take_eof(), stdin.take_eof()) == (b"ef", True, False)
    stdin.resumed(6, 4)
    assert stdin.take() is None and stdin.take_eof()


def test_stdin_holds_no_more_than_its_window() -> None:
    stdin = Stdin()
    assert stdin.write(b"x" * (STDIN_WINDOW + 5)) == STDIN_WINDOW
    assert stdin.room == 0 and stdin.write(b"y") == 0


def test_stdin_goes_on_behind_what_the_daemon_has() -> None:
    stdin = Stdin()
    stdin.resumed(0, 100)
    stdin.write(b"0123456789")
    assert stdin.take() == b"0123456789"
    assert stdin.resumed(4, 100)
    assert stdin.take() == b"456789"
    assert not stdin.resumed(2, 100), "what was released cannot be sent again"


def test_stdin_to_an_exec_that_others_wrote_to_goes_behind_theirs() -> None:
    stdin = Stdin()
    stdin.write(b"mine")
    assert stdin.resumed(1000, 100)
    assert stdin.take() == b"mine"


def test_a_break_amid_stdin_without_a_count_is_an_error_and_not_a_guess() -> None:
    channel = start()
    channel.started({"id": "a", "stdin_credit": 100})
    channel.stdin.write(b"abc")
    channel.stdin.take()
    channel.started({"id": "a", "stdin_credit": 100})
    last = channel.events[-1]
    assert isinstance(last, Failed) and isinstance(last.error, ConnectionLost) and not last.error.retryable


# The whole, under cuts


class Wire:
    """A client's mux and a model daemon with a connection that can be cut anywhere, losing what is under way."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.mux = Mux()
        self.up: list[str | bytes] = []
        self.down: list[str | bytes] = []
        self.connect()

    def connect(self) -> None:
        self.connection = self.daemon.connect()
        self.up, self.down = [], []
        self.mux.connected()

    def cut(self, arrive_up: int, arrive_down: int) -> None:
        """Only so many of the messages under way still arrive."""
        self.pump_up()
        for message in self.up[:arrive_up]:
            self.connection.receive(message)
        self.down += self.connection.take()
        for message in self.down[:arrive_down]:
            self.mux.receive(message)
        self.mux.disconnected()
        self.connect()

    def pump_up(self) -> None:
        self.up += self.mux.take_outgoing()

    def deliver(self, size: int) -> None:
        self.pump_up()
        for message in self.up:
            self.connection.receive(message)
        self.up = []
        self.connection.step(size)
        self.down += self.connection.take()
        for message in self.down:
            self.mux.receive(message)
        self.down = []


def drain(mux: Mux, channel: Channel, limit: int = 10**9) -> list[Any]:
    taken: list[Any] = []
    while len(taken) < limit and (event := channel.take()) is not None:
        taken.append(event)
    mux.consumed(channel)
    return taken


cuts = st.tuples(st.integers(0, 6), st.integers(0, 6))
steps = st.lists(st.one_of(st.integers(1, 5000), cuts), max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    stdout=st.binary(max_size=20_000),
    stderr=st.binary(max_size=3_000),
    window=st.integers(64, 8192),
    steps=steps,
)
def test_b051_any_cuts_neither_lose_nor_double_a_byte_and_the_end_comes_once(
    stdout: bytes, stderr: bytes, window: int, steps: list[int | tuple[int, int]]
) -> None:
    run = FakeExec(stdout=stdout, stderr=stderr, exit_code=7)
    wire = Wire(FakeDaemon({"go": run}))
    channel = start(window=window)
    wire.mux.open(channel)
    events: list[Any] = []
    for step in steps:
        if isinstance(step, tuple):
            wire.cut(*step)
        else:
            wire.deliver(step)
        events += drain(wire.mux, channel, limit=2)
    for _ in range(2000):
        wire.deliver(997)
        events += drain(wire.mux, channel)
        if channel.over:
            break
    assert b"".join(e.data for e in events if isinstance(e, Output) and e.stream == "stdout") == stdout
    assert b"".join(e.data for e in events if isinstance(e, Output) and e.stream == "stderr") == stderr
    assert [type(e) for e in events if not isinstance(e, Output)] == [Started, Ended]
    assert events[-1].record.exit_code == 7
    assert run.runs == 1


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=50_000), steps=steps)
def test_b051_stdin_arrives_whole_and_once_through_any_cuts(
    data: bytes, steps: list[int | tuple[int, int]]
) -> None:
    run = FakeExec(echo=True)
    wire = Wire(FakeDaemon({"go": run}))
    channel = start()
    wire.mux.open(channel)
    left = memoryview(data)
    events: list[Any] = []

    def feed(size: int) -> None:
        nonlocal left
        if channel.stdin.closed:
            return
        taken = channel.stdin.write(left[:size])
        left = left[taken:]
        if not left:
            channel.stdin.close()
        wire.mux.wrote(channel)

    for step in steps:
        feed(777)
        if isinstance(step, tuple):
            wire.cut(*step)
        else:
            wire.deliver(step)
        events += drain(wire.mux, channel)
    for _ in range(200):
        feed(10_000)
        wire.deliver(60_000)
        events += drain(wire.mux, channel)
        if channel.over:
            break
    assert bytes(run.stdin) == data
    assert b"".join(e.data for e in events if isinstance(e, Output)) == data
    assert isinstance(events[-1], Ended)


@given(held=st.integers(0, 500), total=st.integers(500, 2000))
def test_b053_what_is_no_longer_kept_is_told_as_a_gap_with_its_size(held: int, total: int) -> None:
    run = FakeExec(stdout=bytes(total), endless=True)
    wire = Wire(FakeDaemon({"go": run}))
    channel = start(window=10_000)
    wire.mux.open(channel)
    wire.deliver(max(1, held))
    events = drain(wire.mux, channel)
    position = channel.position("stdout")
    run.kept_from["stdout"] = 500
    run.endless = False
    wire.cut(0, 0)
    for _ in range(10):
        wire.deliver(10_000)
        events += drain(wire.mux, channel)
    gaps = [e for e in events if isinstance(e, Gap)]
    assert gaps == ([Gap("stdout", position, 500)] if position < 500 else [])
    assert (
        sum(len(e.data) for e in events if isinstance(e, Output)) + sum(g.lost_bytes for g in gaps) == total
    )
    assert isinstance(events[-1], Ended)


def test_many_execs_share_a_connection_and_a_reader_that_stops_holds_up_nobody() -> None:
    daemon = FakeDaemon({"slow": FakeExec(stdout=b"s" * 10_000), "fast": FakeExec(stdout=b"f" * 10_000)})
    wire = Wire(daemon)
    slow, fast = start("1", "slow", window=500), start("2", "fast", window=500)
    wire.mux.open(slow)
    wire.mux.open(fast)
    events: list[Any] = []
    for _ in range(100):
        wire.deliver(300)
        events += drain(wire.mux, fast)
    assert isinstance(events[-1], Ended)
    assert sum(len(e.data) for e in slow.events if isinstance(e, Output)) == 500, "no more than its credit"
    for _ in range(100):
        drain(wire.mux, slow)
        wire.deliver(300)
    assert slow.over


def test_an_unknown_exec_is_a_typed_error_of_its_channel_alone() -> None:
    wire = Wire(FakeDaemon({"go": FakeExec(stdout=b"x")}))
    lost, good = Channel("nope", ("attach", {"id": "nope"})), start()
    wire.mux.open(lost)
    wire.mux.open(good)
    for _ in range(5):
        wire.deliver(100)
    (event,) = lost.events
    assert isinstance(event, Failed) and isinstance(event.error, NotFound)
    assert good.over and isinstance(good.events[-1], Ended)


def test_detaching_forgets_what_is_held_and_frees_the_channel() -> None:
    daemon = FakeDaemon({"go": FakeExec(stdout=b"x" * 100, endless=True)})
    wire = Wire(daemon)
    channel = start()
    wire.mux.open(channel)
    wire.deliver(10)
    wire.mux.detach(channel)
    wire.deliver(10)
    assert not wire.mux.busy and not channel.events
    assert wire.connection._channels == {}


def test_an_error_of_a_mere_resize_does_not_end_the_exec() -> None:
    mux = Mux()
    channel = start()
    mux.open(channel)
    mux.connected()
    mux.receive('{"op":"started","ch":1,"id":"a"}')
    mux.receive('{"op":"error","ch":1,"title":"no terminal","status":409}')
    assert not channel.over
    mux.receive('{"op":"error","ch":1,"title":"not started","status":422,"id":"a"}')
    assert channel.over


def test_a_refused_attach_after_a_break_is_an_end() -> None:
    mux = Mux()
    channel = start()
    mux.open(channel)
    mux.connected()
    mux.receive('{"op":"started","ch":1,"id":"a"}')
    mux.disconnected()
    mux.connected()
    mux.receive('{"op":"error","ch":1,"title":"forgotten","status":404}')
    last = channel.events[-1]
    assert isinstance(last, Failed) and isinstance(last.error, NotFound)
