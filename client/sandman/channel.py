"""One exec on the exec channel, without I/O: what has been received, what may be sent, and how to go on after a break.

The facts that make resuming exact live here. Output carries absolute offsets, so a frame that overlaps what is already held
is trimmed and one that leaps ahead becomes a `Gap`; a command is only ever started under the id that was chosen before the
first try, so a start whose answer was lost is repeated safely; stdin is kept until the daemon has said that it took it. The
end is the `exit` message alone: a broken connection changes nothing here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from sandman.errors import BadAnswer, ConnectionLost, SandmanError
from sandman.frames import STDIN_PAYLOAD_MAX
from sandman.models import STREAMS, ExecRecord, Gap, Output, Stream

WINDOW = 1024 * 1024
"""Output bytes in flight per exec: 10 ms of a fast local stream; a thousand idle execs cost nothing."""
STDIN_WINDOW = 256 * 1024
"""What the daemon lets be under way to a command that does not read; so much is held here until it has passed it on."""


@dataclass(frozen=True, slots=True)
class Started:
    pid: int | None
    attached: bool


@dataclass(frozen=True, slots=True)
class Ended:
    record: ExecRecord


@dataclass(frozen=True, slots=True)
class Failed:
    """No result will come: the exec did not start, or its end could not be learned."""

    error: SandmanError


Event = Started | Output[bytes] | Gap | Ended | Failed
Control = tuple[str, dict[str, Any]]


class Phase(Enum):
    NEW = "new"
    """The daemon has not confirmed it: a new connection repeats the opening message."""
    RUNNING = "running"
    """Confirmed: a new connection attaches by id from the offsets held."""
    OVER = "over"


class Stdin:
    """Bytes on their way to the command, by absolute offset, kept until the daemon has taken them."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._base = 0  # offset of the first byte held: all before it were taken
        self._sent = 0
        self._limit = 0  # offset up to which the daemon has given credit
        self._begun = False
        self._eof = False
        self._eof_sent = False

    @property
    def room(self) -> int:
        return max(0, STDIN_WINDOW - len(self._buffer))

    @property
    def closed(self) -> bool:
        return self._eof

    def write(self, data: bytes | memoryview) -> int:
        """Take as much as there is room for; how much that was."""
        accepted = min(len(data), self.room)
        self._buffer += data[:accepted]
        return accepted

    def close(self) -> None:
        self._eof = True

    def resumed(self, offset: int | None, credit: int) -> bool:
        """A (new) connection stands and the daemon has `offset` bytes. False: some bytes can no longer be accounted for."""
        if offset is None:
            # Without the daemon's count, going on is exact only when nothing can be in between.
            if self._sent != self._base:
                return False
            offset = self._base
        if not self._begun:
            # An exec that others have written to before: what is held here goes behind theirs.
            self._begun = True
            self._base = offset
        if not self._base <= offset <= self._base + len(self._buffer):
            return False
        self._release(offset)
        self._sent = offset
        self._limit = offset + credit
        self._eof_sent = False
        return True

    def grant(self, count: int) -> None:
        self._limit += count
        # The daemon grants anew what it has passed on, so all but one window of what was ever granted has arrived.
        self._release(min(self._limit - STDIN_WINDOW, self._sent))

    def take(self) -> bytes | None:
        """The next payload to send, within the credit."""
        start = self._sent - self._base
        size = min(len(self._buffer) - start, self._limit - self._sent, STDIN_PAYLOAD_MAX)
        if size <= 0:
            return None
        self._sent += size
        return bytes(memoryview(self._buffer)[start : start + size])

    def take_eof(self) -> bool:
        """True once a connection, when everything has been sent and the end was asked for."""
        if not self._eof or self._eof_sent or self._sent != self._base + len(self._buffer):
            return False
        self._eof_sent = True
        return True

    def _release(self, offset: int) -> None:
        if offset > self._base:
            del self._buffer[: offset - self._base]
            self._base = offset


