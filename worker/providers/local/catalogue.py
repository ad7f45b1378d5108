"""Which images callers may name, and where each one lies.

API keys belong to tenants, and the service may be root: a path must not be a way to read the operator's files. So an image is
`host`, a bare name in DIR/images, or a path under DIR/images or a folder that the operator listed (`--image-root`); links are
followed before that is checked.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.ledger.images import ImageNameInvalid, check_image_name
from worker.providers.local.archives import BROKEN, FolderBlobs, is_image
from worker.providers.local.errors import ImageInvalid, ImageNotFound
from worker.providers.local.options import LocalOptions

HOST = "host"
ARCHIVE_SUFFIXES = ("", ".tar", ".tar.gz", ".tgz")
RECHECK_SECONDS = 10.0
"""A walk over an unpacked image costs up to a second; a burst of creates shares one."""
ENTRIES_MAX = 3_000_000
NAMES_SHOWN = 20

Kind = Literal["folder", "layout", "archive"]


@dataclass(frozen=True, slots=True)
class Source:
    path: Path
    kind: Kind
    key: str
    """Changes with the content: the name of the copy that sandboxes stand on."""


class Catalogue:
    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._seen: dict[Path, tuple[float, Source]] = {}

    def find(self, image: str) -> Source:
        """Raises ImageNotFound, ImageInvalid. Blocks while it walks over a folder that it has not seen for a while."""
        path = self._locate(image)
        known = self._seen.get(path)
        if known is not None and time.monotonic() - known[0] < RECHECK_SECONDS:
            return known[1]
        try:
            source = self._describe(path)
        except OSError as error:
            raise ImageNotFound(f"image {image!r} cannot be read: {error.strerror}") from error
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[path] = (time.monotonic(), source)
        return source

    def _locate(self, image: str) -> Path:
        try:
            check_image_name(image)
        except ImageNameInvalid as error:
            raise ImageNotFound(str(error)) from error
        if image.startswith("/"):
            candidates = [Path(image)]
        elif "/" in image:
            candidates = []
        else:
            candidates = [self._options.named_images / (image + suffix) for suffix in ARCHIVE_SUFFIXES]
        for candidate in candidates:
            try:
                real = candidate.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if self._allowed(real):
                return real
        # One message for "not there" and "not allowed": what exists outside the listed folders is nobody's business.
        raise ImageNotFound(f"there is no image {image!r} here. {self._advice()}")

    def _allowed(self, real: Path) -> bool:
        return any(real.is_relative_to(_resolved(root)) for root in self._options.image_roots) and not any(
            real == _resolved(root) for root in self._options.image_roots
        )

    def _advice(self) -> str:
        try:
            names = sorted(entry.name for entry in os.scandir(self._options.named_images))
        except OSError:
            names = []
        shown = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
        return (
            "The local provider has no registry. It takes `host` (this machine's own programs), the bare name of something in the "
            f"service's DIR/images (there now: {shown or 'nothing'}), or a path under DIR/images or under a folder that the service "
            "was started with (--image-root). To add one, put an unpacked root folder, an OCI layout, or an archive made by "
            "`docker save` or `skopeo copy` there."
        )

    def _describe(self, path: Path) -> Source:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            kind: Kind = "layout" if is_image(FolderBlobs(path)) else "folder"
            return Source(path, kind, self._key(kind, _walk_digest(path)))
        if stat.S_ISREG(found.st_mode):
            _check_archive(path)
            text = f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ino} {found.st_dev}"
            return Source(path, "archive", self._key("archive", text))
        raise ImageInvalid(f"{path.name!r} is neither a folder nor a file")

    def _key(self, kind: Kind, text: str) -> str:
        return hashlib.sha256(f"2 {kind} {self._options.uid} {text}".encode(errors="replace")).hexdigest()[
            :32
        ]


def _resolved(root: Path) -> Path:
    # Each time: an operator may mount or link the folder after the start.
    return root.resolve()


def _check_archive(path: Path) -> None:
    try:
        with tarfile.open(path, "r:*") as tar:
            tar.next()
    except BROKEN as error:
        raise ImageInvalid(f"{path.name!r} is not an archive: {error}") from error


def _walk_digest(top: Path) -> str:
    digest = hashlib.sha256(str(top).encode(errors="replace"))
    todo = [str(top)]
    count = 0
    while todo:
        folder = todo.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                found = entry.stat(follow_symlinks=False)
                count += 1
                if count > ENTRIES_MAX:
                    raise ImageInvalid(f"the image has more than {ENTRIES_MAX} files")
                digest.update(
                    f"{entry.path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_mode}\n".encode(
                        errors="replace"
                    )
                )
                if stat.S_ISDIR(found.st_mode):
                    todo.append(entry.path)
    return digest.hexdigest()
