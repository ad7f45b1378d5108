"""Blocking work off the event loop, in a thread that never holds up the interpreter's exit.

The pool behind `asyncio.to_thread` is joined at exit: a transfer that reads from a terminal or a dead mount would keep the
whole program alive. One daemon thread a transfer costs 50 µs and has no such power.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Offload:
    """Runs callables one after another in its own thread. Use as a context manager; leaving it does not wait."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Cancellable at once; the function itself then runs on to its end, and its outcome is dropped."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._jobs.put((loop, outcome, function, arguments))
        return await outcome

    def afterwards(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run it behind all that was begun, without waiting. Whatever a cancelled job may still be using is given back so: a
        file that is closed under a read or write in the thread may by then be another file's or socket's descriptor."""
        if self._thread is not None:
            loop = asyncio.get_running_loop()
            self._jobs.put((loop, loop.create_future(), function, arguments))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, outcome, function, arguments = job
            try:
                value = function(*arguments)
            except BaseException as error:
                if isinstance(error, StopIteration):
                    error = RuntimeError("StopIteration out of a source")
                report(loop, settle, outcome, None, error)
            else:
                report(loop, settle, outcome, value, None)
            del job, outcome, function, arguments

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *exc: object) -> None:
        self._jobs.put(None)


def report(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop has been closed: nobody waits
        loop.call_soon_threadsafe(function, *arguments)


def settle(outcome: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(value)
