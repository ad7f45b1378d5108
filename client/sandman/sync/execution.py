"""One command, blocking: the same as `sandman.aio.execution`, one call to the loop per batch of events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, AnyStr, Generic, Self

from sandman.aio.execution import AsyncExec
from sandman.models import ExecResult, Exit, Gap, Output

if TYPE_CHECKING:
    from sandman.sync.sandbox import Sandbox


class Exec(Generic[AnyStr]):
    """`for event in exec` gives Output, Gap and at last Exit; `wait()` reads the rest and gives the result.

    Leaving `with` (or dropping the object) kills a command begun by `stream`, and only stops following any other.
    """

    def __init__(self, sandbox: Sandbox, inner: AsyncExec[AnyStr]) -> None:
        self.sandbox = sandbox
        self.id = inner.id
        self._inner: AsyncExec[AnyStr] = inner
        self._ready: deque[Output[AnyStr] | Gap | Exit[AnyStr]] = deque()

    @property
    def pid(self) -> int | None:
        return self._inner.pid

    @property
    def result(self) -> ExecResult[AnyStr] | None:
        """None until the command's end has been received."""
        return self._inner.result

    def __iter__(self) -> Iterator[Output[AnyStr] | Gap | Exit[AnyStr]]:
        return self

    def __next__(self) -> Output[AnyStr] | Gap | Exit[AnyStr]:
        if not self._ready:
            self._ready.extend(self.sandbox._call(self._inner.next_events))
            if not self._ready:
                raise StopIteration
        return self._ready.popleft()

    def wait(self) -> ExecResult[AnyStr]:
        """Read to the end; the result. Blocks as long as the command runs; Ctrl-C leaves the command running."""
        self._ready.clear()
        return self.sandbox._call(self._inner.wait)

    def write(self, data: bytes | str) -> None:
        """Send to its stdin; blocks while the command does not read. Raises StdinClosed."""
        self.sandbox._call(self._inner.write, data)

    def close_stdin(self) -> None:
        self.sandbox._call(self._inner.close_stdin)

    def signal(self, name: str = "TERM", scope: str = "tree") -> bool:
        """Send a signal to the command: `scope` process, group or tree. False when it had ended."""
        return self.sandbox._call(self._inner.signal, name, scope)

    def kill(self) -> bool:
        return self.sandbox._call(self._inner.kill)

    def resize(self, rows: int, cols: int) -> None:
        self.sandbox._call(self._inner.resize, rows, cols)

    def detach(self) -> None:
        """Stop following; the command goes on, and `sandbox.attach(id)` comes back to it."""
        self.sandbox._call(self._inner.detach)

    def close(self) -> None:
        """Kills the command if `stream` began it, else only stops following. Idempotent."""
        if self.sandbox.client._portal.alive:
            self.sandbox._call(self._inner.aclose)

    def __enter__(self) -> Self:
        self.sandbox._call(self._inner.begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncExec", "Exec")
