"""A model of the daemon's side of the exec channel, without I/O and without processes: what the real one must do, in little.

An exec's output is given beforehand. Connections come and go; each holds its own channels and credit, and everything else
belongs to the exec, as in the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sandman.frames import OutputFrame, decode_control, encode_control, encode_output
from sandman.models import STREAMS, Stream

STDIN_WINDOW = 256 * 1024


@dataclass
class FakeExec:
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    kept_from: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    """The spool's first offset: what lies before is gone."""
    echo: bool = False
    """Writes what it reads, and ends at end of file."""
    stdin: bytearray = field(default_factory=bytearray)
    eof: bool = False
    runs: int = 0
    signals: list[str] = field(default_factory=list)
    endless: bool = False

    def data(self, stream: Stream) -> bytes:
        return self.stdout if stream == "stdout" else self.stderr

    @property
    def ended(self) -> bool:
        return not self.endless and (not self.echo or self.eof)


@dataclass
class FakeChannel:
    exec_id: str
    offsets: dict[Stream, int]
    credit: int
    told: bool = False


class FakeDaemon:
    """All execs, by id. `programs` decides what a command does; the default prints nothing and exits 0."""

    def __init__(self, programs: dict[str, FakeExec] | None = None) -> None:
        self.programs = programs or {}
        self.execs: dict[str, FakeExec] = {}

    def connect(self) -> FakeConnection:
        return FakeConnection(self)


class FakeConnection:
    def __init__(self, daemon: FakeDaemon) -> None:
        self._daemon = daemon
        self._channels: dict[int, FakeChannel] = {}
        self._out: list[str | bytes] = []

    def receive(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            number = int.from_bytes(message[1:5], "big")
            channel = self._channels.get(number)
            if channel is not None:
                self._stdin(number, channel, message[5:])
            return
        op, members = decode_control(message)
        number = members.get("ch", 0)
        if op in ("start", "attach"):
            self._open(op, number, members)
            return
        if op == "ping":
            self._say("pong", {})
            return
        channel = self._channels.get(number)
        if channel is None:
            return
        run = self._daemon.execs[channel.exec_id]
        if op == "credit":
            channel.credit += members["bytes"]
        elif op == "eof":
            run.eof = True
        elif op == "detach":
            del self._channels[number]
        elif op == "signal":
            run.signals.append(members["signal"])
            if members["signal"] == "KILL":
                run.endless, run.echo, run.exit_code = False, False, 137

    def _open(self, op: str, number: int, members: dict[str, Any]) -> None:
        exec_id = members["id"]
        run = self._daemon.execs.get(exec_id)
        attached = run is not None
        if run is None:
            if op == "attach":
                self._say(
                    "error",
                    {
                        "ch": number,
                        "type": "urn:sandman:problem:not-found",
                        "title": "no such exec",
                        "status": 404,
                    },
                )
                return
            run = self._daemon.programs.get(members.get("command", ""), FakeExec())
            run.runs += 1
            self._daemon.execs[exec_id] = run
        offsets: dict[Stream, int] = {stream: members.get(f"{stream}_offset", 0) for stream in STREAMS}
        self._channels[number] = FakeChannel(exec_id, offsets, members["credit"])
        self._say(
            "started",
            {
                "ch": number,
                "id": exec_id,
                "pid": 7,
                "attached": attached,
                "stdin_offset": len(run.stdin),
                "stdin_credit": STDIN_WINDOW,
            },
        )

    def _stdin(self, number: int, channel: FakeChannel, data: bytes) -> None:
        run = self._daemon.execs[channel.exec_id]
        run.stdin += data
        if run.echo:
            run.stdout += data
        self._say("stdin_credit", {"ch": number, "bytes": len(data)})

    def step(self, size: int = 1000) -> bool:
        """Make one message per channel, within its credit; whether any was made."""
        before = len(self._out)
        for number, channel in list(self._channels.items()):
            self._advance(number, channel, self._daemon.execs[channel.exec_id], size)
        return len(self._out) > before

    def _advance(self, number: int, channel: FakeChannel, run: FakeExec, size: int) -> None:
        for stream in STREAMS:
            offset, data = channel.offsets[stream], run.data(stream)
            if offset < run.kept_from[stream]:
                self._say(
                    "gap", {"ch": number, "stream": stream, "from": offset, "to": run.kept_from[stream]}
                )
                channel.offsets[stream] = run.kept_from[stream]
                return
            part = data[offset : offset + min(size, channel.credit)]
            if part:
                channel.offsets[stream] += len(part)
                channel.credit -= len(part)
                self._out.append(encode_output(OutputFrame(stream, number, offset, part)))
                return
        if run.ended and all(channel.offsets[stream] >= len(run.data(stream)) for stream in STREAMS):
            del self._channels[number]
            self._say(
                "exit",
                {
                    "ch": number,
                    "id": channel.exec_id,
                    "state": "exited",
                    "exit_code": run.exit_code,
                    "stdout_bytes": len(run.stdout),
                    "stderr_bytes": len(run.stderr),
                },
            )

    def take(self) -> list[str | bytes]:
        out, self._out = self._out, []
        return out

    def _say(self, op: str, members: dict[str, Any]) -> None:
        self._out.append(encode_control(op, members))
