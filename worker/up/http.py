"""The supervisor's own small HTTP call to the API beside it: one GET, a bounded answer, a time limit.

By hand, because any HTTP library would double the supervisor's memory for two paths of our own server.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    """Decoded JSON, or None when there was none."""


async def get(
    host: str, port: int, path: str, *, key: str | None = None, timeout: float = 2.0
) -> Answer | None:
    """None when nobody answered in time."""
    try:
        async with asyncio.timeout(timeout):
            return await _get(host, port, path, key)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return None


async def _get(host: str, port: int, path: str, key: str | None) -> Answer:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = [f"GET {path} HTTP/1.0", "Host: localhost", "Accept: application/json"]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        raw = bytearray()
        while chunk := await reader.read(65536):
            raw += chunk
            if len(raw) > ANSWER_BYTES_MAX:
                raise ValueError("answer too large")
    finally:
        writer.close()
    head, _, body = bytes(raw).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("no HTTP answer")
    status = int(words[1])
    try:
        return Answer(status, json.loads(body))
    except ValueError:
        return Answer(status, None)
