"""Layers are untrusted: nothing in one reaches outside the root, and whiteouts mean what the format says."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.local_archives import Entry, layer, own_folders
from worker.providers.local.errors import ImageInvalid, Interrupted
from worker.providers.local.rootfs import resolve
from worker.providers.local.unpack import Budget, Layers, copy_tree


def budget(**changes: Any) -> Budget:
    return Budget(
        **{"bytes_left": 10**7, "entries_left": 10_000, "deadline": time.monotonic() + 60, **changes}
    )


def unpack(tmp_path: Path, *layers: list[Entry], allowed: Budget | None = None) -> Path:
    root = tmp_path / "image" / "root"
    root.mkdir(parents=True)
    target = Layers(root, own_folders(tmp_path), allowed or budget())
    for entries in layers:
        with tarfile.open(fileobj=io.BytesIO(layer(entries)), mode="r|") as tar:
            target.apply(tar)
    return root


def tree(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)  # noqa: PTH115
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = None
    return found


def test_files_folders_links(tmp_path: Path) -> None:
    root = unpack(
        tmp_path,
        [
            ("dir", "usr", 0o555),
            ("file", "usr/a", b"1"),
            ("link", "bin", "usr"),
            ("hard", "usr/b", "usr/a"),
            ("fifo", "pipe", None),
            ("device", "null", None),
        ],
    )
    assert tree(root / "usr") == {"a": b"1", "b": b"1"}
    assert (root / "usr/a").stat().st_ino == (root / "usr/b").stat().st_ino
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)
    assert not (root / "null").exists()
    assert stat.S_IMODE((root / "usr").stat().st_mode) == 0o755, (
        "a root without privileges must be able to write"
    )
    assert (root / "usr/a").stat().st_mtime == 1_700_000_000


def test_a_later_layer_writes_through_the_links_of_an_earlier_one(tmp_path: Path) -> None:
    root = unpack(
        tmp_path, [("dir", "usr/lib", 0o755), ("link", "lib", "usr/lib")], [("file", "lib/x", b"1")]
    )
    assert tree(root)["usr/lib/x"] == b"1"
    assert (root / "lib").is_symlink()


def test_whiteouts(tmp_path: Path) -> None:
    root = unpack(
        tmp_path,
        [
            ("file", "a/one", b"1"),
            ("file", "a/two", b"2"),
            ("file", "b/one", b"1"),
            ("file", "c/deep/x", b"1"),
        ],
        [
            ("file", "a/.wh.one", b""),
            ("file", "a/new", b"3"),
            ("file", "b/kept", b"4"),
            ("file", "b/.wh..wh..opq", b""),
            ("file", ".wh.c", b""),
            ("file", "c/again", b"5"),
        ],
    )
    assert tree(root) == {
        "a": None,
        "a/two": b"2",
        "a/new": b"3",
        "b": None,
        "b/kept": b"4",
        "c": None,
        "c/again": b"5",
    }


def test_a_whiteout_of_what_its_own_layer_adds_takes_only_the_lower_one(tmp_path: Path) -> None:
    root = unpack(tmp_path, [("file", "x", b"old")], [("file", "x", b"new"), ("file", ".wh.x", b"")])
    assert tree(root) == {"x": b"new"}


def test_a_file_in_place_of_a_folder_and_back(tmp_path: Path) -> None:
    root = unpack(
        tmp_path, [("file", "a/b/c", b"1"), ("file", "d", b"1")], [("file", "a", b"2"), ("dir", "d", 0o755)]
    )
    assert tree(root) == {"a": b"2", "d": None}


@pytest.mark.parametrize(
    "entries",
    [
        [("file", "../../escaped", b"x")],
        [("file", "/escaped", b"x")],
        [("link", "out", "/"), ("file", "out/escaped", b"x")],
        [("link", "out", "../../../../../.."), ("file", "out/escaped", b"x")],
        [("link", "a", "b"), ("link", "b", "../.."), ("file", "a/escaped", b"x")],
        [("link", "escaped", "/escaped-target"), ("file", "escaped", b"x")],
    ],
)
def test_no_name_leads_out_of_the_root(tmp_path: Path, entries: list[Entry]) -> None:
    root = unpack(tmp_path, entries)
    assert (root / "escaped").read_bytes() == b"x"
    assert not list(tmp_path.rglob("escaped-target"))
    assert [path for path in tmp_path.rglob("escaped") if not path.is_relative_to(root)] == []
    assert not Path("/escaped").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../etc/passwd", "missing", "folder"])
def test_a_hard_link_reaches_only_files_of_the_image(tmp_path: Path, target: str) -> None:
    with pytest.raises(ImageInvalid):
        unpack(tmp_path, [("dir", "folder", 0o755), ("hard", "x", target)])


def test_a_hard_link_to_a_symbolic_link_links_the_link(tmp_path: Path) -> None:
    root = unpack(tmp_path, [("link", "l", "/etc/passwd"), ("hard", "x", "l")])
    assert tree(root)["x"] == "-> /etc/passwd"


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([("file", "big", b"x" * 1001)], {"bytes_left": 1000}),
        ([("file", str(i), b"") for i in range(11)], {"entries_left": 10}),
    ],
)
def test_sums_are_bounded(tmp_path: Path, entries: list[Entry], allowed: dict[str, int]) -> None:
    with pytest.raises(ImageInvalid, match="larger"):
        unpack(tmp_path, entries, allowed=budget(**allowed))  # made here: its deadline counts from now


def test_time_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        unpack(tmp_path, [("file", "a", b"")], allowed=budget(deadline=time.monotonic() - 1))


def test_links_that_never_end(tmp_path: Path) -> None:
    with pytest.raises(ImageInvalid, match="links"):
        unpack(tmp_path, [("link", "a", "b"), ("link", "b", "a"), ("file", "a/x", b"")])


PARTS = st.sampled_from(["a", "b", "..", ".", ""])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
ENTRIES = st.one_of(
    st.tuples(st.just("file"), NAMES, st.just(b"x")),
    st.tuples(st.just("dir"), NAMES, st.just(0o755)),
    st.tuples(st.just("link"), NAMES, st.one_of(NAMES, NAMES.map(lambda n: "/" + n))),
    st.tuples(st.just("hard"), NAMES, NAMES),
    st.tuples(st.just("file"), NAMES.map(lambda n: n + "/.wh.a"), st.just(b"")),
    st.tuples(st.just("file"), NAMES.map(lambda n: n + "/.wh..wh..opq"), st.just(b"")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=6), max_size=3))
def test_whatever_layers_hold_nothing_outside_changes(
    tmp_path_factory: pytest.TempPathFactory, layers: list[Any]
) -> None:
    base = tmp_path_factory.mktemp("u")
    (base / "a").mkdir()
    (base / "a" / "b").write_bytes(b"canary")
    try:
        unpack(base, *layers)
    except ImageInvalid:
        pass
    places = (base / "image", base / "storage", base / "run")
    outside = {
        path.name for path in base.rglob("*") if not any(path.is_relative_to(place) for place in places)
    }
    assert outside == {"a", "b"}
    assert [path.name for path in (base / "image").iterdir()] == ["root"]
    assert (base / "a" / "b").read_bytes() == b"canary"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("etc/x", "etc/x"),
        ("abs/x", "etc/x"),
        ("up/x", "x"),
        ("../../etc", "etc"),
        ("a/./b//c", "a/b/c"),
        ("deep/x", "etc/x"),
    ],
)
def test_paths_are_resolved_inside_the_root(tmp_path: Path, path: str, found: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "abs").symlink_to("/etc")
    (tmp_path / "up").symlink_to("../../../../..")
    (tmp_path / "deep").symlink_to("up/abs")
    assert resolve(tmp_path, path) == tmp_path / found


def test_a_root_folder_is_copied_with_its_links_and_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_text("x")
    (source / "d/f").chmod(0o4755)
    (source / "d/g").hardlink_to(source / "d/f")
    (source / "l").symlink_to("/etc/passwd")
    (source / "d").chmod(0o555)
    root = tmp_path / "root"
    root.mkdir()
    copy_tree(source, root, own_folders(tmp_path), budget())
    (source / "d").chmod(0o755)
    assert tree(root) == {"d": None, "d/f": b"x", "d/g": b"x", "l": "-> /etc/passwd"}
    assert (root / "d/f").stat().st_ino == (root / "d/g").stat().st_ino
    assert stat.S_IMODE((root / "d/f").stat().st_mode) == 0o755, "set-uid bits do not survive"
