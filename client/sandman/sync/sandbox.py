"""A sandbox, blocking: the contracts are those of `sandman.aio.sandbox`.

Callbacks of `exec` run in the calling thread, between reads, so an exception or Ctrl-C in one comes out of the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, overload

from sandman.aio.sandbox import AsyncSandbox
from sandman.models import ExecRecord, ExecResult, SandboxInfo
from sandman.options import (
    CALLBACKS,
    DEFAULT_MAX_OUTPUT_BYTES,
    Command,
    ExecOptions,
    StartOptions,
    check_callbacks,
)
from sandman.sync.execution import Exec
from sandman.sync.files import Files
from sandman.sync.relay import Relay

if TYPE_CHECKING:
    from sandman.sync.client import Client

T = TypeVar("T")


class Sandbox:
    """Made by `create`, `sandbox` and `sandboxes` of a client or a run. Methods may be used by many threads at once."""

    def __init__(self, client: Client, inner: AsyncSandbox) -> None:
        self.client = client
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def info(self) -> SandboxInfo:
        """The record as last seen; `refresh()` looks again."""
        return self._inner.info

    @property
    def files(self) -> Files:
        return Files(self)

    # Commands

    @overload
    def exec(
        self, command: Command, *, encoding: str = "utf-8", **options: Unpack[ExecOptions]
    ) -> ExecResult[str]: ...
    @overload
    def exec(
        self, command: Command, *, encoding: None, **options: Unpack[ExecOptions]
    ) -> ExecResult[bytes]: ...
    def exec(
        self, command: Command, *, encoding: str | None = "utf-8", **options: Unpack[ExecOptions]
    ) -> ExecResult[Any]:
        """Run a command to its end. A non-zero exit, a time-out or a kill is a result; see ExecOptions for the options.

        Survives broken connections: it resumes by offset, and never runs twice. Ctrl-C (or an exception of a callback) kills
        the command with its whole tree. Raises ExecStartError, SandboxLost, ConnectionLost, … and CommandFailed with
        check=True.
        """
        check_callbacks(options, blocking=True)
        if all(options.get(name) is None for name in CALLBACKS):
            return cast(
                "ExecResult[Any]", self._call(self._inner.exec, command, encoding=encoding, **options)
            )
        return self._exec_calling_back(command, encoding, options)

    def _exec_calling_back(
        self, command: Command, encoding: str | None, options: ExecOptions
    ) -> ExecResult[Any]:
        relay = Relay()
        inner = cast("dict[str, Any]", dict(options))
        for name in CALLBACKS:
            if inner.get(name) is not None:
                inner[name] = relay.into(inner[name])
        portal = self.client._portal
        portal.check()
        outcome = relay.run(portal, lambda: self._inner.exec(command, encoding=cast(str, encoding), **inner))
        return cast("ExecResult[Any]", outcome)

    @overload
    def start(
        self,
        command: Command,
        *,
        encoding: str = "utf-8",
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        **options: Unpack[StartOptions],
    ) -> Exec[str]: ...
    @overload
    def start(
        self,
        command: Command,
        *,
        encoding: None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        **options: Unpack[StartOptions],
    ) -> Exec[bytes]: ...
    def start(self, command: Command, *, encoding: str | None = "utf-8", **options: Any) -> Exec[Any]:
        """Start a command; its handle, once it runs. Dropping the handle does not end the command. Raises ExecStartError.

        stdin=True opens its stdin for `write`; pty=(rows, cols) gives it a terminal; background=True never waits for a
        reader of its output.
        """
        return Exec(self, self._call(self._inner.start, command, encoding=encoding, **options))

    @overload
    def stream(
        self,
        command: Command,
        *,
        encoding: str = "utf-8",
        stdin: bool = False,
        **options: Unpack[StartOptions],
    ) -> Exec[str]: ...
    @overload
    def stream(
        self, command: Command, *, encoding: None, stdin: bool = False, **options: Unpack[StartOptions]
    ) -> Exec[bytes]: ...
    def stream(self, command: Command, *, encoding: str | None = "utf-8", **options: Any) -> Exec[Any]:
        """A command as an iterator of events, begun by the first read. Leaving or dropping it kills the command."""
        return Exec(self, self._inner.stream(command, encoding=encoding, **options))

    @overload
    def attach(
        self,
        exec_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        encoding: str = "utf-8",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> Exec[str]: ...
    @overload
    def attach(
        self,
        exec_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        encoding: None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> Exec[bytes]: ...
    def attach(self, exec_id: str, *, encoding: str | None = "utf-8", **options: Any) -> Exec[Any]:
        """Follow a command that was started before, from these offsets; also one that has ended. Never runs anything."""
        return Exec(self, self._call(self._inner.attach, exec_id, encoding=encoding, **options))

    def execs(self) -> list[ExecRecord]:
        return self._call(self._inner.execs)

    def exec_info(self, exec_id: str, wait: float = 0.0, max_output_bytes: int = 0) -> ExecRecord:
        """One command's record, with so much of each stream's output; with `wait` seconds, answered earlier when it ends."""
        return self._call(self._inner.exec_info, exec_id, wait, max_output_bytes)

    def signal(self, exec_id: str, name: str = "TERM", scope: str = "tree") -> bool:
        """Signal a command by its id, from anywhere. False when it had ended: then nothing was signalled. Raises NotFound."""
        return self._call(self._inner.signal, exec_id, name, scope)

    # The sandbox itself

    def refresh(self, wait: float = 0.0) -> SandboxInfo:
        return self._call(self._inner.refresh, wait)

    def wait_ready(self, timeout: float = 600.0) -> Self:
        """Until it is ready. Raises SandboxFailed, or CreateTimeout."""
        self._call(self._inner.wait_ready, timeout)
        return self

    def renew(self, lease_seconds: float | None = None) -> SandboxInfo:
        return self._call(self._inner.renew, lease_seconds)

    def delete(self) -> None:
        """Take the sandbox back with everything in it. Idempotent."""
        self._call(self._inner.delete)

    def detach(self, lease_seconds: float | None = None) -> str:
        """Let go and keep the sandbox; its id. It lives for the lease (renewed once here) unless somebody else renews it."""
        return self._call(self._inner.detach, lease_seconds)

    def close(self) -> None:
        """Delete the sandbox if this object holds it; else only close its connection. Idempotent; nothing in a forked child."""
        if self.client._portal.alive:
            self._call(self._inner.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncSandbox", "Sandbox")

    # For the parts

    def _call(self, make: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any) -> T:
        return self.client._portal.call(make, *arguments, **options)

    def _iterate(self, inner: AsyncIterator[T]) -> Iterator[T]:
        return self.client._iterate(inner)
