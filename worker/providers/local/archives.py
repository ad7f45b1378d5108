"""Reading images as other tools write them: an OCI layout (folder or tar) and `docker save` (tar).

Both are a set of named blobs; only the way from the index to the list of layers differs. Blobs are streamed, and where the format
names a digest it is checked.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import platform
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, cast

import msgspec

from worker.providers.local.errors import ImageInvalid

JSON_BYTES_MAX = 8 * 1024**2
NESTED_INDEXES_MAX = 4
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
"""What the standard library says of a damaged archive."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What of an image's configuration is honoured. Its entrypoint and command are not run: the daemon is the first process."""

    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None


class Blobs(Protocol):
    def open(self, name: str) -> IO[bytes]:
        """Raises ImageInvalid when it is missing."""
        ...

    def has(self, name: str) -> bool: ...


class FolderBlobs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return self._inside(name) and (self._folder / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        path = self._folder / name
        if path.is_symlink() or not self.has(name):
            raise ImageInvalid(f"the image has no {name!r}")
        return path.open("rb")

    def _inside(self, name: str) -> bool:
        """Neither a link nor a name in a manifest ("../../x", "/x") may lead out of the folder that callers may name."""
        try:
            return (self._folder / name).resolve().is_relative_to(self._folder.resolve())
        except (OSError, RuntimeError, ValueError):
            return False


class TarBlobs:
    """An uncompressed tar, whose members can be read in any order."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {member.name.removeprefix("./"): member for member in tar.getmembers()}

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        try:
            # Old versions of `docker save` store a layer that two images share as a link.
            stream = None if member is None else self._tar.extractfile(member)
        except KeyError:
            stream = None
        if stream is None:
            raise ImageInvalid(f"the image has no {name!r}")
        return stream


@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    digest: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    config: ImageConfig
    layers: tuple[Layer, ...]


def is_image(blobs: Blobs) -> bool:
    return (blobs.has("oci-layout") and blobs.has("index.json")) or blobs.has("manifest.json")


def read_manifest(blobs: Blobs) -> Manifest:
    """Raises ImageInvalid."""
    if blobs.has("index.json"):
        return _read_oci(blobs)
    return _read_docker(blobs)


def _read_oci(blobs: Blobs) -> Manifest:
    document = _json(blobs, "index.json", None)
    for _ in range(NESTED_INDEXES_MAX):
        if "manifests" not in document:
            break
        chosen = _choose(document["manifests"])
        document = _json(blobs, _blob(chosen), chosen)
    try:
        config = _json(blobs, _blob(document["config"]), document["config"])
        layers = tuple(Layer(_blob(layer), str(layer["digest"])) for layer in document["layers"])
    except (KeyError, TypeError) as error:
        raise ImageInvalid(f"the image's manifest is not one: {error}") from error
    return Manifest(_config(config), layers)


def _choose(manifests: Any) -> dict[str, Any]:
    """The one for this machine; attestations and the like name a platform of "unknown"."""
    if not isinstance(manifests, list) or not all(isinstance(item, dict) for item in manifests):
        raise ImageInvalid("the image's index is not one")
    machine = _MACHINES.get(platform.machine(), platform.machine())
    fitting = [
        item
        for item in manifests
        if (item.get("platform") or {}).get("architecture", machine) == machine
        and (item.get("platform") or {}).get("os", "linux") == "linux"
    ]
    if not fitting:
        raise ImageInvalid(f"the image has no variant for linux/{machine}")
    first: dict[str, Any] = fitting[0]
    return first


def _blob(descriptor: dict[str, Any]) -> str:
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise ImageInvalid(f"unsupported digest {str(digest)[:80]!r}")
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _read_docker(blobs: Blobs) -> Manifest:
    with blobs.open("manifest.json") as stream:
        items = _decode(stream.read(JSON_BYTES_MAX), "manifest.json")
    if not isinstance(items, list) or len(items) == 0 or not isinstance(items[0], dict):
        raise ImageInvalid("manifest.json names no image")
    if len(items) > 1:
        raise ImageInvalid(f"the archive holds {len(items)} images; save one image an archive")
    config, layers = items[0].get("Config"), items[0].get("Layers")
    if not isinstance(config, str) or not isinstance(layers, list):
        raise ImageInvalid("manifest.json names no configuration or no layers")
    return Manifest(
        _config(_json(blobs, config, None)),
        tuple(Layer(str(name).removeprefix("./"), None) for name in layers),
    )


def _json(blobs: Blobs, name: str, descriptor: dict[str, Any] | None) -> dict[str, Any]:
    with blobs.open(name) as stream:
        content = stream.read(JSON_BYTES_MAX)
    if descriptor is not None and f"sha256:{hashlib.sha256(content).hexdigest()}" != descriptor.get("digest"):
        raise ImageInvalid(f"{name} does not have the content that its name promises")
    document = _decode(content, name)
    if not isinstance(document, dict):
        raise ImageInvalid(f"{name} is not a JSON object")
    return document


def _decode(content: bytes, name: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise ImageInvalid(f"{name} is not JSON") from error


def _config(document: dict[str, Any]) -> ImageConfig:
    config = document.get("config") or document.get("Config") or {}
    if not isinstance(config, dict):
        raise ImageInvalid("the image's configuration is not an object")
    entries = config.get("Env") or []
    if not isinstance(entries, list):
        raise ImageInvalid("the image's Env is not a list")
    if any("\0" in str(entry) for entry in entries):
        raise ImageInvalid("the image's Env holds a null byte")
    env = dict(str(entry).split("=", 1) for entry in entries if "=" in str(entry)[1:])
    return ImageConfig(
        env, str(config.get("User") or "") or None, str(config.get("WorkingDir") or "") or None
    )


@contextlib.contextmanager
def open_layer(blobs: Blobs, layer: Layer) -> Iterator[tarfile.TarFile]:
    """A layer as a tar to be read from front to back; its digest is checked at the end. Raises ImageInvalid."""
    with blobs.open(layer.name) as raw:
        checked = _Hashing(raw)
        try:
            with decompress(io.BufferedReader(checked, 1024**2)) as plain, _tar(plain) as tar:
                yield tar
            while checked.read(1024**2):
                pass
        except BROKEN as error:
            raise ImageInvalid(f"layer {layer.name} is damaged: {error}") from error
    if layer.digest is not None and checked.digest() != layer.digest:
        raise ImageInvalid(f"layer {layer.name} does not have the content that its name promises")


def _tar(stream: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape")


def decompress(stream: io.BufferedReader) -> IO[bytes]:
    """By what the stream begins with, not by what its name says. Raises ImageInvalid."""
    head = stream.peek(6)[:6]
    if head.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream, mode="rb"))
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(stream)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(stream)
    return stream


def _unzstd(stream: io.BufferedReader) -> IO[bytes]:
    try:
        # Part of the standard library since Python 3.14.
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImageInvalid(
            "a layer is compressed with zstd, which this Python (before 3.14) cannot read; save the image with gzip, for example "
            "`skopeo copy --dest-compress-format gzip`"
        ) from None
    return cast("IO[bytes]", zstd.ZstdFile(stream))


class _Hashing(io.RawIOBase):
    """Passes bytes through and keeps their digest."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._source.read(len(buffer))
        self._hash.update(content)
        buffer[: len(content)] = content
        return len(content)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
