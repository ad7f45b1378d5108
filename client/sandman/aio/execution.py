"""One command: its events as they come, its stdin, signals, and its result.

An exec is read by one reader. What is read is decoded (one decoder a stream) and also captured up to `max_output_bytes` for
the result. Reading is what grants the daemon credit: a command whose reader is slow waits, and holds no memory here.
"""

from __future__ import annotations

import asyncio
import os
from codecs import IncrementalDecoder
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, AnyStr, Generic, Self, cast

from sandman.channel import Channel, Ended, Failed, Started
from sandman.errors import ClosedError, MisuseError, SandmanError, StdinClosed
from sandman.models import STREAMS, ExecRecord, ExecResult, Exit, Gap, Output, Stream, Usage
from sandman.output import Capture, Kept, decoder_for

if TYPE_CHECKING:
    from sandman.aio.sandbox import AsyncSandbox


class AsyncExec(Generic[AnyStr]):
    """A command that was started or attached to. Made by `start`, `stream` and `attach` of a sandbox.

    `async for event in exec` gives Output, Gap and at last Exit. `wait()` reads the rest and gives the result. Leaving
    `async with` (or dropping the object) kills a command begun by `stream`, and only stops following any other.
    """

    def __init__(
        self,
        sandbox: AsyncSandbox,
        channel: Channel,
        *,
        encoding: str | None,
        capture_bytes: int,
        owned: bool,
        attached: bool = False,
    ) -> None:
        self.sandbox = sandbox
        self.id = channel.exec_id
        self.pid: int | None = None
        """Inside the sandbox; None until it has started."""
        self._channel = channel
        self._encoding = encoding
        self._decoders: dict[Stream, IncrementalDecoder] = (
            {} if encoding is None else {stream: decoder_for(encoding) for stream in STREAMS}
        )
        self._captures: dict[Stream, Capture] = {stream: Capture(capture_bytes) for stream in STREAMS}
        self._ready: deque[Output[AnyStr] | Gap | Exit[AnyStr]] = deque()
        self._owned = owned
        self._attached = attached
        self._begun = False
        self._reading = False
        self._closed = False
        self._result: ExecResult[AnyStr] | None = None
        self._error: SandmanError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()

    @property
    def result(self) -> ExecResult[AnyStr] | None:
        """None until its Exit has been read."""
        return self._result

    # Reading

    async def begin(self) -> None:
        """Start (or attach) and wait until the daemon has confirmed it. Raises ExecStartError when it cannot be started.

        Only `stream()` leaves this to the first read; calling it again does nothing. Cancelled, it leaves nothing running.
        """
        if self._begun:
            if self._error is not None and not self._ready:
                raise self._error
            return
        self._begun = True
        self.sandbox._check_usable()
        self._loop = asyncio.get_running_loop()
        self.sandbox._link.open(self._channel)
        try:
            await self.sandbox._link.wait(self._channel)
            self._pump()
        except BaseException:
            self._closed = True
            abandon(self.sandbox, self._channel, not self._attached)
            raise
        if self._error is not None and not self._ready:
            raise self._error

    async def next_events(self) -> list[Output[AnyStr] | Gap | Exit[AnyStr]]:
        """All events that are here, waiting for at least one; an empty list after the Exit. Cancellable without loss."""
        await self.begin()
        self._check_reader()
        self._reading = True
        try:
            while not self._ready:
                if self._result is not None:
                    return []
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise ClosedError("this exec is no longer followed; attach() to its id")
                await self.sandbox._link.wait(self._channel)
                self._pump()
        finally:
            self._reading = False
        events = list(self._ready)
        self._ready.clear()
        return events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output[AnyStr] | Gap | Exit[AnyStr]:
        if not self._ready:
            events = await self.next_events()
            if not events:
                raise StopAsyncIteration
            self._ready.extend(events)
        return self._ready.popleft()

    async def wait(self) -> ExecResult[AnyStr]:
        """Read to the end; the result. Its output holds everything read of this object, also by iterating, up to the limit."""
        while self._result is None:
            await self.next_events()
        return self._result

    def _check_reader(self) -> None:
        if self._reading:
            raise MisuseError(f"exec {self.id} is already being read by another task")

    def _pump(self) -> None:
        """Move what the channel holds into ready events."""
        while (event := self._channel.take()) is not None:
            match event:
                case Started(pid=pid):
                    self.pid = pid
                case Output(stream=stream, data=data, offset=offset):
                    self._captures[stream].add(data)
                    self._add_output(stream, data, offset)
                case Gap(stream=stream, start=start, end=end):
                    self._flush(stream, start)
                    self._captures[stream].skip(end - start)
                    self._ready.append(event)
                case Ended(record=record):
                    for stream in STREAMS:
                        self._flush(stream, self._channel.position(stream))
                    self._result = self._result_of(record)
                    self._ready.append(Exit(self._result))
                case Failed(error=error):
                    self._error = error
        self.sandbox._link.consumed(self._channel)

    def _add_output(self, stream: Stream, data: bytes, offset: int) -> None:
        if self._encoding is None:
            self._ready.append(Output(stream, cast(Any, data), offset))
            return
        decoder = self._decoders[stream]
        pending = len(decoder.getstate()[0])
        text = decoder.decode(data)
        if text:
            self._ready.append(Output(stream, cast(Any, text), offset - pending))

    def _flush(self, stream: Stream, offset: int) -> None:
        """A character that was cut off for good becomes one U+FFFD."""
        if self._encoding is None:
            return
        decoder = self._decoders[stream]
        pending = len(decoder.getstate()[0])
        text = decoder.decode(b"", final=True)
        decoder.reset()
        if text:
            self._ready.append(Output(stream, cast(Any, text), offset - pending))

    def _result_of(self, record: ExecRecord) -> ExecResult[AnyStr]:
        kept = {stream: self._captures[stream].finish() for stream in STREAMS}
        return result_from(record, kept, self._encoding)

    # Acting on it

    async def write(self, data: bytes | str) -> None:
        """Send to its stdin; waits while the command does not read. Needs stdin=True. Cancellable: a prefix may be sent.

        Raises StdinClosed when the command is over or its stdin has been closed from here.
        """
        await self.begin()
        view = memoryview(data.encode() if isinstance(data, str) else data)
        while view:
            if self._channel.over or self._closed or self._channel.stdin.closed:
                raise StdinClosed(f"stdin of exec {self.id} is closed")
            taken = self._channel.stdin.write(view)
            if taken:
                view = view[taken:]
                self.sandbox._link.wrote(self._channel)
            else:
                await self.sandbox._link.wait_room(self._channel)

    async def close_stdin(self) -> None:
        """End of file on its stdin, after everything written. Does nothing when it is over or closed."""
        await self.begin()
        self._channel.stdin.close()
        self.sandbox._link.wrote(self._channel)

    async def signal(self, name: str = "TERM", scope: str = "tree") -> bool:
        """Send a signal to the command: `scope` process, group or tree. False when it had ended. Not retried blindly."""
        await self.begin()
        return await self.sandbox.signal(self.id, name, scope)

    async def kill(self) -> bool:
        """KILL its whole tree. False when it had ended. The result still comes, as the last event."""
        return await self.signal("KILL", "tree")

    async def resize(self, rows: int, cols: int) -> None:
        """Tell its terminal's new size. Does nothing while the connection is down or without a terminal."""
        await self.begin()
        self.sandbox._link.resize(self._channel, rows, cols)

    async def detach(self) -> None:
        """Stop following; the command goes on, and `sandbox.attach(id)` comes back to it. Idempotent."""
        self._owned = False
        await self.aclose()

    async def aclose(self) -> None:
        """Give up the object: kills the command if `stream` began it, else only stops following. Does not wait. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._abandon()

    def _abandon(self) -> None:
        if not self._begun or self._channel.over:
            return
        abandon(self.sandbox, self._channel, self._owned)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Dropped while open: the same as closing it, wherever the collector happens to run. Never in a forked child.
        if (
            getattr(self, "_closed", True)
            or self._loop is None
            or self._channel.over
            or os.getpid() != self._process
        ):
            return
        self._closed = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(abandon, self.sandbox, self._channel, self._owned)

    def __repr__(self) -> str:
        state = "ended" if self._result is not None else "open" if self._begun else "not started"
        return f"<{type(self).__name__} {self.id} {state}>"


def abandon(sandbox: AsyncSandbox, channel: Channel, kill: bool) -> None:
    if kill:
        sandbox._kill_now(channel)
    else:
        sandbox._link.detach(channel)


def result_from(record: ExecRecord, kept: dict[Stream, Kept], encoding: str | None) -> ExecResult[AnyStr]:
    """The result of a record with the output that was kept of it."""

    def shown(stream: Stream) -> tuple[Any, int]:
        value, missing = kept[stream].joined() if encoding is None else kept[stream].text(encoding)
        # An attach from an offset never saw what lies before it: that is not in the result either.
        before = (
            record.total(stream)
            - sum(map(len, (kept[stream].head, kept[stream].tail)))
            - kept[stream].dropped
        )
        return value, missing + max(0, before)

    (stdout, stdout_missing), (stderr, stderr_missing) = shown("stdout"), shown("stderr")
    return ExecResult(
        id=record.id,
        exit_code=record.exit_code,
        signal=record.signal,
        timed_out=record.timed_out,
        oom_killed=record.oom_killed,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=record.stdout_bytes,
        stderr_bytes=record.stderr_bytes,
        stdout_truncated=stdout_missing,
        stderr_truncated=stderr_missing,
        usage=record.usage or Usage(),
        started_at=record.started_at,
        ended_at=record.ended_at,
        session_new=record.session_new,
        session_ended=record.session_ended,
    )
