"""An HTTP server that says exactly what it is told to, byte for byte: for the answers that no real service gives."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.fakes.proxy import reset


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


RESET = b"<reset>"
"""As an answer: the connection is reset instead."""
HANG = b"<hang>"
"""As an answer: none comes, ever."""
Script = Callable[[Request, int], bytes]


def answer(status: int, body: bytes = b"", content_type: str = "application/json", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_answer(status: int, value: Any, **headers: str) -> bytes:
    return answer(status, json.dumps(value).encode(), **headers)


def problem_answer(status: int, slug: str, **members: Any) -> bytes:
    document = {"type": f"urn:sandman:problem:{slug}", "title": slug, "status": status, **members}
    return answer(status, json.dumps(document).encode(), "application/problem+json")


class ScriptedHttp:
    """`with ScriptedHttp(script) as server:`; the script gets each request and its number, and gives the raw answer."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[Request] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-http", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                number = len(self.requests)
                self.requests.append(request)
                said = self._script(request, number)
                if said == RESET:
                    reset(writer)
                    return
                if said == HANG:
                    await asyncio.Event().wait()
                writer.write(said)
                await writer.drain()
                if b"Connection: close" in said.split(b"\r\n\r\n")[0]:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            with suppress(Exception):
                writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, target, headers, body)