class Channel:
    """One exec as this client sees it. Made with the message that opens it: `start` or `attach`."""

    def __init__(
        self,
        exec_id: str,
        opening: Control,
        *,
        window: int = WINDOW,
        offsets: dict[Stream, int] | None = None,
        overflow: str = "block",
    ) -> None:
        self.exec_id = exec_id
        self.number = 0  # given by the connection that carries it
        self.phase = Phase.NEW
        self.stdin = Stdin()
        self.events: deque[Event] = deque()
        self._opening = opening
        self._unconfirmed = False
        self._overflow = overflow
        self._window = window
        self._held = 0  # bytes in `events`
        self._owed = 0  # bytes taken by the reader and not yet granted anew
        self._positions: dict[Stream, int] = {"stdout": 0, "stderr": 0, **(offsets or {})}

    @property
    def over(self) -> bool:
        return self.phase is Phase.OVER

    def position(self, stream: Stream) -> int:
        """Offset of the next byte expected."""
        return self._positions[stream]

    def opening(self) -> Control:
        """What a new connection has to say first. Repeating it is safe: it names the same id and asks for nothing held."""
        credit = max(0, self._window - self._held)
        self._owed = 0
        if self.phase is Phase.NEW:
            op, members = self._opening
        else:
            op, members = "attach", {"id": self.exec_id}
        if op == "attach":
            members = members | {f"{stream}_offset": self._positions[stream] for stream in STREAMS}
        self._unconfirmed = True
        return op, {**members, "credit": credit, "overflow": self._overflow}

    # What arrives

    def started(self, members: dict[str, Any]) -> None:
        first = self.phase is Phase.NEW
        if self.over:
            return
        self.phase = Phase.RUNNING
        self._unconfirmed = False
        credit = members.get("stdin_credit")
        offset = members.get("stdin_offset")
        if not self.stdin.resumed(
            offset if isinstance(offset, int) else None, credit if isinstance(credit, int) else 0
        ):
            self.fail(
                ConnectionLost(
                    f"the connection broke while stdin of exec {self.exec_id} was on its way, and how much of it arrived is unknown",
                    retryable=False,
                )
            )
        elif first:
            pid = members.get("pid")
            self.events.append(
                Started(pid if isinstance(pid, int) else None, bool(members.get("attached", False)))
            )

    def output(self, stream: Stream, offset: int, data: bytes) -> None:
        if self.over:
            return
        expected = self._positions[stream]
        if offset < expected:
            data = data[expected - offset :]
            offset = expected
        elif offset > expected:
            # Nobody announced it, yet the bytes between are not here: the reader has to know.
            self.events.append(Gap(stream, expected, offset))
        if not data:
            return
        self._positions[stream] = offset + len(data)
        self._held += len(data)
        self.events.append(Output(stream, data, offset))

    def gap(self, stream: Stream, start: int, end: int) -> None:
        start = max(start, self._positions[stream])
        if self.over or end <= start:
            return
        self._positions[stream] = end
        self.events.append(Gap(stream, start, end))

    def exited(self, members: dict[str, Any]) -> None:
        """The one end. Bytes that the counts name and that never came are told as a gap before it."""
        if self.over:
            return
        try:
            record = msgspec.convert(members, ExecRecord)
        except msgspec.ValidationError as error:
            self.fail(BadAnswer(f"an exit message that makes no sense: {error}"))
            return
        for stream in STREAMS:
            self.gap(stream, self._positions[stream], record.total(stream))
        self.phase = Phase.OVER
        self.events.append(Ended(record))

    def refused(self, error: SandmanError, concerns_exec: bool) -> None:
        """An error message: of the opening or of the exec itself it is the end; of a mere signal or resize it is not."""
        if self._unconfirmed or concerns_exec:
            self.fail(error)

    def fail(self, error: SandmanError) -> None:
        if not self.over:
            self.phase = Phase.OVER
            self.events.append(Failed(error))

    # What the reader takes

    def take(self) -> Event | None:
        if not self.events:
            return None
        event = self.events.popleft()
        if isinstance(event, Output):
            self._held -= len(event.data)
            self._owed += len(event.data)
        return event

    def take_credit(self) -> int:
        """Credit to grant now: in halves of the window, so that a stream costs two control frames a megabyte."""
        if self.over or self._owed < self._window // 2:
            return 0
        owed, self._owed = self._owed, 0
        return owed

    def forget(self) -> None:
        """The reader is gone: whatever is held goes too."""
        self.phase = Phase.OVER
        self.events.clear()
        self._held = 0
