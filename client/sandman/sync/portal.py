"""The event loop behind the synchronous client: one daemon thread a process, shared by all its clients.

Why a thread and not blocking sockets: leases must be renewed and dead connections noticed while the program computes. What
follows from it:

- threads: any number may use one client; their calls run side by side on the loop.
- Ctrl-C: the waiting thread is interrupted at once; what it waited for is cancelled on the loop and given a moment to clean up
  (a cancelled create deletes, a cancelled exec kills), then KeyboardInterrupt goes on.
- exit: the thread is a daemon, so an open stream never keeps the interpreter alive; an exit hook says goodbye within its bound.
- fork: threads do not survive it. In the child old objects raise ForkError, and a new Client starts a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from sandman.errors import ClosedError, ForkError, LoopError

T = TypeVar("T")

CLEANUP_SECONDS = 3.0
"""How long an interrupted call may clean up before the interrupt goes on; a second Ctrl-C ends even this."""
EXIT_SECONDS = 2.0


class Closable(Protocol):
    async def aclose(self) -> None: ...


class Portal:
    """Use `Portal.shared()`."""

    _shared: Portal | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="sandman-loop", daemon=True)
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._thread.start()

    @classmethod
    def shared(cls) -> Portal:
        with cls._lock:
            if cls._shared is None or cls._shared._process != os.getpid():
                cls._shared = cls()
            return cls._shared

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def alive(self) -> bool:
        return self._process == os.getpid() and self._thread.is_alive()

    def call(self, make: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any) -> T:
        """Run a coroutine function on the loop and wait for it. Interruptible; see the module's docstring."""
        self.check()
        call = Call(self._loop, make, arguments, options)
        try:
            call.submit()
            return cast(T, call.outcome())
        except BaseException:
            call.cancel_and_wait(CLEANUP_SECONDS)
            raise

    def check(self) -> None:
        if self._process != os.getpid():
            raise ForkError("this client was made before os.fork(); make a new one in the child")
        if threading.current_thread() is self._thread:
            raise LoopError(
                "a blocking call from a callback that runs on the client's own loop would wait for itself"
            )

    def at_exit(self, closable: Closable) -> None:
        """Close it when the interpreter ends, if it is still there and has not been closed (which is harmless)."""
        self._open.add(closable)

    def goodbye(self) -> None:
        """Close what is still open, within EXIT_SECONDS. Never raises: the interpreter is ending."""
        left = list(self._open) if self.alive else []
        if not left:
            return

        async def close_all() -> None:
            await asyncio.wait([asyncio.ensure_future(each.aclose()) for each in left], timeout=EXIT_SECONDS)

        with suppress(BaseException):
            call = Call(self._loop, close_all, (), {})
            call.submit()
            call.done.wait(EXIT_SECONDS)


class Call:
    """One coroutine on its way through the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[..., Coroutine[Any, Any, Any]],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        self._loop = loop
        self._make = make
        self._arguments = arguments
        self._options = options
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.done = threading.Event()

    def submit(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._cancelled:
            self.done.set()
            return
        self._task = self._loop.create_task(self._make(*self._arguments, **self._options))
        self._task.add_done_callback(lambda _: self.done.set())

    def outcome(self) -> Any:
        self.done.wait()
        task = self._task
        assert task is not None
        try:
            return task.result()
        except asyncio.CancelledError:
            raise ClosedError("the call was cancelled because the client is being closed") from None
        finally:
            # An exception's traceback refers to this frame, and the frame to the task: without this, a cycle a call.
            del task
            self._task = None

    def cancel_and_wait(self, seconds: float) -> None:
        """Cancel what is not over, and give it time to clean up."""
        if self.done.is_set():
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)
            self.done.wait(seconds)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


@atexit.register
def goodbye() -> None:
    if Portal._shared is not None:
        Portal._shared.goodbye()


def forget_in_child() -> None:
    """The lock may have been held by another thread at the fork; its owner does not exist in the child."""
    Portal._lock = threading.Lock()
    Portal._shared = None


os.register_at_fork(after_in_child=forget_in_child)
