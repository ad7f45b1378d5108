"""Proves that a sandbox is usable: a no-op command really runs in it, through the address that callers will use.

A small HTTP/1.1 client of its own, over unix sockets and TCP: one request a connection, everything bounded, nothing to keep between
probes. The daemon says in /health where it lies inside the sandbox, and is itself the no-op program: an image need not hold any.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import msgspec

_BODY_MAX = 1024 * 1024
_HEAD_MAX = 64 * 1024


class ProbeError(Exception):
    """Not usable (yet); the text says what was seen."""


class Health(msgspec.Struct):
    ok: bool = False
    self_path: str = msgspec.field(name="self", default="")
    version: str = ""


async def probe(address: str, token: str, timeout: float) -> None:
    """Run the no-op in the sandbox at `address`. Raises ProbeError, within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            status, body = await request(address, "GET", "/health")
            if status != 200:
                raise ProbeError(f"the daemon's health answers {status}")
            health = msgspec.json.decode(body, type=Health)
            if not health.ok or not health.self_path:
                raise ProbeError("the daemon says that it is not well")
            command = msgspec.json.encode({"argv": [health.self_path, "noop"], "timeout_seconds": timeout})
            status, body = await request(address, "POST", "/v1/exec", token=token, body=command)
            if status != 200:
                raise ProbeError(f"the no-op exec answers {status}: {body[:300].decode('utf-8', 'replace')}")
            result: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
            if result.get("exit_code") != 0:
                raise ProbeError(f"the no-op exec ended with {result.get('exit_code')}")
    except TimeoutError:
        raise ProbeError(f"the daemon did not answer within {timeout:g} s") from None
    except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError, ValueError) as error:
        raise ProbeError(f"the daemon cannot be reached: {type(error).__name__}: {error}") from error


async def request(
    address: str, method: str, path: str, *, token: str = "", body: bytes = b""
) -> tuple[int, bytes]:
    """One exchange. Raises OSError, IncompleteReadError or ValueError; the caller bounds the time."""
    reader, writer = await _connect(address)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        if token:
            head += f"Authorization: Bearer {token}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        writer.write(head.encode("ascii") + b"\r\n" + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        return status, await _read_body(reader, headers)
    finally:
        writer.close()


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"), limit=_HEAD_MAX)
    url = urlsplit(address)
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"no address to connect to: {address!r}")
    return await asyncio.open_connection(url.hostname, url.port or 80, limit=_HEAD_MAX)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            if len(body) + size > _BODY_MAX:
                raise ValueError("the answer is too long")
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        return body
    if "content-length" in headers:
        size = int(headers["content-length"])
        if size > _BODY_MAX:
            raise ValueError("the answer is too long")
        return await reader.readexactly(size)
    return await reader.read(_BODY_MAX)
