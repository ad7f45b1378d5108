"""The part of a sandbox that runs commands: exec, start, stream, attach, and what can be done to one by its id."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import msgspec

from sandman.aio.collecting import describe, feed, follow
from sandman.aio.execution import AsyncExec
from sandman.aio.http import segment
from sandman.aio.link import Link
from sandman.channel import Channel
from sandman.errors import CommandFailed
from sandman.models import ExecRecord, ExecResult
from sandman.options import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Command,
    ExecOptions,
    StartOptions,
    check_callbacks,
    refuse_content_as_stdin,
    refuse_unknown,
    start_body,
)
from sandman.retry import RetryPolicy

if TYPE_CHECKING:
    from sandman.aio.client import AsyncClient
    from sandman.aio.sandbox import AsyncSandbox

T = TypeVar("T")

KILL_SECONDS = 10.0
"""How long the kill of a command that was given up is tried, when the connection is down."""


class ExecList(msgspec.Struct):
    items: list[ExecRecord]
    next: str | None = None


class Signalled(msgspec.Struct):
    signalled: int
    """How many processes."""


class Commands:
    """Base of AsyncSandbox, which has the record, the lease and the files."""

    client: AsyncClient
    _prefix: str
    _link: Link
    _closed: bool

    @overload
    async def exec(
        self, command: Command, *, encoding: str = "utf-8", **options: Unpack[ExecOptions]
    ) -> ExecResult[str]: ...
    @overload
    async def exec(
        self, command: Command, *, encoding: None, **options: Unpack[ExecOptions]
    ) -> ExecResult[bytes]: ...
    async def exec(
        self, command: Command, *, encoding: str | None = "utf-8", **options: Unpack[ExecOptions]
    ) -> ExecResult[Any]:
        """Run a command to its end. A non-zero exit, a time-out or a kill is a result; see ExecOptions for the options.

        Survives broken connections: it resumes by offset, and never runs twice. Cancelled (or left by an exception of a
        callback), it kills the command with its whole tree. Raises ExecStartError, SandboxLost, ConnectionLost, … and
        CommandFailed with check=True.
        """
        refuse_unknown("exec", options, ExecOptions, "encoding")
        check_callbacks(options)
        stdin = options.get("stdin")
        handle: AsyncExec[Any] = self._make(command, encoding, options, stdin=stdin is not None, owned=True)
        feeding: asyncio.Task[None] | None = None
        try:
            if stdin is not None:
                feeding = asyncio.create_task(feed(handle, stdin))
            result = await follow(handle, options, feeding)
        finally:
            if feeding is not None:
                feeding.cancel()
            await handle.aclose()
        if options.get("check") and not result.ok:
            raise CommandFailed(describe(command, result), result=result)
        return result

    @overload
    async def start(
        self,
        command: Command,
        *,
        encoding: str = "utf-8",
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        **options: Unpack[StartOptions],
    ) -> AsyncExec[str]: ...
    @overload
    async def start(
        self,
        command: Command,
        *,
        encoding: None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        **options: Unpack[StartOptions],
    ) -> AsyncExec[bytes]: ...
    async def start(
        self,
        command: Command,
        *,
        encoding: str | None = "utf-8",
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        **options: Unpack[StartOptions],
    ) -> AsyncExec[Any]:
        """Start a command; its handle, once it runs. Dropping the handle does not end the command.

        stdin=True opens its stdin for `write`; pty=(rows, cols) gives it a terminal. background=True is for what is to
        outlive the caller: it never waits for a reader of its output, of which the spool then keeps a bounded part.
        Cancelled, it kills what it started. Raises ExecStartError.
        """
        refuse_unknown("start", options, StartOptions, "encoding", "stdin", "pty", "background")
        refuse_content_as_stdin("start", stdin)
        handle: AsyncExec[Any] = self._make(
            command,
            encoding,
            options,
            stdin=stdin or pty is not None,
            owned=False,
            pty=pty,
            background=background,
        )
        await handle.begin()
        return handle

    @overload
    def stream(
        self,
        command: Command,
        *,
        encoding: str = "utf-8",
        stdin: bool = False,
        **options: Unpack[StartOptions],
    ) -> AsyncExec[str]: ...
    @overload
    def stream(
        self, command: Command, *, encoding: None, stdin: bool = False, **options: Unpack[StartOptions]
    ) -> AsyncExec[bytes]: ...
    def stream(
        self,
        command: Command,
        *,
        encoding: str | None = "utf-8",
        stdin: bool = False,
        **options: Unpack[StartOptions],
    ) -> AsyncExec[Any]:
        """A command as an async iterator of events, begun by the first read. Leaving or dropping it kills the command."""
        refuse_unknown("stream", options, StartOptions, "encoding", "stdin")
        refuse_content_as_stdin("stream", stdin)
        return self._make(command, encoding, options, stdin=stdin, owned=True)

    @overload
    async def attach(
        self,
        exec_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        encoding: str = "utf-8",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> AsyncExec[str]: ...
    @overload
    async def attach(
        self,
        exec_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        encoding: None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> AsyncExec[bytes]: ...
    async def attach(
        self,
        exec_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        encoding: str | None = "utf-8",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> AsyncExec[Any]:
        """Follow a command that was started before, from these offsets; also one that has ended. Never runs anything.

        Output that is no longer kept comes as a Gap. Raises NotFound for an unknown id, ValidationError for an offset
        beyond the end.
        """
        channel = Channel(
            exec_id, ("attach", {"id": exec_id}), offsets={"stdout": stdout_offset, "stderr": stderr_offset}
        )
        handle: AsyncExec[Any] = AsyncExec(
            cast("AsyncSandbox", self),
            channel,
            encoding=encoding,
            capture_bytes=max_output_bytes,
            owned=False,
            attached=True,
        )
        await handle.begin()
        return handle

    async def execs(self) -> list[ExecRecord]:
        """What ran and runs here, without output; as long as the daemon keeps it."""
        found: list[ExecRecord] = []
        cursor: str | None = None
        while True:
            params = {"cursor": cursor} if cursor else None
            page = await self._ask(ExecList, "GET", f"{self._prefix}/execs", params=params)
            found += page.items
            cursor = page.next
            if not cursor:
                return found

    async def exec_info(self, exec_id: str, wait: float = 0.0, max_output_bytes: int = 0) -> ExecRecord:
        """One command's record, with so much of each stream's output; with `wait` seconds, answered earlier when it ends.

        Raises NotFound, and ExecStartError for one that never ran.
        """
        params: dict[str, float] = {"max_output_bytes": max_output_bytes}
        if wait:
            params["wait"] = wait
        return await self._ask(
            ExecRecord,
            "GET",
            f"{self._prefix}/execs/{segment(exec_id)}",
            params=params,
            wait_seconds=wait,
            lane="waits",
        )

    async def signal(self, exec_id: str, name: str = "TERM", scope: str = "tree") -> bool:
        """Signal a command by its id, from anywhere. False when it had ended: then nothing was signalled. Raises NotFound."""
        answer = await self._ask(
            Signalled,
            "POST",
            f"{self._prefix}/execs/{segment(exec_id)}/signal",
            json={"signal": name, "scope": scope},
        )
        return bool(answer.signalled)

    # For the parts

    def _make(
        self,
        command: Command,
        encoding: str | None,
        options: StartOptions | ExecOptions,
        *,
        stdin: bool,
        owned: bool,
        pty: tuple[int, int] | None = None,
        background: bool = False,
    ) -> AsyncExec[Any]:
        body = start_body(command, cast("dict[str, Any]", options))
        body["stdin"] = "stream" if stdin else "none"
        if pty is not None:
            body["pty"] = {"rows": pty[0], "cols": pty[1]}
        if background:
            body["background"] = True
        # The daemon's own cut is for whole answers; here the output streams, and the capture keeps what was asked for.
        capture = body.pop("max_output_bytes", DEFAULT_MAX_OUTPUT_BYTES)
        channel = Channel(body["id"], ("start", body), overflow="drop" if background else "block")
        return AsyncExec(
            cast("AsyncSandbox", self), channel, encoding=encoding, capture_bytes=capture, owned=owned
        )

    def _kill_now(self, channel: Channel) -> None:
        """Kill a command without waiting: by the connection, and by HTTP in the background when that may be dead."""
        if channel.over:
            self._link.detach(channel)
            return
        told = self._link.signal(channel, "KILL", "tree") and self._link.heard_lately
        self._link.detach(channel)
        if not told and not self._closed:
            self.client._in_background(self._kill_by_http(channel.exec_id))

    async def _kill_by_http(self, exec_id: str) -> None:
        await self.client._http.call(
            "POST",
            f"{self._prefix}/execs/{segment(exec_id)}/signal",
            json={"signal": "KILL", "scope": "tree"},
            retry=RetryPolicy(total_seconds=KILL_SECONDS),
            repeatable=True,
        )

    def _check_usable(self) -> None:
        raise NotImplementedError

    async def _ask(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        raise NotImplementedError
