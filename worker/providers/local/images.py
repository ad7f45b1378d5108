"""Copies of images, made once and shared by all sandboxes that stand on them.

STORAGE/images/KEY/{root, image.json}: the root belongs to the sandboxes' uid and never changes while it is there, because running
overlays lie over it. A copy is put together beside its place and moved in with one rename; a draft found while holding the lock is
somebody's who was killed. The number and size of copies are bounded: those longest unused go first, never one that a sandbox names
in its state.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from worker.providers.local.archives import (
    BROKEN,
    Blobs,
    FolderBlobs,
    ImageConfig,
    TarBlobs,
    is_image,
    open_layer,
    read_manifest,
)
from worker.providers.local.catalogue import Catalogue, Source
from worker.providers.local.errors import ImageInvalid, ImageNotFound, LocalError
from worker.providers.local.folders import Folders, make_given, make_passable
from worker.providers.local.options import LocalOptions
from worker.providers.local.removal import remove_tree
from worker.providers.local.state import ids_with_state, load, locked
from worker.providers.local.unpack import ENTRIES_MAX, Budget, Layers, copy_tree

IMPORT_SECONDS_MAX = 600.0
LOCK_SECONDS = IMPORT_SECONDS_MAX + 30.0
RECENTLY_SECONDS = 900.0
"""A copy used so recently may be in the hands of a create that has not written that down yet."""


class _Description(msgspec.Struct, frozen=True):
    """image.json; written last, so that a copy without it is not one."""

    env: dict[str, str]
    user: str | None
    workdir: str | None
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Image:
    key: str
    root: Path
    config: ImageConfig


class ImageStore:
    def __init__(self, options: LocalOptions, folders: Folders) -> None:
        self._options = options
        self._folders = folders
        self._catalogue = Catalogue(options)

    def get(self, name: str) -> Image:
        """The copy of an image, made now if need be. Blocks: milliseconds when it is there, up to minutes when not. Raises
        LocalError, OSError."""
        source = self._catalogue.find(name)
        found = self._load(source.key)
        if found is None:
            with locked(self._folders.locks / f"image-{source.key}", LOCK_SECONDS):
                found = self._load(source.key)
                if found is None:
                    self._import(source)
                    found = self._load(source.key)
            self._evict(keep=source.key)
        if found is None:
            raise ImageNotFound(f"the copy of image {name!r} vanished while it was made")
        return found

    def _load(self, key: str) -> Image | None:
        place = self._folders.images / key
        try:
            described = msgspec.json.decode((place / "image.json").read_bytes(), type=_Description)
            os.utime(place)
        except (OSError, msgspec.DecodeError):
            return None
        return Image(key, place / "root", ImageConfig(described.env, described.user, described.workdir))

    def _import(self, source: Source) -> None:
        draft = self._folders.images / f".draft-{source.key}"
        if draft.exists():
            remove_tree(draft, self._folders.images)
        make_passable(draft, self._folders)
        try:
            budget = Budget(self._options.image_bytes_max, ENTRIES_MAX, time.monotonic() + IMPORT_SECONDS_MAX)
            config = self._fill(source, draft, budget)
            description = _Description(
                config.env,
                config.user,
                config.workdir,
                self._options.image_bytes_max - budget.bytes_left,
                str(source.path),
            )
            (draft / "image.json").write_bytes(msgspec.json.encode(description))
            place = self._folders.images / source.key
            if place.exists():
                # A copy without a readable description: half of a removal, or a disk that lost it.
                remove_tree(place, self._folders.images)
            draft.rename(place)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(draft, self._folders.images)
            raise

    def _fill(self, source: Source, draft: Path, budget: Budget) -> ImageConfig:
        root = draft / "root"
        make_given(root, self._folders)
        try:
            if source.kind == "folder":
                copy_tree(source.path, root, self._folders, budget)
                return ImageConfig()
            if source.kind == "layout":
                return self._unpack(FolderBlobs(source.path), root, budget)
            plain = _plain(source.path, draft, budget)
            with tarfile.open(plain, "r:") as tar:
                config = self._unpack(TarBlobs(tar), root, budget)
            if plain != source.path:
                plain.unlink()
            return config
        except BROKEN as error:
            raise ImageInvalid(f"{source.path.name!r} is damaged: {error}") from error

    def _unpack(self, blobs: Blobs, root: Path, budget: Budget) -> ImageConfig:
        if not is_image(blobs):
            raise ImageInvalid(
                "the archive is neither an OCI image nor one of `docker save`; a plain tar of a root folder must be unpacked first"
            )
        manifest = read_manifest(blobs)
        layers = Layers(root, self._folders, budget)
        for layer in manifest.layers:
            with open_layer(blobs, layer) as tar:
                layers.apply(tar)
        return manifest.config

    def _evict(self, keep: str) -> None:
        with locked(self._folders.locks / "images", LOCK_SECONDS):
            used = layers_in_use(self._folders) | {keep}
            copies = self._copies()
            total = sum(size for _, size, _ in copies)
            for used_at, size, key in copies:
                if len(copies) <= self._options.images_max and total <= self._options.image_bytes_max:
                    break
                if key in used or time.time() - used_at < RECENTLY_SECONDS:
                    continue
                # Removing the one before may have taken a minute, in which somebody came for this one.
                if self._used_at(key) != used_at:
                    continue
                remove_tree(self._folders.images / key, self._folders.images)
                copies = [copy for copy in copies if copy[2] != key]
                total -= size

    def _used_at(self, key: str) -> float | None:
        try:
            return (self._folders.images / key).stat().st_mtime
        except FileNotFoundError:
            return None

    def _copies(self) -> list[tuple[float, int, str]]:
        """(last use, bytes, key), longest unused first."""
        copies = []
        for entry in os.scandir(self._folders.images):
            if entry.name.startswith("."):
                continue
            with contextlib.suppress(OSError, msgspec.DecodeError):
                described = msgspec.json.decode(
                    Path(entry.path, "image.json").read_bytes(), type=_Description
                )
                copies.append((entry.stat().st_mtime, described.bytes, entry.name))
        return sorted(copies)


def layers_in_use(folders: Folders) -> set[str]:
    states = (load(folders, sandbox_id) for sandbox_id in ids_with_state(folders))
    return {state.layer for state in states if state is not None}


def _plain(path: Path, draft: Path, budget: Budget) -> Path:
    """The archive itself, or its content when the whole of it is compressed: layers must be read in another order than they lie."""
    with path.open("rb") as stream:
        if stream.read(2) != b"\x1f\x8b":
            return path
    plain = draft / "archive.tar"
    with gzip.open(path, "rb") as source, plain.open("xb") as target:
        while chunk := source.read(1024**2):
            budget.take(0)
            if target.tell() > budget.bytes_left:
                raise ImageInvalid(
                    "the archive is larger than this service accepts (SANDMAN_IMAGE_BYTES_MAX)"
                )
            target.write(chunk)
    return plain


def sweep_drafts(folders: Folders) -> None:
    """Remove drafts that nobody works on: whoever did was killed. Called at start."""
    for entry in list(os.scandir(folders.images)):
        key = entry.name.removeprefix(".draft-")
        if key != entry.name:
            with contextlib.suppress(LocalError, OSError), locked(folders.locks / f"image-{key}", 0.0):
                remove_tree(folders.images / entry.name, folders.images)
