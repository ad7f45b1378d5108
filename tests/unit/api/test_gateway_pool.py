"""The pool of daemon connections is bounded in all, keeps the ones used last, and never hands out a dead one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.gateway.pool import Pool
from app.gateway.wire import Wire, WireError
from app.problems import Problem


class Peer:
    """A server that answers every request with its own count of connections."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def address(self) -> str:
        return f"unix:{self.path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[list[Peer]]:
    found = [Peer(tmp_path / f"{number}.sock") for number in range(3)]
    servers = [await asyncio.start_unix_server(peer.serve, peer.path) for peer in found]
    yield found
    for server in servers:
        server.close()


async def use(pool: Pool, peer: Peer) -> Wire:
    wire = await pool.take(peer.address)
    wire.send(b"GET / HTTP/1.1\r\n\r\n")
    await wire.head()
    assert await wire.whole(10) == b"ok"
    pool.give(peer.address, wire)
    return wire


async def test_connections_are_used_again(peers: list[Peer]) -> None:
    pool = Pool()
    for _ in range(5):
        await use(pool, peers[0])
    assert peers[0].connections == 1 and (pool.busy, pool.idle) == (0, 1)
    await pool.close()
    assert pool.idle == 0


async def test_the_one_used_longest_ago_gives_way(peers: list[Peer]) -> None:
    pool = Pool(open_max=2, idle_max=2)
    first, second = await use(pool, peers[0]), await use(pool, peers[1])
    await use(pool, peers[2])
    assert first.closed and not second.closed and pool.idle == 2


async def test_the_bound_is_a_problem_and_not_a_wait(peers: list[Peer]) -> None:
    pool = Pool(open_max=1)
    wire = await pool.take(peers[0].address)
    with pytest.raises(Problem) as refused:
        await pool.take(peers[1].address)
    assert refused.value.slug == "gateway-busy" and refused.value.retryable
    wire.abort()
    pool.give(peers[0].address, wire)
    await use(pool, peers[1])


async def test_a_connection_that_died_while_idle_is_not_handed_out(peers: list[Peer]) -> None:
    pool = Pool()
    await use(pool, peers[0])
    peers[0].writers[0].close()
    await asyncio.sleep(0.05)
    await use(pool, peers[0])
    assert peers[0].connections == 2


async def test_a_half_read_answer_is_not_used_again(peers: list[Peer]) -> None:
    pool = Pool()
    wire = await pool.take(peers[0].address)
    wire.send(b"GET / HTTP/1.1\r\n\r\n")
    await wire.head()
    pool.give(peers[0].address, wire)
    assert wire.closed and pool.idle == 0


async def test_unasked_bytes_end_a_connection(peers: list[Peer]) -> None:
    pool = Pool()
    wire = await use(pool, peers[0])
    peers[0].writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await asyncio.sleep(0.05)
    assert wire.closed


async def test_an_ended_sandbox_is_forgotten_and_the_idle_are_swept(peers: list[Peer]) -> None:
    pool = Pool()
    one = await use(pool, peers[0])
    pool.forget(peers[0].address)
    assert one.closed and pool.idle == 0
    two = await use(pool, peers[1])
    pool.sweep()
    assert not two.closed
    two.idle_since = float("-inf")
    pool.sweep()
    assert two.closed and pool.idle == 0


async def test_nobody_there(tmp_path: Path) -> None:
    pool = Pool()
    with pytest.raises(OSError, match=""):
        await pool.take(f"unix:{tmp_path}/nosuch")
    assert pool.busy == 0


async def test_a_peer_that_hangs_up_in_mid_request(peers: list[Peer]) -> None:
    pool = Pool()
    wire = await pool.take(peers[0].address)
    await asyncio.sleep(0.05)
    wire.send(b"GET / HTTP")
    peers[0].writers[0].transport.abort()
    with pytest.raises(WireError) as lost:
        await wire.head()
    assert lost.value.sent and not lost.value.answered
    pool.give(peers[0].address, wire)
