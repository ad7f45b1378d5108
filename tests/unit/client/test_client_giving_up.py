"""Giving up: what a cancelled transfer leaves, how a kill reaches a command over a dead connection, how long close() takes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import sandman
from sandman.aio.client import AsyncClient
from sandman.aio.link import Link
from sandman.aio.offload import Offload
from sandman.aio.transfer import Temporary
from sandman.channel import Channel
from sandman.models import FileInfo
from tests.fakes.scripted_http import ScriptedHttp, json_answer


async def test_a_download_cancelled_while_its_file_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = tempfile.NamedTemporaryFile

    def slow(**options: Any) -> Any:
        time.sleep(0.3)
        file = real(**options)
        made.append(file.name)
        return file

    monkeypatch.setattr("tempfile.NamedTemporaryFile", slow)
    async with AsyncClient("http://127.0.0.1:9", "k") as client:
        files = client.direct().files
        task = asyncio.create_task(files._download_file("/x", tmp_path / "x", FileInfo(), None))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert made and list(tmp_path.iterdir()) == []


def test_a_short_write_of_the_system_is_gone_on_with(tmp_path: Path) -> None:
    target = Temporary(tmp_path / "x")
    target.make()
    real = target._file.write
    with mock.patch.object(target._file, "write", lambda view: real(view[:3])):
        target.write(b"0123456789")
    target.finish(FileInfo(mode="0600"))
    assert (tmp_path / "x").read_bytes() == b"0123456789"


async def test_what_is_given_back_is_given_back_behind_the_running_job() -> None:
    order: list[str] = []

    def slow() -> None:
        time.sleep(0.2)
        order.append("read")

    with Offload("test") as offload:
        job = asyncio.create_task(offload.run(slow))
        await asyncio.sleep(0.05)
        job.cancel()
        offload.afterwards(order.append, "close")
        await offload.run(int)
    assert order == ["read", "close"]


@pytest.mark.parametrize("heard", [True, False])
async def test_a_kill_over_a_connection_that_may_be_dead_goes_by_http_as_well(heard: bool) -> None:
    with ScriptedHttp(lambda request, number: json_answer(200, {"signalled": 1})) as server:
        async with AsyncClient(server.url, "k") as client:
            sandbox = client.direct()
            with (
                mock.patch.object(Link, "signal", return_value=True) as told,
                mock.patch.object(Link, "detach"),
                mock.patch.object(Link, "heard_lately", new_callable=mock.PropertyMock, return_value=heard),
            ):
                sandbox._kill_now(Channel("ex-1", ("start", {})))
                await asyncio.sleep(0.2)
            assert told.call_count == 1
        asked = [request.target for request in server.requests]
        assert asked == ([] if heard else ["/v1/execs/ex-1/signal"])


async def test_close_keeps_its_bound_when_everything_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AsyncClient("http://127.0.0.1:9", "k", timeouts=sandman.Timeouts(close=0.6))
    client._check_usable()

    async def hang() -> None:
        await asyncio.sleep(60)

    client._in_background(hang())
    monkeypatch.setattr(client._leases, "close", hang)
    monkeypatch.setattr(client._http, "close", hang)
    started = time.monotonic()
    await client.aclose()
    assert time.monotonic() - started < 0.8
