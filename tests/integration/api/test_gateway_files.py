"""Files through the service: byte-exact, any size, nothing held, nothing left behind by who goes away."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import secrets
import socket
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from app.ledger.ledger import Ledger
from app.ledger.model import Record
from tests.integration.api.test_api_sandboxes import problem
from tests.integration.api.world import Daemon, World, raw_request

MIB = 1024**2
# The whole size that the contract names; CI may choose less.
BIG_BYTES = int(os.environ.get("SANDMAN_TEST_BIG_MIB", "300")) * MIB
MEMORY_GROWTH_MAX = 64 * MIB


@pytest.fixture
async def usable(world: World, ledger: Ledger) -> tuple[Record, Daemon]:
    return await world.usable(ledger)


def files(record: Record, path: str | Path) -> str:
    return f"/v1/sandboxes/{record.id}/files?path={quote(str(path), safe='')}"


@pytest.mark.parametrize(
    "name",
    [
        "-rf",
        "a b",
        "a\nb",
        "é",
        "e\u0301",
        "x" * 255,
        "%2e%2e",
        "a?b#c&d=e+f",
        "🤣.txt",
        "'\"; touch pwn;#",
        " lead",
        "tail ",
    ],
)
async def test_b060_odd_names(http: httpx.AsyncClient, usable: tuple[Record, Daemon], name: str) -> None:
    record, daemon = usable
    content = secrets.token_bytes(100)
    assert (await http.put(files(record, name), content=content)).status_code in (200, 201)
    assert (daemon.home / name).read_bytes() == content
    assert (await http.get(files(record, name))).content == content
    head = await http.head(files(record, name))
    assert head.status_code == 200 and head.headers["content-length"] == "100" and head.content == b""
    listed = await http.get(f"/v1/sandboxes/{record.id}/files/list?path=.")
    assert name in {entry["name"] for entry in listed.json()["items"]}
    assert (await http.delete(files(record, name))).status_code in (200, 204)
    assert not (daemon.home / name).exists()


async def test_b033_a_nul_in_a_path_names_its_field(
    http: httpx.AsyncClient, usable: tuple[Record, Daemon]
) -> None:
    for method in ("GET", "PUT", "DELETE"):
        document = problem(await http.request(method, files(usable[0], "a\0b")), 422, "invalid")
        assert document["field"] == "path"


@pytest.mark.parametrize(
    "content",
    [b"", os.urandom(10 * MIB), b"\x1f\x8b\x08" + os.urandom(1000), b"a\r\nb\r\n", b"\0" * 5000, b"\xff\xfe"],
)
async def test_b075_content_is_never_altered(
    http: httpx.AsyncClient, usable: tuple[Record, Daemon], content: bytes
) -> None:
    record, _ = usable
    await http.put(files(record, "f.gz"), content=content)
    answer = await http.get(files(record, "f.gz"))
    assert answer.status_code == 200 and answer.content == content
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-encoding" not in answer.headers


async def test_b075_what_is_no_file_is_typed(http: httpx.AsyncClient, usable: tuple[Record, Daemon]) -> None:
    record, daemon = usable
    (daemon.home / "folder").mkdir()
    missing = await http.get(files(record, "nosuch"))
    assert problem(missing, 404, "not-found")["errno"] == "ENOENT"
    folder = await http.get(files(record, "folder"))
    assert 400 <= folder.status_code < 500 and "director" in folder.text
    assert (await http.head(files(record, "nosuch"))).status_code == 404


async def test_ranges(http: httpx.AsyncClient, usable: tuple[Record, Daemon]) -> None:
    record, daemon = usable
    (daemon.home / "r").write_bytes(bytes(range(256)))
    answer = await http.get(files(record, "r"), headers={"range": "bytes=10-19"})
    assert answer.status_code == 206 and answer.content == bytes(range(10, 20))
    assert answer.headers["content-range"] == "bytes 10-19/256"


async def test_folders_and_archives(http: httpx.AsyncClient, usable: tuple[Record, Daemon]) -> None:
    record, daemon = usable
    base = f"/v1/sandboxes/{record.id}"
    assert (await http.post(f"{base}/files/mkdir", json={"path": "d/e", "parents": True})).status_code in (
        200,
        201,
    )
    await http.put(files(record, "d/e/f"), content=b"inside")
    moved = await http.post(f"{base}/files/move", json={"from": "d/e/f", "to": "d/g"})
    assert moved.status_code == 200 and (daemon.home / "d/g").read_bytes() == b"inside"
    archive = await http.get(f"{base}/archive?path=d")
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        assert any(name.endswith("g") for name in tar.getnames())
    back = await http.put(f"{base}/archive?path=copy", content=archive.content)
    assert back.status_code in (200, 201), back.text
    found = list((daemon.home / "copy").rglob("g"))
    assert len(found) == 1 and found[0].read_bytes() == b"inside"


async def test_b063_big_files_leave_memory_flat(
    world: World, http: httpx.AsyncClient, usable: tuple[Record, Daemon]
) -> None:
    record, daemon = usable
    block = os.urandom(MIB)
    digest = hashlib.sha256()

    async def source() -> AsyncIterator[bytes]:
        for _ in range(BIG_BYTES // MIB):
            digest.update(block)
            yield block

    before, peak = world.resident_bytes(), 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, world.resident_bytes())
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    started = time.monotonic()
    assert (await http.put(files(record, "big"), content=source(), timeout=300)).status_code == 201
    up = time.monotonic() - started
    assert (daemon.home / "big").stat().st_size == BIG_BYTES
    received = hashlib.sha256()
    started = time.monotonic()
    async with http.stream("GET", files(record, "big"), timeout=300) as answer:
        async for chunk in answer.aiter_bytes():
            received.update(chunk)
    down = time.monotonic() - started
    watching.cancel()
    assert received.digest() == digest.digest()
    print(f"{BIG_BYTES // MIB} MiB up {up:.1f} s, down {down:.1f} s, memory +{(peak - before) / MIB:.0f} MiB")
    assert peak - before < MEMORY_GROWTH_MAX
    (daemon.home / "big").unlink()


async def test_b063_a_slow_reader_is_waited_for(world: World, usable: tuple[Record, Daemon]) -> None:
    record, daemon = usable
    (daemon.home / "slow").write_bytes(b"x" * (100 * MIB))
    before = world.resident_bytes()
    with raw_request(world, "GET", files(record, "slow")) as client:
        client.recv(1000)
        await asyncio.sleep(2)
        assert world.resident_bytes() - before < MEMORY_GROWTH_MAX


async def test_b058_downloads_stop_when_the_caller_left(world: World, usable: tuple[Record, Daemon]) -> None:
    """Aborted after some bytes, many times: within 2 s the daemon is not read any more, and files are back to where they were."""
    record, daemon = usable
    path = daemon.home / "endless"
    with path.open("wb") as file:
        file.truncate(5 * 1024**3)
    await asyncio.sleep(0.5)
    before = world.open_files(), open_paths(daemon, path)
    for _ in range(20):
        for _ in range(5):
            with raw_request(world, "GET", files(record, path)) as client:
                total = 0
                while total < MIB:
                    total += len(client.recv(65536))
                if total % 2:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await asyncio.sleep(2)
    assert open_paths(daemon, path) == before[1]
    assert world.open_files() <= before[0] + 4
    used = cpu_seconds(world)
    await asyncio.sleep(1)
    assert cpu_seconds(world) - used < 0.3
    path.unlink()


async def test_b058_following_stops_too(
    world: World, http: httpx.AsyncClient, usable: tuple[Record, Daemon]
) -> None:
    record, daemon = usable
    body = {"command": "sleep 60", "background": True, "id": "silent"}
    await http.post(f"/v1/sandboxes/{record.id}/exec", json=body)
    before = daemon_sockets(daemon)
    for _ in range(20):
        path = f"/v1/sandboxes/{record.id}/execs/silent/output?stream=stdout&follow=true"
        with raw_request(world, "GET", path) as client:
            client.settimeout(0.15)
            try:
                client.recv(1000)
            except TimeoutError:
                pass
    await asyncio.sleep(2)
    assert daemon_sockets(daemon) <= before + 1


async def test_an_answer_before_the_whole_body_is_the_connections_last(
    world: World, http: httpx.AsyncClient, usable: tuple[Record, Daemon]
) -> None:
    """The daemon still waits for the rest of a refused body: the next request must not be taken for it."""
    record, _ = usable
    for _ in range(3):
        with raw_request(
            world, "PUT", files(record, "a\0b"), headers={"Content-Length": "100"}, body=b"x"
        ) as client:
            assert b" 422 " in await asyncio.to_thread(client.recv, 4096)
            for _ in range(3):
                answer = await http.delete(files(record, "missing") + "&missing_ok=true")
                assert (answer.status_code, answer.json()["deleted"]) == (200, False), answer.text


async def test_b064_a_broken_upload_changes_nothing(world: World, usable: tuple[Record, Daemon]) -> None:
    record, daemon = usable
    (daemon.home / "data.bin").write_bytes(b"v1")
    for reset in (False, True):
        headers = {"Content-Length": str(10 * MIB)}
        with raw_request(world, "PUT", files(record, "data.bin"), headers=headers) as client:
            client.sendall(b"2" * (6 * MIB))
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        for _ in range(40):
            await asyncio.sleep(0.05)
            if sorted(path.name for path in daemon.home.iterdir()) == ["data.bin"]:
                break
        assert (daemon.home / "data.bin").read_bytes() == b"v1"
        assert [path.name for path in daemon.home.iterdir()] == ["data.bin"]


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, MIB])
async def test_b065_chunked_bodies_of_any_size(
    world: World, http: httpx.AsyncClient, usable: tuple[Record, Daemon], size: int
) -> None:
    record, daemon = usable
    content = os.urandom(size)

    async def source() -> AsyncIterator[bytes]:
        for start in range(0, size, 10_000):
            yield content[start : start + 10_000]

    answer = await http.put(files(record, "chunked"), content=source())
    assert answer.status_code == 201, answer.text
    assert (daemon.home / "chunked").read_bytes() == content


async def test_b065_a_malformed_chunk_stores_nothing(world: World, usable: tuple[Record, Daemon]) -> None:
    record, daemon = usable
    headers = {"Transfer-Encoding": "chunked"}
    with raw_request(world, "PUT", files(record, "bad"), headers=headers) as client:
        client.sendall(b"5\r\nhello\r\nZZ\r\n")
        client.settimeout(5)
        answer = client.recv(4000)
        assert answer.startswith(b"HTTP/1.1 400") and b"application/problem+json" in answer
    await asyncio.sleep(0.3)
    assert not list(daemon.home.iterdir())


async def test_b065_expect_continue(
    world: World, http: httpx.AsyncClient, usable: tuple[Record, Daemon]
) -> None:
    """The body is asked for only when somebody wants it."""
    record, daemon = usable
    headers = {"Expect": "100-continue", "Content-Length": "5"}
    with raw_request(world, "PUT", files(record, "ex"), headers=headers) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 100")
        client.sendall(b"hello")
        assert b" 201 " in client.recv(1000)
    assert (daemon.home / "ex").read_bytes() == b"hello"
    unknown = f"/v1/sandboxes/sb-{'a' * 26}/files?path=x"
    with raw_request(
        world, "PUT", unknown, headers={"Expect": "100-continue", "Content-Length": str(10**9)}
    ) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 404")


async def test_b065_a_refusal_comes_before_the_end_of_the_body(
    world: World, usable: tuple[Record, Daemon]
) -> None:
    """The daemon refuses a path at once; the caller hears it although its body never ends."""
    record, _ = usable
    with raw_request(
        world, "PUT", files(record, "/proc/nosuch/x"), headers={"Content-Length": str(10**9)}
    ) as client:
        client.sendall(b"x" * 1000)
        client.settimeout(5)
        answer = client.recv(4000)
    assert answer.split(b" ")[1][:1] == b"4", answer


async def test_uploads_hold_the_lease(world: World, ledger: Ledger) -> None:
    record, _ = await world.usable(ledger, lease_seconds=2)
    headers = {"Content-Length": "40"}
    with raw_request(world, "PUT", files(record, "held"), headers=headers) as client:
        for _ in range(40):
            client.sendall(b"x")
            await asyncio.sleep(0.1)
            await ledger.expire(100)
        assert b" 201 " in client.recv(1000)


def open_paths(daemon: Daemon, path: Path) -> int:
    count = 0
    for entry in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        try:
            count += entry.readlink() == path
        except OSError:
            continue
    return count


def daemon_sockets(daemon: Daemon) -> int:
    count = 0
    for entry in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            continue
    return count


def cpu_seconds(world: World) -> float:
    ticks = 0
    for pid in world.server_pids():
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(parts[11]) + int(parts[12])
    return ticks / os.sysconf("SC_CLK_TCK")
