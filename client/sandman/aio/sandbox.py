"""A sandbox as an object: its commands, its files (`.files`), its lease.

While the object is open this process holds the sandbox: its lease is renewed in the background, until it is closed (which
deletes the sandbox), detached (which keeps it), garbage-collected, or the process ends. Then nobody renews, and the service
takes the sandbox back when its lease is over.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, overload
from urllib.parse import quote as percent

import msgspec

from sandman.aio import source as sources
from sandman.aio.execution import AsyncExec
from sandman.aio.files import AsyncFiles
from sandman.aio.link import Link
from sandman.channel import Channel
from sandman.errors import (
    Cause,
    ClosedError,
    CommandFailed,
    CreateTimeout,
    Gone,
    NotFound,
    ProblemError,
    SandboxFailed,
    SandboxLost,
    SandmanError,
    cause_of,
    retryable_of,
)
from sandman.models import ENDED_STATES, ExecRecord, ExecResult, Gap, Output, SandboxInfo
from sandman.options import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Command,
    ExecOptions,
    Source,
    StartOptions,
    start_body,
)
from sandman.retry import RetryPolicy

if TYPE_CHECKING:
    from sandman.aio.client import AsyncClient

T = TypeVar("T")

POLL_SECONDS = 25.0
"""One waiting request: below the 30 s after which many a proxy cuts a silent one."""
KILL_SECONDS = 10.0


class ExecList(msgspec.Struct):
    items: list[ExecRecord]
    next: str | None = None


class Signalled(msgspec.Struct):
    signalled: int
    """How many processes."""


class AsyncSandbox:
    """Made by `create`, `sandbox` and `sandboxes` of a client or a run. Methods may be used by many tasks at once."""

    def __init__(self, client: AsyncClient, info: SandboxInfo, *, prefix: str, holds: bool) -> None:
        self.client = client
        self.id = info.id
        self.info = info
        """The record as last seen; `refresh()` looks again."""
        self._prefix = prefix
        self._holds = holds
        self._closed = False
        self._lost: SandmanError | None = None
        self._process = os.getpid()
        # No strong references back to this object: dropping the last one must end it at once, not at some collection.
        self._link = Link(
            f"{prefix}/connect", client.settings, client._slots, weakref.WeakMethod(self._explain)
        )
        client._track(self._link)

    @property
    def files(self) -> AsyncFiles:
        return AsyncFiles(self)

    # Commands

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
            self, channel, encoding=encoding, capture_bytes=max_output_bytes, owned=False, attached=True
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
            f"{self._prefix}/execs/{percent(exec_id, safe='')}",
            params=params,
            wait_seconds=wait,
            lane="waits",
        )

    async def signal(self, exec_id: str, name: str = "TERM", scope: str = "tree") -> bool:
        """Signal a command by its id, from anywhere. False when it had ended: then nothing was signalled. Raises NotFound."""
        answer = await self._ask(
            Signalled,
            "POST",
            f"{self._prefix}/execs/{percent(exec_id, safe='')}/signal",
            json={"signal": name, "scope": scope},
        )
        return bool(answer.signalled)

    # The sandbox itself

    async def refresh(self, wait: float = 0.0) -> SandboxInfo:
        """Look at the record again; with `wait` seconds, answered earlier when it becomes ready or ends."""
        params = {"wait": wait} if wait else None
        self.info = await self.client._ask(
            SandboxInfo,
            "GET",
            self._prefix,
            params=params,
            wait_seconds=wait,
            lane="waits" if wait else "calls",
        )
        return self.info

    async def wait_ready(self, timeout: float = 600.0) -> Self:
        """Until it is ready. Cancellable, and it changes nothing then. Raises SandboxFailed, or CreateTimeout."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while self.info.state != "ready":
            if self.info.state in ENDED_STATES:
                raise failure_of(self.info)
            left = ends - loop.time()
            if left <= 0:
                raise CreateTimeout(
                    f"sandbox {self.id} is still {self.info.state} after {timeout:g} s", sandbox=self.id
                )
            await self.refresh(wait=max(0.1, min(POLL_SECONDS, left)))
        return self

    async def renew(self, lease_seconds: float | None = None) -> SandboxInfo:
        """Renew the lease now, and set its length if given. The background does it by itself while the object is open."""
        body = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
        self.info = await self._ask(SandboxInfo, "POST", f"{self._prefix}/renew", json=body, repeatable=True)
        return self.info

    async def delete(self) -> None:
        """Take the sandbox back with everything in it. Idempotent: one that is gone already is no error."""
        self._closed = True
        self._holds = False
        self.client._forget(self)
        await self._link.close()
        try:
            await self.client._http.call("DELETE", self._prefix)
        except (NotFound, Gone):
            pass

    async def detach(self, lease_seconds: float | None = None) -> str:
        """Let go and keep the sandbox; its id. It lives for the lease (renewed once here) unless somebody else renews it."""
        if self._holds and not self._closed and self.info.run is None:
            await self.renew(lease_seconds)
        self._holds = False
        await self.release()
        return self.id

    async def release(self) -> None:
        """Close this object's connection and stop renewing; changes nothing about the sandbox. Idempotent."""
        self._closed = True
        self.client._forget(self)
        await self._link.close()

    async def aclose(self) -> None:
        """Delete the sandbox if this object holds it (`create` made it, and it was not detached); else only release."""
        if self._holds:
            await self.delete()
        else:
            await self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Leaving must not be undone by a second cancellation: then the rest happens in the background.
        await self.client._finish(self.aclose())

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._process:
            self.client._drop_link(self._link)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {'closed' if self._closed else self.info.state}>"

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
        return AsyncExec(self, channel, encoding=encoding, capture_bytes=capture, owned=owned)

    def _check_usable(self) -> None:
        self.client._check_usable()
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise ClosedError(f"the object of sandbox {self.id} has been closed")

    async def _ask(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        self._check_usable()
        try:
            return await self.client._ask(kind, method, path, **options)
        except ProblemError as error:
            raise await self._explain(error)  # noqa: B904 - carries its own cause

    async def _tell(self, method: str, path: str, **options: Any) -> None:
        """A call whose answer tells nothing beyond that it was done."""
        self._check_usable()
        try:
            await self.client._call(method, path, **options)
        except ProblemError as error:
            raise await self._explain(error)  # noqa: B904 - carries its own cause

    async def _explain(self, error: ProblemError) -> SandmanError:
        """What a 404 or 410 of one of its calls means: a missing file or exec is that; a sandbox that is gone is SandboxLost."""
        if isinstance(error, Gone) and ("state" in error.members or "reclaim" in error.members):
            return lost_by(self.id, error)
        return error

    def _kill_now(self, channel: Channel) -> None:
        """Kill a command without waiting: by the connection if it stands, else by HTTP in the background."""
        if channel.over:
            self._link.detach(channel)
            return
        told = self._link.signal(channel, "KILL", "tree")
        self._link.detach(channel)
        if not told and not self._closed:
            self.client._in_background(self._kill_by_http(channel.exec_id))

    async def _kill_by_http(self, exec_id: str) -> None:
        await self.client._http.call(
            "POST",
            f"{self._prefix}/execs/{percent(exec_id, safe='')}/signal",
            json={"signal": "KILL", "scope": "tree"},
            retry=RetryPolicy(total_seconds=KILL_SECONDS),
            repeatable=True,
        )

    async def _renew_lease(self) -> float | None:
        if self._closed or not self._holds:
            return None
        info = await self.renew()
        return info.lease_seconds

    def _lease_lost(self, error: SandmanError) -> None:
        if self._lost is None:
            self._lost = (
                error
                if isinstance(error, SandboxLost)
                else SandboxLost(
                    f"sandbox {self.id} is gone: {error}",
                    sandbox=self.id,
                    cause="infra",
                    request_id=error.request_id,
                )
            )


async def follow(
    handle: AsyncExec[Any], options: ExecOptions, feeding: asyncio.Task[None] | None
) -> ExecResult[Any]:
    """Read to the end, calling back; an exception of the stdin source ends it as one of the call itself."""
    on_stdout, on_stderr, on_gap = options.get("on_stdout"), options.get("on_stderr"), options.get("on_gap")
    if feeding is not None:
        feeding.add_done_callback(lambda task: wake(handle, task))
    while True:
        events = await handle.next_events()
        for event in events:
            match event:
                case Output(stream=stream, data=data):
                    callback, value = (on_stdout if stream == "stdout" else on_stderr), data
                case Gap():
                    callback, value = on_gap, event
                case _:
                    callback, value = None, None
            if callback is not None:
                outcome = callback(value)
                if isinstance(outcome, Awaitable):
                    await outcome
        if (
            feeding is not None
            and feeding.done()
            and not feeding.cancelled()
            and feeding.exception() is not None
        ):
            raise cast(BaseException, feeding.exception())
        if handle.result is not None:
            return handle.result


def wake(handle: AsyncExec[Any], task: asyncio.Task[None]) -> None:
    """A source that failed leaves the command waiting for stdin: kill it, so that the reader gets to see why."""
    if not task.cancelled() and task.exception() is not None:
        handle.sandbox._link.signal(handle._channel, "KILL", "tree")


async def feed(handle: AsyncExec[Any], stdin: Source) -> None:
    """Send the source, then end of file. A command that stops reading is no error, as with a pipe of a shell."""
    try:
        async for chunk in sources.stream(stdin):
            await handle.write(chunk)
        await handle.close_stdin()
    except BrokenPipeError:
        pass
    except SandmanError:
        if handle._error is None:
            raise


def describe(command: Command, result: ExecResult[Any]) -> str:
    shown = command if isinstance(command, str) else " ".join(command)
    shown = shown if len(shown) <= 80 else shown[:77] + "…"
    how = "timed out" if result.timed_out else f"exit code {result.exit_code}"
    return f"{shown!r}: {how}"


def failure_of(info: SandboxInfo) -> SandboxFailed:
    reason = info.reason or info.reclaim or info.state
    cause = info.cause if info.cause in ("caller", "task", "infra") else cause_of(info.reason)
    detail = f": {info.detail}" if info.detail else ""
    return SandboxFailed(
        f"sandbox {info.id} did not become ready ({reason}){detail}",
        sandbox=info.id,
        reason=reason,
        detail=info.detail,
        cause=cast(Cause, cause),
        retryable=info.retryable if info.retryable is not None else retryable_of(info.reason),
    )


def lost_by(sandbox: str, error: ProblemError) -> SandboxLost:
    reason = error.members.get("reason") or error.members.get("reclaim") or error.slug
    lost = SandboxLost(
        f"sandbox {sandbox} is gone: {error.detail or error.title}",
        sandbox=sandbox,
        reason=str(reason),
        detail=error.detail or None,
        cause=error.cause,
        retryable=retryable_of(error.members.get("reason")),
        request_id=error.request_id,
    )
    lost.__cause__ = error
    return lost
