"""Many execs on one connection, without I/O: bytes in, messages to send, and which channel has news.

A shell around it (`sandman.aio.link`) moves the messages. It calls `connected()` for each new connection, `receive()` for
each message, `disconnected()` when the connection breaks, and sends what `take_outgoing()` gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from sandman import frames
from sandman.channel import Channel, Phase
from sandman.errors import SandmanError
from sandman.frames import FrameError
from sandman.models import Stream
from sandman.problem import error_from_problem


class Mux:
    def __init__(self) -> None:
        self.online = False
        self._channels: dict[int, Channel] = {}
        self._outgoing: deque[str] = deque()
        self._writers: dict[int, Channel] = {}
        self._last_number = 0

    @property
    def channels(self) -> list[Channel]:
        return list(self._channels.values())

    @property
    def busy(self) -> bool:
        return bool(self._channels)

    # The connection

    def connected(self) -> None:
        """A new connection stands: every open channel is opened on it anew."""
        self.online = True
        self._outgoing.clear()
        self._writers.clear()
        for channel in self._channels.values():
            self._say_opening(channel)

    def disconnected(self) -> None:
        self.online = False
        self._outgoing.clear()
        self._writers.clear()

    def take_outgoing(self) -> Iterator[str | bytes]:
        """Messages to send now. Stdin is cut as it is taken, one frame of each exec in turn, so that none waits long."""
        while self.online:
            if self._outgoing:
                yield self._outgoing.popleft()
                continue
            if not self._writers:
                return
            number, channel = next(iter(self._writers.items()))
            del self._writers[number]
            payload = channel.stdin.take()
            if payload is not None:
                self._writers[number] = channel
                yield frames.encode_stdin(number, payload)
            elif channel.stdin.take_eof():
                yield frames.encode_control("eof", {"ch": number})

    @property
    def has_outgoing(self) -> bool:
        return self.online and bool(self._outgoing or self._writers)

    def receive(self, message: str | bytes) -> Channel | None:
        """Take one message; the channel that has news by it. Raises FrameError when the peer is not one of ours."""
        if isinstance(message, bytes):
            frame = frames.decode_output(message)
            channel = self._channels.get(frame.channel)
            if channel is not None:
                channel.output(frame.stream, frame.offset, frame.data)
            return channel
        op, members = frames.decode_control(message)
        number = members.pop("ch", None)
        if op == "error" and number is None:
            raise FrameError(f"the service ended the connection: {error_from_problem(members)}")
        channel = self._channels.get(number) if isinstance(number, int) else None
        # Unknown ops are passed over: a newer service may say more than this client knows.
        if channel is not None:
            self._control(channel, op, members)
        return channel

    def _control(self, channel: Channel, op: str, members: dict[str, Any]) -> None:
        if op == "started":
            channel.started(members)
            self._writers[channel.number] = channel
        elif op == "exit":
            channel.exited(members)
        elif op == "gap":
            channel.gap(stream_of(members), whole(members, "from"), whole(members, "to"))
        elif op == "stdin_credit":
            channel.stdin.grant(whole(members, "bytes"))
            self._writers[channel.number] = channel
        elif op == "error":
            channel.refused(error_from_problem(members), "id" in members)
        if channel.over:
            self._channels.pop(channel.number, None)
            self._writers.pop(channel.number, None)

    # The execs

    def open(self, channel: Channel) -> None:
        # Numbers are never used twice on one connection: a late frame of a closed channel finds nobody.
        self._last_number = self._last_number % 0x7FFFFFFF + 1
        while self._last_number in self._channels:
            self._last_number += 1
        channel.number = self._last_number
        self._channels[channel.number] = channel
        if self.online:
            self._say_opening(channel)

    def wrote(self, channel: Channel) -> None:
        """Stdin has been written or closed."""
        if channel.number in self._channels and channel.phase is Phase.RUNNING:
            self._writers[channel.number] = channel

    def consumed(self, channel: Channel) -> None:
        """The reader took events: grant credit for them when it is time."""
        if self.online and channel.number in self._channels:
            credit = channel.take_credit()
            if credit:
                self._say("credit", {"ch": channel.number, "bytes": credit})

    def signal(self, channel: Channel, name: str, scope: str) -> bool:
        """Queue a signal. False when the connection is down: then it has to go by HTTP."""
        return self._tell(channel, "signal", {"signal": name, "scope": scope})

    def resize(self, channel: Channel, rows: int, cols: int) -> bool:
        return self._tell(channel, "resize", {"rows": rows, "cols": cols})

    def detach(self, channel: Channel) -> None:
        """Stop following; the command goes on. Nothing more comes from this channel."""
        self._tell(channel, "detach", {})
        self._channels.pop(channel.number, None)
        self._writers.pop(channel.number, None)
        channel.forget()

    def fail(self, channel: Channel, error: SandmanError) -> None:
        """End the channel from this side; what it holds can still be read."""
        channel.fail(error)
        self._channels.pop(channel.number, None)
        self._writers.pop(channel.number, None)

    def ping(self) -> None:
        if self.online:
            self._say("ping", {})

    def _tell(self, channel: Channel, op: str, members: dict[str, Any]) -> bool:
        if not self.online or self._channels.get(channel.number) is not channel:
            return False
        self._say(op, {"ch": channel.number, **members})
        return True

    def _say_opening(self, channel: Channel) -> None:
        op, members = channel.opening()
        self._say(op, {"ch": channel.number, **members})

    def _say(self, op: str, members: dict[str, Any]) -> None:
        self._outgoing.append(frames.encode_control(op, members))


def stream_of(members: dict[str, Any]) -> Stream:
    stream = members.get("stream")
    if stream == "stdout":
        return "stdout"
    if stream == "stderr":
        return "stderr"
    raise FrameError(f"an unknown stream: {stream!r}")


def whole(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FrameError(f"{name} is not a count: {value!r}")
    return value
