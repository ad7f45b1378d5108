"""One command at this terminal: its output as it comes, our stdin to it, and Ctrl-C to it rather than to us.

The first Ctrl-C sends INT to the command's process group, as a terminal would; a second one kills its whole tree. Terminal
and pipes are read and written in threads, so that a blocked pipe never stops the lease of the sandbox from being renewed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import termios
import tty
from contextlib import suppress
from typing import Any

from sandman.aio.execution import AsyncExec
from sandman.aio.offload import Offload
from sandman.aio.sandbox import AsyncSandbox
from sandman.errors import SandmanError
from sandman.models import ExecResult, Exit, Gap, Output

READ_BYTES = 64 * 1024
EXIT_TIMED_OUT = 124
EXIT_BROKEN_PIPE = 141


class Session:
    def __init__(
        self,
        sandbox: AsyncSandbox,
        command: str | list[str],
        how: dict[str, Any],
        *,
        tty: bool,
        stdin: bool,
        as_json: bool,
    ) -> None:
        self._sandbox = sandbox
        self._command = command
        self._how = how
        self._tty = tty
        self._stdin = stdin
        self._json = as_json
        self._interrupts = 0

    async def run(self) -> int:
        """The exit code of the command. Cancelled or failing, it kills the command."""
        pty = terminal_size() if self._tty else None
        handle: AsyncExec[bytes] = await self._sandbox.start(
            self._command, encoding=None, stdin=self._stdin, pty=pty, **self._how
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt, handle)
        loop.add_signal_handler(signal.SIGTERM, self._kill, handle)
        saved = self._raw_terminal(handle) if self._tty else None
        feeding = loop.create_task(self._feed(handle)) if self._stdin else None
        try:
            return await self._follow(handle)
        except BrokenPipeError:
            return EXIT_BROKEN_PIPE
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            if saved is not None:
                loop.remove_signal_handler(signal.SIGWINCH)
                termios.tcsetattr(0, termios.TCSADRAIN, saved)
            if feeding is not None:
                feeding.cancel()
            if handle.result is None:
                with suppress(SandmanError, TimeoutError):
                    async with asyncio.timeout(2):
                        await handle.kill()

    async def _follow(self, handle: AsyncExec[bytes]) -> int:
        with Offload("sandman-stdout") as offload:
            async for event in handle:
                match event:
                    case Output(stream=stream, data=data) if not self._json:
                        await offload.run(write_all, 1 if stream == "stdout" else 2, data)
                    case Gap() as gap:
                        print(f"\nsandman: {gap.lost_bytes} bytes of {gap.stream} were lost", file=sys.stderr)
                    case Exit(result=result):
                        return self._finish(result)
                    case _:
                        pass
        return 1

    def _finish(self, result: ExecResult[bytes]) -> int:
        if self._json:
            print(json.dumps(result_as_json(result)))
        if result.timed_out:
            if not self._json:
                print("sandman: the command's time was up", file=sys.stderr)
            return EXIT_TIMED_OUT
        return 1 if result.exit_code is None else result.exit_code

    async def _feed(self, handle: AsyncExec[bytes]) -> None:
        with Offload("sandman-stdin") as offload, suppress(BrokenPipeError, SandmanError):
            while data := await offload.run(read_stdin):
                await handle.write(data)
            await handle.close_stdin()

    def _interrupt(self, handle: AsyncExec[bytes]) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._send(handle, "INT", "group")
        else:
            self._kill(handle)

    def _kill(self, handle: AsyncExec[bytes]) -> None:
        self._send(handle, "KILL", "tree")

    def _send(self, handle: AsyncExec[bytes], name: str, scope: str) -> None:
        self._sandbox.client._in_background(handle.signal(name, scope))

    def _raw_terminal(self, handle: AsyncExec[bytes]) -> list[Any] | None:
        if not os.isatty(0):
            return None
        saved = termios.tcgetattr(0)
        tty.setraw(0)
        loop = asyncio.get_running_loop()
        resize = self._sandbox.client._in_background
        loop.add_signal_handler(signal.SIGWINCH, lambda: resize(handle.resize(*terminal_size())))
        return saved


def terminal_size() -> tuple[int, int]:
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return size.lines, size.columns
    return 24, 80


def read_stdin() -> bytes:
    try:
        return os.read(0, READ_BYTES)
    except OSError:
        return b""  # a terminal that went away has nothing more to say


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def result_as_json(result: ExecResult[bytes]) -> dict[str, Any]:
    """Output as text where it is UTF-8, else as base64 under another name."""
    shown: dict[str, Any] = {
        name: getattr(result, name)
        for name in ("id", "exit_code", "signal", "timed_out", "oom_killed", "stdout_bytes", "stderr_bytes")
    }
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        try:
            shown[name] = data.decode()
        except UnicodeDecodeError:
            shown[f"{name}_base64"] = base64.b64encode(data).decode()
    shown |= {"stdout_truncated": result.stdout_truncated, "stderr_truncated": result.stderr_truncated}
    shown["wall_seconds"] = result.usage.wall_seconds
    return shown
