"""The supervisor's side of the drain: keeps one drain process at work until it says that everything is taken back.

Saying so is ending with status 0. A drain that dies is started again, because whatever killed it may have spared the sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping

from worker.up.children import python
from worker.up.folders import Folders
from worker.up.spawn import spawn

RETRY_SECONDS = 0.1


class Drainer:
    def __init__(self, env: Mapping[str, str], folders: Folders) -> None:
        self._env = env
        self._folders = folders
        self._pid: int | None = None
        self._code: int | None = None
        self._ended = asyncio.Event()
        self._gate: int | None = None

    def start(self) -> None:
        """Begin. It goes on until `finish`, since new sandboxes may still come."""
        reading, self._gate = os.pipe()
        self._spawn(reading)
        os.close(reading)

    def died(self, pid: int, code: int) -> bool:
        """Told of every reaped process; true when it was this one."""
        if pid != self._pid:
            return False
        self._pid, self._code = None, code
        self._ended.set()
        return True

    async def finish(self, seconds: float) -> bool:
        """From now on nothing new can come. True when everything is taken back within `seconds`; kills the process otherwise."""
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._ended.wait()
                while self._code != 0:
                    await asyncio.sleep(RETRY_SECONDS)
                    self._spawn(None)
                    await self._ended.wait()
        except TimeoutError:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)

    def _spawn(self, stdin: int | None) -> None:
        self._ended.clear()
        keep = (self._folders.children_lock,)
        argv = python("worker.up.drain")
        self._pid = spawn(argv, self._env, cwd=self._folders.data, keep=keep, stdin=stdin, stdout=2)
