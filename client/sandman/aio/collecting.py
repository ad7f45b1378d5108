"""What `exec` does around a running command: feeds it, calls back, and takes its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

from sandman.aio import source as sources
from sandman.aio.execution import AsyncExec
from sandman.errors import SandmanError
from sandman.models import ExecResult, Gap, Output
from sandman.options import Command, ExecOptions, Source


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
