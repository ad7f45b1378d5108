"""Files in a real sandbox root: what needs a daemon of its own to be killed, or an overlay under it."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import roots
from tests.bare_daemon import TOKEN, Daemon, bare_daemon
from tests.integration.local_world import eventually

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def musl() -> Iterator[Daemon]:
    with bare_daemon(roots.root("musl")) as daemon:
        yield daemon


def open_files(daemon: Daemon) -> list[str]:
    listed = daemon.request("GET", "/v1/files/list", {"path": "/proc/self/fd"}).json()
    return [entry.get("target", "") for entry in listed["items"]]


def begin_upload(daemon: Daemon, path: str, length: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(daemon.socket))
    head = f"PUT /v1/files?path={path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def test_b064_a_daemon_killed_in_an_upload_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"v1")
    bound = ["--bind", str(tmp_path), "/data"]
    with (
        bare_daemon(roots.root("musl"), bwrap=bound) as daemon,
        begin_upload(daemon, "/data/data.bin", 100 * MIB) as connection,
    ):
        for _ in range(60):
            connection.sendall(b"2" * MIB)
        daemon.process.kill()
        daemon.process.wait(20)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]
    assert (tmp_path / "data.bin").read_bytes() == b"v1"
    with bare_daemon(roots.root("musl"), bwrap=bound) as daemon:
        assert daemon.put("/data/data.bin", b"2" * 100 * MIB).status == 200
    assert (tmp_path / "data.bin").stat().st_size == 100 * MIB


def test_b064_a_caller_that_leaves_frees_the_space(musl: Daemon) -> None:
    assert musl.put("/srv/data.bin", "v1").status == 201
    with begin_upload(musl, "/srv/data.bin", 10 * MIB) as connection:
        connection.sendall(b"2" * 6 * MIB)
    assert eventually(lambda: not any("deleted" in target for target in open_files(musl)), 10)
    assert musl.out("ls -A /srv") == "data.bin\n"
    assert musl.get("/srv/data.bin").body == b"v1"


def test_moves_of_the_images_own_folders(musl: Daemon) -> None:
    """An overlay cannot rename a folder of a lower layer: the move is a copy there, and nobody sees the difference."""
    before = musl.out("ls -la /bin | awk '{print $1, $9, $10, $11}' | sort")
    moved = musl.request("POST", "/v1/files/move", body={"from": "/bin", "to": "/tools"})
    assert moved.status == 200, moved.body
    assert musl.exec(command="true").json()["reason"] == "shell_not_found"
    back = musl.request("POST", "/v1/files/move", body={"from": "/tools", "to": "/bin"})
    assert back.status == 200, back.body
    assert musl.out("ls -la /bin | awk '{print $1, $9, $10, $11}' | sort") == before


def test_replacing_and_appending_to_a_file_of_the_image(musl: Daemon) -> None:
    assert musl.put("/etc/group", "more:x:7:\n", append="true").status == 200
    assert musl.out("head -n 1 /etc/group; tail -n 1 /etc/group").split() == ["root:x:0:", "more:x:7:"]
    assert musl.put("/etc/group", "root:x:0:\n").status == 200
    assert musl.out("cat /etc/group; stat -c %a /etc/group").split() == ["root:x:0:", "644"]


def test_b063_ten_large_files_at_once_in_little_memory(tmp_path: Path) -> None:
    size = 100 * MIB
    digests: dict[int, str] = {}

    def up_and_down(daemon: Daemon, number: int) -> None:
        block = hashlib.sha512(bytes([number])).digest() * (MIB // 64)
        connection = begin_upload(daemon, f"/data/{number}", size)
        expected = hashlib.sha256()
        for _ in range(size // MIB):
            connection.sendall(block)
            expected.update(block)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 201
        answer.read()
        connection.sendall(
            f"GET /v1/files?path=/data/{number} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        found = hashlib.sha256()
        while block := answer.read(MIB):
            found.update(block)
        connection.close()
        assert found.hexdigest() == expected.hexdigest()
        digests[number] = found.hexdigest()

    with bare_daemon(roots.root("musl"), bwrap=["--bind", str(tmp_path), "/data"]) as daemon:
        threads = [threading.Thread(target=up_and_down, args=(daemon, number)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peak = next(
            int(line.split()[1])
            for line in daemon.get("/proc/self/status").body.decode().splitlines()
            if line.startswith("VmHWM")
        )
    assert len(set(digests.values())) == 10
    assert peak < 64 * 1024, f"the daemon took {peak} KiB"
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {size}
