"""Files through the client: exact, streamed, atomic, and safe on this side too."""

from __future__ import annotations

import hashlib
import io
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sandman
from tests.fakes.proxy import Fault
from tests.integration.client.conftest import Place


async def test_b075_what_is_read_is_what_was_written(sandbox: sandman.AsyncSandbox) -> None:
    files = sandbox.files
    contents = {
        "empty": b"",
        "random": os.urandom(10_000_000),
        "archive.gz": b"\x1f\x8b\x08\x00" + os.urandom(100),
        "crlf.txt": b"a\r\nb\r\n",
        "nuls": bytes(1000),
    }
    for name, content in contents.items():
        await files.write(f"b075/{name}", content)
        assert await files.read(f"b075/{name}") == content
    with pytest.raises(sandman.FileMissing) as missing:
        await files.read("b075/nope")
    assert missing.value.errno == "ENOENT" and isinstance(missing.value, sandman.NotFound)
    with pytest.raises(sandman.IsADirectory):
        await files.read("b075")
    assert await files.exists("b075/empty") and not await files.exists("b075/nope")
    assert not await files.exists("b075/empty/below")


@pytest.mark.parametrize(
    "name",
    [
        "-rf",
        "a b",
        "a\nb",
        "\u00e9",
        "e\u0301",
        "n" * 255,
        "%2e%2e",
        "a?b#c&d=e+f",
        "🤣.txt",
        "'\"; touch pwn;#",
        " lead",
        "tail ",
        "\udcff\udcfe",
    ],
)
async def test_b060_odd_names_go_round(sandbox: sandman.AsyncSandbox, name: str) -> None:
    files = sandbox.files
    path = f"b060/{name}"
    await files.write(path, name.encode("utf-8", "surrogateescape"))
    assert name in [info.name for info in await files.list("b060")]
    assert (await files.stat(path)).size == len(name.encode("utf-8", "surrogateescape"))
    await files.move(path, f"{path[:200]}-moved")
    assert await files.read(f"{path[:200]}-moved") == name.encode("utf-8", "surrogateescape")
    await files.remove(f"{path[:200]}-moved")
    assert await files.list("b060") == []


async def test_ranges_append_mode_and_pages(sandbox: sandman.AsyncSandbox) -> None:
    files = sandbox.files
    await files.write("r/f", "0123456789", mode=0o600)
    assert b"".join([chunk async for chunk in files.read_chunks("r/f", start=3, end=6)]) == b"345"
    assert b"".join([chunk async for chunk in files.read_chunks("r/f", start=8)]) == b"89"
    assert b"".join([chunk async for chunk in files.read_chunks("r/f", start=100)]) == b""
    await files.write("r/f", "+", append=True)
    assert await files.read_text("r/f") == "0123456789+"
    assert (await files.stat("r/f")).mode == "0600"
    await sandbox.exec("cd ./r && touch $(seq 1 250)")
    names = [info.name async for info in files.iterate("r", page=100)]
    assert len(names) == 251 and len(set(names)) == 251


