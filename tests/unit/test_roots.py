"""The image roots that other tests stand on are what they claim to be."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest

from tests import roots
from tests.debian_packages import PackagesUnavailable, members, merged
from tests.image_files import Config, write_docker_archive, write_layout
from worker.providers.local.archives import FolderBlobs, TarBlobs, open_layer, read_manifest


def interpreter(program: Path) -> bool:
    """Whether an ELF program asks for a dynamic loader."""
    content = program.read_bytes()
    assert content[:5] == b"\x7fELF\x02"
    start = struct.unpack_from("<Q", content, 32)[0]
    size, count = struct.unpack_from("<HH", content, 54)
    return any(struct.unpack_from("<I", content, start + size * n)[0] == 3 for n in range(count))


def run(folder: Path, *command: str) -> str:
    """Run a program of a root where it lies: busybox is static."""
    return subprocess.run(
        [str(folder / command[0]), *command[1:]], capture_output=True, text=True, timeout=20, check=True
    ).stdout


def test_musl_has_a_shell_and_no_glibc() -> None:
    root = roots.root("musl")
    assert run(root.folder, "bin/busybox", "sh", "-c", "[ 1 = 1 ] && echo ok") == "ok\n"
    assert not list(root.folder.rglob("libc.so.6"))
    assert list(root.folder.glob("lib/ld-musl-*.so.1"))


def test_every_applet_is_there() -> None:
    folder = roots.root("musl").folder
    assert set(roots.APPLETS.split()) <= set(run(folder, "bin/busybox", "--list").split())


def test_empty_is_one_static_program() -> None:
    root = roots.root("empty")
    assert [path.name for path in root.folder.rglob("*")] == ["busybox"]
    assert not interpreter(root.folder / "busybox")


def test_debian_has_bash_glibc_and_accounts() -> None:
    folder = roots.root("debian").folder
    assert interpreter(folder / "usr/bin/bash")
    assert list(folder.glob("usr/lib/*-linux-gnu/libc.so.6"))
    assert (folder / "bin").is_symlink()
    assert "root:" in (folder / "etc/passwd").read_text()
    assert (folder / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_nonroot_and_readonly_say_so() -> None:
    nonroot, readonly = roots.root("nonroot"), roots.root("readonly")
    assert nonroot.config.user == "1000"
    assert "1000" not in (nonroot.folder / "etc/passwd").read_text()
    assert not any(variable.startswith("HOME=") for variable in nonroot.config.env)
    assert readonly.read_only
    assert not (readonly.folder / "tmp").exists()


@pytest.mark.parametrize("name", ["nonroot", "musl"])
def test_image_files_hold_the_root(name: str) -> None:
    root = roots.root(name)
    manifest = read_manifest(FolderBlobs(roots.layout(root)))
    assert manifest.config.user == root.config.user
    assert manifest.config.workdir == root.config.workdir
    for archive in (roots.oci_archive(root), roots.docker_archive(root)):
        with tarfile.open(archive) as tar:
            blobs = TarBlobs(tar)
            found = read_manifest(blobs)
            assert found.config == manifest.config
            with open_layer(blobs, found.layers[0]) as layer:
                owners = {member.name: (member.uid, member.gid) for member in layer}
    assert owners["bin/busybox"] == (0, 0)
    if name == "nonroot":
        assert owners["srv/work"] == (1000, 1000)


def small_tree(folder: Path) -> Path:
    (folder / "d").mkdir(parents=True)
    (folder / "d/f").write_bytes(b"content")
    (folder / "link").symlink_to("d/f")
    return folder


def test_the_same_root_gives_the_same_bytes(tmp_path: Path) -> None:
    config = Config(env=("A=b",), user="7", workdir="/d", entrypoint=("/d/f",), owners={"d": (7, 8)})
    layouts = []
    for number in ("1", "2"):
        tree = small_tree(tmp_path / number / "tree")
        write_layout(tree, config, tmp_path / number / "layout")
        write_docker_archive(tree, config, tmp_path / number / "docker.tar", "x:latest")
        layouts.append(
            {path.name: path.read_bytes() for path in (tmp_path / number).rglob("*/*") if path.is_file()}
        )
        layouts[-1]["docker"] = (tmp_path / number / "docker.tar").read_bytes()
    assert layouts[0] == layouts[1]
    for name, content in layouts[0].items():
        if len(name) == 64:
            assert hashlib.sha256(content).hexdigest() == name
    index = json.loads(layouts[0]["index.json"])
    manifest = json.loads(layouts[0][index["manifests"][0]["digest"].removeprefix("sha256:")])
    document = json.loads(layouts[0][manifest["config"]["digest"].removeprefix("sha256:")])
    assert document["config"] == {"Env": ["A=b"], "User": "7", "WorkingDir": "/d", "Entrypoint": ["/d/f"]}
    assert document["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]


def test_of_many_builders_one_builds(tmp_path: Path) -> None:
    built: list[int] = []

    def build(draft: Path) -> None:
        time.sleep(0.05)
        built.append(1)
        draft.write_text("x")

    threads = [
        threading.Thread(target=roots.made_once, args=(tmp_path / "a" / "made", build)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert (tmp_path / "a" / "made").read_text() == "x"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(draft: Path) -> None:
        draft.mkdir()
        raise OSError("half-way")

    with pytest.raises(OSError, match="half-way"):
        roots.made_once(tmp_path / "made", build)
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]


def test_packages_are_read(tmp_path: Path) -> None:
    package = tmp_path / "p.deb"
    entry = b"%-16s%-12d%-6d%-6d%-8o%-10d`\n"
    package.write_bytes(
        b"!<arch>\n"
        + entry % (b"debian-binary", 0, 0, 0, 0o644, 3)
        + b"2.0\n"
        + entry % (b"data.tar/", 0, 0, 0, 0o644, 2)
        + b"xy"
    )
    assert list(members(package)) == [("debian-binary", b"2.0"), ("data.tar", b"xy")]
    package.write_bytes(b"something else")
    with pytest.raises(PackagesUnavailable):
        list(members(package))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./bin/sh", "usr/bin/sh"),
        ("./usr/bin/env", "usr/bin/env"),
        ("./lib64", "usr/lib64"),
        (".", "."),
        ("./etc/bin/x", "etc/bin/x"),
    ],
)
def test_packages_are_merged_into_usr(name: str, expected: str) -> None:
    assert merged(name) == expected
