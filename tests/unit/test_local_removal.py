"""Trees of any depth, mode and number go, and nothing outside of them does."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from worker.providers.local.removal import remove_tree, sweep


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "trash").mkdir()
    return tmp_path / "trash"


def test_modes_and_kinds(tmp_path: Path, scratch: Path) -> None:
    top = tmp_path / "t"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/f").write_text("x")
    (top / "a/fifo").touch()
    os.mkfifo(top / "a/pipe")
    os.mknod(top / "a/whiteout", stat.S_IFCHR, os.makedev(0, 0))
    (top / "a/b").chmod(0)
    (top / "a").chmod(0)
    top.chmod(0)
    assert remove_tree(top, scratch)
    assert not top.exists() and not list(scratch.iterdir())


def test_nothing_there_is_done_already(tmp_path: Path, scratch: Path) -> None:
    assert remove_tree(tmp_path / "missing", scratch)


def test_links_are_not_followed(tmp_path: Path, scratch: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "f").write_text("x")
    top = tmp_path / "t"
    (top / "d").mkdir(parents=True)
    (top / "l").symlink_to(kept)
    (top / "d/l").symlink_to(kept / "f")
    (tmp_path / "link").symlink_to(kept)
    assert remove_tree(top, scratch) and remove_tree(tmp_path / "link", scratch)
    assert (kept / "f").read_text() == "x"


def test_a_tree_deeper_than_any_path_or_stack(tmp_path: Path, scratch: Path) -> None:
    top = tmp_path / "t"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 20, dir_fd=fd)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    assert remove_tree(top, scratch)
    assert not top.exists() and not list(scratch.iterdir())


def test_what_a_deadline_leaves_is_out_of_place_and_swept_later(tmp_path: Path, scratch: Path) -> None:
    top = tmp_path / "t"
    (top / "a/b").mkdir(parents=True)
    (top / "a/f").write_text("x")
    assert not remove_tree(top, scratch, time.monotonic() - 1)
    assert not top.exists()
    assert not sweep(scratch, time.monotonic() - 1)
    assert sweep(scratch, time.monotonic() + 10)
    assert not list(scratch.iterdir())


def test_several_sweep_at_once(tmp_path: Path, scratch: Path) -> None:
    top = tmp_path / "t"
    for i in range(300):
        (top / f"{i}/x/y").mkdir(parents=True)
        (top / f"{i}/x/f").write_text("x")
    remove_tree(top, scratch, time.monotonic() - 1)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            sweep(scratch, time.monotonic() + 20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and not list(scratch.iterdir())


def test_a_sweep_that_takes_the_bin_meanwhile(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "t"
    top.mkdir()
    made = Path.mkdir
    swept: list[Path] = []

    def mkdir_and_lose(self: Path, mode: int = 0o777) -> None:
        made(self, mode)
        if not swept:
            swept.append(self)
            sweep(scratch, time.monotonic() + 5)

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    assert remove_tree(top, scratch)
    assert swept and not top.exists() and not list(scratch.iterdir())


def test_one_tree_that_cannot_be_removed_does_not_keep_the_others(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (scratch / f".bin.{name}").mkdir()
        (scratch / f".bin.{name}" / "file").touch()
    unlink = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name == ".bin.b":
            raise PermissionError(1, "Operation not permitted", str(self))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError):
        sweep(scratch, time.monotonic() + 5)
    assert [entry.name for entry in scratch.iterdir()] == [".bin.b"]