async def test_b063_sources_of_every_kind_stream_with_progress(
    sandbox: sandman.AsyncSandbox, scratch: Path
) -> None:
    size = 60_000_000
    local = scratch / "big"
    with local.open("wb") as out:
        for _ in range(60):
            out.write(os.urandom(1_000_000))
    digest = hashlib.sha256(local.read_bytes()).hexdigest()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen: list[tuple[int, int | None]] = []

    def generate() -> Iterator[bytes]:
        with local.open("rb") as file:
            while data := file.read(100_003):
                yield data

    await sandbox.files.upload(local, "big", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (size, size)
    with local.open("rb") as file:
        await sandbox.files.write("big2", file)
    await sandbox.files.write("big3", generate())
    sums = await sandbox.exec("sha256sum ./big ./big2 ./big3 | cut -c1-64")
    assert sums.stdout.split() == [digest] * 3
    await sandbox.files.download("big", scratch / "back")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert hashlib.sha256((scratch / "back").read_bytes()).hexdigest() == digest
    assert grown < 64 * 2**20, f"{grown} bytes for transfers of {size}"


async def test_b064_a_broken_upload_leaves_the_old_file_and_is_tried_again(place: Place) -> None:
    with place.proxy() as proxy:
        async with place.client() as steady, place.sandbox(steady) as made, place.client(proxy.url) as client:
            sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
            await made.files.write("b064/data", b"v1")
            new = os.urandom(5_000_000)
            first = proxy.seen.connections
            proxy.cut_all()
            proxy.faults = lambda number: Fault(cut_upstream_after=3_000_000)

            def once() -> Iterator[bytes]:
                yield from (new[start : start + 100_000] for start in range(0, len(new), 100_000))

            with pytest.raises(sandman.TransportError):
                await sandbox.files.write("b064/data", once())
            assert await made.files.read("b064/data") == b"v1"
            assert [info.name for info in await made.files.list("b064")] == ["data"]
            proxy.faults = lambda number: (
                Fault(cut_upstream_after=3_000_000) if number < first + 3 else Fault()
            )
            await sandbox.files.write("b064/data", new)
            assert await made.files.read("b064/data") == new


async def test_a_cut_download_is_an_error_and_leaves_no_file(place: Place, scratch: Path) -> None:
    with place.proxy() as proxy:
        async with place.client() as steady, place.sandbox(steady) as made, place.client(proxy.url) as client:
            sandbox = client.direct() if place.kind == "daemon" else await client.sandbox(made.id)
            await made.exec("mkdir -p ./cut/d; head -c 5000000 /dev/urandom > ./cut/d/f")
            await sandbox.files.stat("cut/d/f")
            (scratch / "f").write_bytes(b"old")
            proxy.cut_all()
            proxy.faults = lambda number: Fault(cut_after=1_000_000)
            with pytest.raises(sandman.TransportError):
                await sandbox.files.download("cut/d/f", scratch / "f")
            assert (scratch / "f").read_bytes() == b"old" and names(scratch) == ["f"]
            with pytest.raises((sandman.TransportError, sandman.ArchiveError)):
                await sandbox.files.download("cut/d", scratch / "folder")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(root: Path) -> dict[str, tuple[str, bytes, int]]:
    found: dict[str, tuple[str, bytes, int]] = {}
    for folder, folders, leaves in os.walk(root):
        for name in folders + leaves:
            path = Path(folder) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = ("link", os.fsencode(path.readlink()), 0)
            elif path.is_dir():
                found[key] = ("dir", b"", path.stat().st_mode & 0o777)
            else:
                found[key] = ("file", path.read_bytes(), path.stat().st_mode & 0o777)
    return found


async def test_folders_go_both_ways_whole(sandbox: sandman.AsyncSandbox, scratch: Path) -> None:
    source = scratch / "src"
    (source / "a" / "b").mkdir(parents=True)
    for number in range(300):
        (source / "a" / f"f{number}").write_bytes(os.urandom(number * 10))
    (source / "a" / "b" / "big").write_bytes(os.urandom(3_000_000))
    (source / "a" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "a" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("a/b")
    (source / ("long" * 50)).write_bytes(b"x")
    seen: list[int] = []
    await sandbox.files.upload(source, "up/src", progress=lambda done, total: seen.append(done))
    assert seen and seen == sorted(seen)
    assert (await sandbox.exec("./up/src/a/run.sh")).stdout == "ran\n"
    done = await sandbox.files.download("up/src", scratch / "back")
    assert tree(scratch / "back") == tree(source) and done.skipped == []


async def test_a_hostile_folder_cannot_leave_its_target(sandbox: sandman.AsyncSandbox, scratch: Path) -> None:
    await sandbox.exec(
        "mkdir -p ./evil/d && cd ./evil && ln -s /etc/passwd abs && ln -s ../../x rel && ln -s d in && touch d/f && mkfifo p"
    )
    done = await sandbox.files.download("evil", scratch / "out")
    assert sorted(done.skipped) == ["abs", "p", "rel"]
    assert names(scratch / "out") == ["d", "in"]
    assert names(scratch) == ["out"]


async def test_a_progress_callback_that_fails_ends_the_transfer(sandbox: sandman.AsyncSandbox) -> None:
    def fail(done: int, total: int | None) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sandbox.files.write("p", b"x" * 1_000_000, progress=fail)
    assert not await sandbox.files.exists("p")
    with pytest.raises(TypeError):
        await sandbox.files.write("p", io.StringIO("text"))  # type: ignore[arg-type]


def test_the_blocking_client_does_the_same(blocking_sandbox: sandman.Sandbox, scratch: Path) -> None:
    files = blocking_sandbox.files
    files.write("s/f", b"abc")
    assert files.read("s/f") == b"abc" and files.read_text("s/f") == "abc"
    assert b"".join(files.read_chunks("s/f", start=1)) == b"bc"
    assert [info.name for info in files.iterate("s")] == ["f"]
    files.mkdir("s/d/e")
    files.mkdir("s/d/e")
    files.move("s/f", "s/g")
    assert files.exists("s/g") and files.stat("s/g").size == 3
    files.download("s", scratch / "s")
    files.upload(scratch / "s", "t")
    assert files.read("t/g") == b"abc"
    with pytest.raises(sandman.FileError):
        files.remove("t")
    files.remove("t", recursive=True)

    def generate() -> Any:
        yield b"1"
        yield b"2"

    files.write("gen", generate())
    assert files.read("gen") == b"12"
