"""A backend made of files, for tests of the worker: it survives the worker's death and can be told to misbehave.

Each sandbox is a file `<id>.json`; each call is a line in `calls.log`. `cues.json` says what goes wrong: {"create_seconds": s,
"delete_seconds": s, "poison": [label, …], "fail": {label: [reason, retryable, times, throttled]}, "delete_fails": times,
"watch_seconds": s}. A sandbox's label
"cue" selects it. The address of all is one socket, on which `FakeDaemon` answers for every sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from app.ledger.model import Reason, Record
from worker.providers.base import Observed, Placement, ProviderError


class FakeProvider:
    name = "fake"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "objects").mkdir(parents=True, exist_ok=True)

    # What tests say and see.

    def cue(self, **cues: Any) -> None:
        temporary = self.folder / f"cues.{os.getpid()}"
        temporary.write_text(json.dumps(cues))
        temporary.replace(self.folder / "cues.json")

    def cues(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "cues.json").read_text())
            return found
        except FileNotFoundError:
            return {}

    def alive(self) -> set[str]:
        return {path.stem for path in (self.folder / "objects").glob("*.json")}

    def calls(self, what: str) -> list[str]:
        """Ids in the order of the calls, `create`, `made` or `delete`."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "calls.log").read_text().splitlines()
            return [line.split(" ")[1] for line in lines if line.startswith(what + " ")]
        return []

    def lose(self, sandbox_id: str) -> None:
        """It vanishes without anybody having asked."""
        self._path(sandbox_id).unlink()

    def put(self, sandbox_id: str, created_ms: int) -> None:
        """Something that the ledger may know nothing of."""
        self._path(sandbox_id).write_text(json.dumps({"created_ms": created_ms}))

    # The protocol.

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def withdraw(self) -> None:
        pass

    async def check(self) -> None:
        pass

    async def create(self, record: Record, token_sha256: str) -> Placement:
        self._log("create", record.id)
        cues = self.cues()
        cue = record.spec.labels.get("cue", "")
        if cue in cues.get("poison", []):
            os.kill(os.getpid(), signal.SIGKILL)
        if cue in cues.get("fail", {}):
            reason, retryable, times, *throttled = cues["fail"][cue]
            if self.calls("create").count(record.id) <= times:
                raise ProviderError(
                    Reason(reason), "as the test asked", retryable=retryable, throttled=bool(throttled)
                )
        await asyncio.sleep(cues.get("create_seconds", 0.0))
        if not self._path(record.id).exists():
            self.put(record.id, int(time.time() * 1000))
            self._log("made", record.id)
        return Placement(f"unix:{self.folder / 'daemon.sock'}", {"memory": "none"})

    async def delete(self, sandbox_id: str) -> None:
        self._log("delete", sandbox_id)
        cues = self.cues()
        if self.calls("delete").count(sandbox_id) <= cues.get("delete_fails", 0):
            raise ProviderError(Reason.BACKEND_ERROR, "as the test asked", retryable=True)
        await asyncio.sleep(cues.get("delete_seconds", 0.0))
        self._path(sandbox_id).unlink(missing_ok=True)

    async def list(self) -> list[Observed]:
        found = []
        for path in (self.folder / "objects").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append(Observed(path.stem, "running", json.loads(path.read_text())["created_ms"]))
        return found

    async def watch(self) -> AsyncIterator[Observed]:
        before = self.alive()
        every = self.cues().get("watch_seconds", 0.1)
        while True:
            await asyncio.sleep(every)
            now = self.alive()
            for gone in before - now:
                yield Observed(gone, "gone", 0, reason=Reason.EXITED, detail="the file is gone")
            before = now

    def _path(self, sandbox_id: str) -> Path:
        return self.folder / "objects" / f"{sandbox_id}.json"

    def _log(self, what: str, sandbox_id: str) -> None:
        with (self.folder / "calls.log").open("a") as log:
            log.write(f"{what} {sandbox_id} {os.getpid()}\n")


class FakeDaemon:
    """Answers the probe of every sandbox; `exit_code`, `well` and `seconds` (for one answer) can be changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "daemon.sock"
        self.exit_code = 0
        self.well = True
        self.seconds = 0.0
        self.tokens: set[str] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeDaemon:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(headers["Content-Length"]))
            await asyncio.sleep(self.seconds)
            if head.startswith("GET /health "):
                answer = json.dumps({"ok": self.well, "self": "/sandmand"})
            else:
                self.tokens.add(headers["Authorization"].removeprefix("Bearer "))
                assert json.loads(body)["argv"] == ["/sandmand", "noop"]
                answer = json.dumps({"exit_code": self.exit_code})
            # Chunked, as an answer that is streamed would be.
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in (answer[:5], answer[5:]):
                writer.write(f"{len(part):x}\r\n{part}\r\n".encode())
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()
