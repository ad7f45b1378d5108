"""The supervisor's one HTTP call: bounded in time and size, and silent about a peer that misbehaves."""

from __future__ import annotations

import asyncio
import time

import pytest

from worker.up import http


async def answering(data: bytes, *, hold: float = 0.0) -> http.Answer | None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await asyncio.sleep(hold)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await http.get("127.0.0.1", port, "/x", timeout=0.5)


async def test_status_and_body() -> None:
    assert await answering(b'HTTP/1.1 200 OK\r\nA: b\r\n\r\n{"a": 1}') == http.Answer(200, {"a": 1})
    assert await answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\nnot json") == http.Answer(503, None)


@pytest.mark.parametrize("data", [b"", b"garbage", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
async def test_garbage_is_no_answer(data: bytes) -> None:
    assert await answering(data) is None


async def test_a_silent_peer_costs_the_time_limit_only() -> None:
    began = time.monotonic()
    assert await answering(b"HTTP/1.1 200 OK\r\n\r\n", hold=2) is None
    assert time.monotonic() - began < 3


async def test_nobody_there() -> None:
    assert await http.get("127.0.0.1", 1, "/x", timeout=0.5) is None


async def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 1000)
    assert await answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000) is None
