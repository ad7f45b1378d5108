"""Images by name and path: what is accepted, what is refused and how, copies made once and bounded."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.local_archives import archive_of, docker_archive, gz, layer, oci_layout, own_folders
from worker.providers.local import images
from worker.providers.local.errors import ImageInvalid, ImageNotFound
from worker.providers.local.folders import Folders
from worker.providers.local.images import ImageStore, sweep_drafts
from worker.providers.local.options import LocalOptions
from worker.providers.local.removal import remove_tree
from worker.providers.local.state import new_state, save

BASE = layer([("file", "etc/passwd", b"root:x:0:0::/root:/bin/sh\n"), ("file", "gone", b"1")])
TOP = layer([("file", ".wh.gone", b""), ("file", "app/main", b"2")])
CONFIG = {
    "Env": ["A=1", "B=x=y", "broken", "=z"],
    "User": "app:staff",
    "WorkingDir": "/app",
    "Entrypoint": ["/bin/false"],
}


class World:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.folders: Folders = own_folders(base)
        self.options = LocalOptions(
            storage=self.folders.storage,
            runtime=self.folders.runtime,
            data=base / "data",
            daemon=None,
            bwrap=None,
            uid=os.geteuid(),
            gid=os.getegid(),
            as_root=False,
            image_roots=(base / "data/images", base / "listed"),
            images_max=32,
            image_bytes_max=10**9,
            pids_default=64,
            instance="sandman-test",
        )
        self.named = self.options.named_images
        self.named.mkdir(parents=True)
        (base / "listed").mkdir()

    def store(self, **changes: Any) -> ImageStore:
        return ImageStore(replace(self.options, **changes), self.folders)

    def copies(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folders.images))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def make(kind: str, world: World) -> str:
    scratch = world.base / "scratch"
    if kind == "layout":
        return str(oci_layout(world.named / "img", [BASE, gz(TOP)], CONFIG))
    if kind == "nested":
        return str(oci_layout(world.named / "img", [gz(BASE), TOP], CONFIG, nested=True))
    if kind == "oci.tar":
        return str(archive_of(oci_layout(scratch, [BASE, gz(TOP)], CONFIG), world.named / "img.tar"))
    if kind == "oci.tgz":
        return str(archive_of(oci_layout(scratch, [BASE, TOP], CONFIG), world.named / "img.tar.gz"))
    return str(docker_archive(world.named / "img.tar", [BASE, TOP], CONFIG))


@pytest.mark.parametrize("kind", ["layout", "nested", "oci.tar", "oci.tgz", "docker"])
def test_every_format_gives_the_same_root(world: World, kind: str) -> None:
    path = make(kind, world)
    image = world.store().get(path)
    assert sorted(str(p.relative_to(image.root)) for p in image.root.rglob("*")) == [
        "app",
        "app/main",
        "etc",
        "etc/passwd",
    ]
    assert image.config.env == {"A": "1", "B": "x=y"}
    assert (image.config.user, image.config.workdir) == ("app:staff", "/app")
    assert world.store().get("img").key == image.key, "a bare name is the same image"
    assert sorted(path.name for path in image.root.parent.iterdir()) == ["image.json", "root"]


def test_an_unpacked_root_is_copied_and_copied_again_when_it_changes(world: World) -> None:
    root = world.base / "listed" / "rootfs"
    (root / "bin").mkdir(parents=True)
    (root / "bin/sh").write_text("1")
    first = world.store().get(str(root))
    assert (first.root / "bin/sh").read_text() == "1"
    (root / "bin/sh").write_text("22")
    second = world.store().get(str(root))
    assert second.key != first.key
    assert (second.root / "bin/sh").read_text() == "22"
    assert (first.root / "bin/sh").read_text() == "1", "running sandboxes stand on the first"


def test_a_burst_looks_at_the_folder_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    root = world.base / "listed" / "rootfs"
    root.mkdir()
    store = world.store()
    first = store.get(str(root))
    (root / "new").write_text("")
    assert store.get(str(root)).key == first.key
    monkeypatch.setattr("worker.providers.local.catalogue.RECHECK_SECONDS", 0.0)
    assert store.get(str(root)).key != first.key


@pytest.mark.parametrize(
    "name", ["python:3.12", "nosuch", "registry.invalid/nosuch:1", "UPPER//x", "--privileged", "$(id)"]
)
def test_what_is_not_here_is_said_with_what_is(world: World, name: str) -> None:
    oci_layout(world.named / "mine", [BASE])
    with pytest.raises(ImageNotFound) as caught:
        world.store().get(name)
    if name[0].islower():
        assert "mine" in str(caught.value) and "--image-root" in str(caught.value)


def test_a_path_outside_of_the_listed_folders_is_as_if_it_were_not_there(world: World) -> None:
    secret = world.base / "secret"
    secret.mkdir()
    (world.base / "listed/link").symlink_to(secret)
    messages = []
    for path in (
        secret,
        world.base / "listed/link",
        world.base / "missing",
        world.base / "listed",
        world.named,
        Path("/"),
    ):
        with pytest.raises(ImageNotFound) as caught:
            world.store().get(str(path))
        messages.append(str(caught.value).replace(str(path), "PATH"))
    assert len(set(messages[:-1])) == 1, "nothing tells what exists from what does not"
    assert world.copies() == []


def corrupt_blob(world: World) -> str:
    path = oci_layout(world.named / "img", [gz(BASE)])
    blobs = sorted((path / "blobs/sha256").iterdir(), key=lambda blob: blob.read_bytes()[:2] != b"\x1f\x8b")
    blobs[0].write_bytes(gz(TOP))
    return "img"


def truncated(world: World) -> str:
    path = oci_layout(world.named / "img", [gz(os.urandom(5000) + BASE)])
    for blob in (path / "blobs/sha256").iterdir():
        if blob.read_bytes()[:2] == b"\x1f\x8b":
            blob.write_bytes(blob.read_bytes()[:3000])
    return "img"


def missing_blob(world: World) -> str:
    path = oci_layout(world.named / "img", [BASE])
    max((path / "blobs/sha256").iterdir(), key=lambda blob: blob.stat().st_size).unlink()
    return "img"


def zstd(world: World) -> str:
    oci_layout(world.named / "img", [b"\x28\xb5\x2f\xfd" + b"\0" * 100])
    return "img"


def not_an_archive(world: World) -> str:
    (world.named / "img").write_text("hello")
    return "img"


def plain_tar(world: World) -> str:
    (world.named / "img.tar").write_bytes(BASE)
    return "img"


def other_machine(world: World) -> str:
    path = oci_layout(world.named / "img", [BASE])
    index = (path / "index.json").read_text()
    document = json.loads(index)
    document["manifests"] = document["manifests"][:1]
    (path / "index.json").write_text(json.dumps(document))
    return "img"


def escaping_digest(world: World) -> str:
    path = oci_layout(world.named / "img", [BASE])
    (path / "index.json").write_text('{"manifests": [{"digest": "sha256:../../../../etc/passwd"}]}')
    return "img"


def not_json(world: World) -> str:
    (oci_layout(world.named / "img", [BASE]) / "index.json").write_text("{")
    return "img"


@pytest.mark.parametrize(
    "broken",
    [
        corrupt_blob,
        truncated,
        missing_blob,
        zstd,
        not_an_archive,
        plain_tar,
        other_machine,
        escaping_digest,
        not_json,
    ],
)
def test_what_is_no_image_is_said_and_leaves_nothing(world: World, broken: Any) -> None:
    with pytest.raises(ImageInvalid):
        world.store().get(broken(world))
    assert world.copies() == []


def test_concurrent_creates_import_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    make("layout", world)
    imports: list[str] = []
    original = ImageStore._import

    def slow(self: ImageStore, source: Any) -> None:
        imports.append(source.key)
        time.sleep(0.3)
        original(self, source)

    monkeypatch.setattr(ImageStore, "_import", slow)
    keys: list[str] = []
    # A store each: as separate processes of the service have.
    threads = [threading.Thread(target=lambda: keys.append(world.store().get("img").key)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(keys) == 6 and len(set(keys)) == 1 and len(imports) == 1


def test_what_a_killed_import_left_is_in_nobodys_way(world: World) -> None:
    make("layout", world)
    key = world.store().get("img").key
    # Killed half way: a draft, no copy.
    (world.folders.images / key).rename(world.folders.images / f".draft-{key}")
    assert world.store().get("img").key == key
    assert world.copies() == [key]
    (world.folders.images / ".draft-other").mkdir()
    sweep_drafts(world.folders)
    assert world.copies() == [key]


def test_copies_are_bounded_and_never_taken_from_under_a_sandbox(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "RECENTLY_SECONDS", -1.0)
    store = world.store(images_max=2)
    keys = []
    for index in range(4):
        root = world.named / f"r{index}"
        root.mkdir()
        (root / "f").write_text("x" * index)
        keys.append(store.get(f"r{index}").key)
        os.utime(world.folders.images / keys[-1], (1000 + index, 1000 + index))
        if index == 0:
            save(world.folders, msgspec.structs.replace(new_state("sb-" + "a" * 26), layer=keys[0]))
    assert world.copies() == sorted([keys[0], keys[3]])


def test_a_copy_that_somebody_comes_for_while_others_are_removed_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    keys = []
    for index in range(3):
        root = world.named / f"r{index}"
        root.mkdir()
        (root / "f").write_text("x" * index)
        keys.append(store.get(f"r{index}").key)
        os.utime(world.folders.images / keys[-1], (1000 + index, 1000 + index))

    def remove_slowly(path: Path, scratch: Path) -> bool:
        store.get("r1")
        return remove_tree(path, scratch)

    monkeypatch.setattr(images, "remove_tree", remove_slowly)
    world.store(images_max=1)._evict(keep=keys[2])
    assert world.copies() == sorted([keys[1], keys[2]])


@pytest.mark.parametrize("name", ["../secret.tar", "/SECRET", "away/secret.tar"])
def test_a_manifest_cannot_name_what_lies_outside_of_its_folder(world: World, name: str) -> None:
    secret = world.base / "data/images/secret.tar"
    secret.write_bytes(layer([("file", "f", b"x")]))
    image = world.named / "img"
    image.mkdir()
    (image / "away").symlink_to(secret.parent)
    (image / "config.json").write_text("{}")
    layers = [name.replace("/SECRET", str(secret))]
    (image / "manifest.json").write_text(json.dumps([{"Config": "config.json", "Layers": layers}]))
    with pytest.raises(ImageInvalid, match="has no"):
        world.store().get("img")


def test_an_image_larger_than_the_bound_is_refused(world: World) -> None:
    docker_archive(world.named / "img.tar", [layer([("file", "big", b"x" * 100_000)])])
    with pytest.raises(ImageInvalid, match="larger"):
        world.store(image_bytes_max=50_000).get("img")
    assert world.copies() == []


def test_an_image_whose_layers_cannot_be_read_as_text(world: World) -> None:
    (world.named / "img").mkdir()
    (world.named / "img" / os.fsdecode(b"caf\xe9")).write_text("x")
    image = world.store().get("img")
    assert [os.fsencode(path.name) for path in image.root.iterdir()] == [b"caf\xe9"]
