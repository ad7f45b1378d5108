"""Folders as tar streams: exact both ways, and no member reaches outside, whatever it is called."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from sandman import tarball
from sandman.errors import ArchiveError


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    out.seek(0)
    return out


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


class Reader:
    """Only read(), as a stream has."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(size)


def test_a_folder_round_trips_exactly(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir(mode=0o750)
    (source / "file").write_bytes(os.urandom(100_000))
    (source / "zero").touch()
    (source / "run").write_bytes(b"#!")
    (source / "run").chmod(0o755)
    (source / "a b\n-c").write_bytes(b"odd")
    (source / ("n" * 255)).write_bytes(b"long")
    (source / "deep" / "er" / "é").write_bytes(b"nfc")
    (source / "deep" / "er" / "e\u0301").write_bytes(b"nfd")
    (source / os.fsdecode(b"\xff\xfe")).write_bytes(b"bytes")
    (source / "link").symlink_to("deep/er")
    os.mkfifo(source / "pipe")
    done = tarball.unpack(Reader(b"".join(tarball.pack(source))), tmp_path / "b")

    def tree(root: Path) -> dict[bytes, tuple[int, bytes]]:
        found = {}
        for folder, folders, files in os.walk(root):
            for name in folders + files:
                path = Path(folder) / name
                status = path.lstat()
                if path.is_symlink():
                    content = os.fsencode(path.readlink())
                elif path.is_file():
                    content = path.read_bytes()
                else:
                    content = b""
                mode = 0 if path.is_symlink() else stat.S_IMODE(status.st_mode)
                found[os.fsencode(path.relative_to(root))] = (mode, content)
        return found

    expected = tree(source)
    del expected[b"pipe"]
    assert tree(tmp_path / "b") == expected
    assert done.files == len([1 for mode, content in expected.values()]) - 3
    assert done.skipped == []


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/abs", "..", "a/../b"])
def test_names_that_leave_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArchiveError):
        tarball.unpack(archive((member(name), b"x")), tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("links", ["inside", "all"])
def test_nothing_is_written_through_a_link(tmp_path: Path, links: tarball.LinkPolicy) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"v1")
    target = str(outside)
    tar = archive((member("door", tarfile.SYMTYPE, target), b""), (member("door/kept"), b"v2"))
    if links == "all":
        with pytest.raises(ArchiveError, match="below a link"):
            tarball.unpack(tar, tmp_path / "in", links)
    else:
        done = tarball.unpack(tar, tmp_path / "in", links)
        assert done.skipped == ["door"]
    assert (outside / "kept").read_bytes() == b"v1"


def test_a_link_that_was_there_before_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"v1")
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "file").symlink_to(victim)
    (inside / "door").symlink_to(tmp_path)
    tarball.unpack(archive((member("file"), b"v2")), inside)
    assert victim.read_bytes() == b"v1" and (inside / "file").read_bytes() == b"v2"
    with pytest.raises(ArchiveError):
        tarball.unpack(archive((member("door/victim"), b"v2")), inside)
    assert victim.read_bytes() == b"v1"


def test_hard_links_stay_inside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s")
    for target in ("../secret", str(secret)):
        with pytest.raises(ArchiveError):
            tarball.unpack(archive((member("h", tarfile.LNKTYPE, target), b"")), tmp_path / "in")
    done = tarball.unpack(
        archive((member("f"), b"data"), (member("h", tarfile.LNKTYPE, "f"), b"")), tmp_path / "in"
    )
    assert done.files == 2 and (tmp_path / "in" / "h").read_bytes() == b"data"


@pytest.mark.parametrize(
    "target, kept",
    [("b", True), ("../x", False), ("sub/../b", True), ("/etc", False), ("sub/../../x", False)],
)
def test_links_out_of_the_folder_are_skipped_and_told(tmp_path: Path, target: str, kept: bool) -> None:
    done = tarball.unpack(archive((member("l", tarfile.SYMTYPE, target), b"")), tmp_path / "in")
    assert (tmp_path / "in" / "l").is_symlink() is kept
    assert done.skipped == ([] if kept else ["l"])


def test_devices_are_skipped_and_set_id_bits_dropped(tmp_path: Path) -> None:
    done = tarball.unpack(
        archive((member("dev", tarfile.CHRTYPE), b""), (member("s", mode=0o4755), b"x")), tmp_path
    )
    assert done.skipped == ["dev"]
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o755


@pytest.mark.parametrize("data", [b"", b"junk" * 400, b"x" * 512])
def test_what_is_no_archive_is_an_archive_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArchiveError):
        tarball.unpack(Reader(data), tmp_path)


def test_a_cut_archive_is_an_error_and_not_a_shorter_folder(tmp_path: Path) -> None:
    whole = archive((member("f"), b"x" * 5000)).getvalue()
    with pytest.raises(ArchiveError):
        tarball.unpack(Reader(whole[:2000]), tmp_path)


def test_a_file_that_shrinks_while_it_is_packed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 2 * tarball.CHUNK)
    stream = tarball.pack(tmp_path)
    next(stream)
    next(stream)
    path.write_bytes(b"")
    with pytest.raises(ArchiveError, match="shrank"):
        list(stream)
