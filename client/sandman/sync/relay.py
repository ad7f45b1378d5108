"""Callbacks of a blocking exec, run in the thread that called it.

Each one is handed over from the loop and waited for there, so that a slow callback slows the command and not the memory, and
an exception or Ctrl-C inside it is one of the call itself.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from typing import Any

from sandman.sync.portal import CLEANUP_SECONDS, Call, Portal

Item = tuple[Callable[[Any], Any], Any, "asyncio.Future[None]"]


class Relay:
    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()

    def into(self, callback: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """What the asynchronous side calls in the callback's place."""

        async def forward(value: Any) -> None:
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._items.put((callback, value, called))
            await called

        return forward

    def run(self, portal: Portal, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run the coroutine on the portal's loop and its callbacks here, until it is over."""

        async def whole() -> Any:
            try:
                return await make()
            finally:
                self._items.put(None)

        call = Call(portal.loop, whole, (), {})
        try:
            call.submit()
            while (item := self._items.get()) is not None:
                callback, value, called = item
                callback(value)
                portal.loop.call_soon_threadsafe(settle, called)
            return call.outcome()
        except BaseException:
            call.cancel_and_wait(CLEANUP_SECONDS)
            raise


def settle(called: asyncio.Future[None]) -> None:
    if not called.done():
        called.set_result(None)
