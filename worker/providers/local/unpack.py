"""Applying image layers to a folder: every name, link and whiteout taken as if the folder were "/".

A layer is an untrusted tar. Nothing in it is used as a path on the host: the folder part of each name is resolved inside the root
(links included, as a container runtime does), the last part is never followed, devices are not made, and sums are bounded.
All that is made belongs to the sandboxes' one uid, and folders are writable for their owner: inside there is no privilege that
would let a root write to a folder of mode 0555.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from worker.providers.local.errors import ImageInvalid, Interrupted
from worker.providers.local.folders import Folders, give, make_given
from worker.providers.local.removal import remove_tree
from worker.providers.local.rootfs import resolve

ENTRIES_MAX = 3_000_000
"""Inodes that one image may cost; the largest images of software benchmarks have about a million."""
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
CHUNK = 1024**2
NONSENSE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
    errno.EMLINK,
)
"""What the kernel says of names and links that cannot be; a full disk or a failing one is not the image's fault."""


@dataclass(slots=True)
class Budget:
    """What an import may still use; shared by all layers of an image."""

    bytes_left: int
    entries_left: int
    deadline: float
    """By time.monotonic()."""

    def take(self, size: int) -> None:
        self.bytes_left -= size
        self.entries_left -= 1
        if self.bytes_left < 0 or self.entries_left < 0:
            raise ImageInvalid("the image is larger than this service accepts (SANDMAN_IMAGE_BYTES_MAX)")
        if time.monotonic() > self.deadline:
            raise Interrupted("the import of the image took too long")


class Layers:
    """A root folder being put together, lowest layer first. Raises ImageInvalid, Interrupted, OSError."""

    def __init__(self, root: Path, folders: Folders, budget: Budget) -> None:
        self._root = root
        self._folders = folders
        self._budget = budget
        self._added: set[Path] = set()
        self._parents: dict[str, Path] = {}

    def apply(self, tar: tarfile.TarFile) -> None:
        """One layer, read once from front to back."""
        self._added.clear()
        self._parents.clear()
        for member in tar:
            self._budget.take(max(member.size, 0) if member.isreg() else 0)
            try:
                self._apply(tar, member)
            except OSError as error:
                if error.errno not in NONSENSE:
                    raise
                raise ImageInvalid(f"{member.name[:200]!r}: {error.strerror}") from error
            except (ValueError, OverflowError) as error:
                raise ImageInvalid(f"{member.name[:200]!r}: {error}") from error

    def _apply(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parent_name, _, name = member.name.strip("/").rpartition("/")
        if name in ("", ".", ".."):
            if member.isdir() and name in ("", "."):
                self._set_times(self._root, member)
            return
        parent = self._parent(parent_name)
        if name == OPAQUE:
            self._clear(parent)
        elif name.startswith(WHITEOUT):
            if name[len(WHITEOUT) :] not in ("", ".", ".."):
                self._remove(parent / name[len(WHITEOUT) :])
        else:
            self._add(tar, member, parent / name)

    def _parent(self, name: str) -> Path:
        known = self._parents.get(name)
        if known is not None:
            return known
        folder = resolve(self._root, name)
        missing = []
        here = folder
        while here != self._root and not here.is_dir():
            if os.path.lexists(here):
                raise ImageInvalid(f"{name!r} is a folder in one layer and something else in another")
            missing.append(here)
            here = here.parent
        for path in reversed(missing):
            make_given(path, self._folders)
            self._added.add(path)
        self._parents[name] = folder
        return folder

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        if member.isdir():
            self._make_folder(path, member)
        elif member.isreg():
            self._write_file(tar, path, member)
        elif member.issym():
            self._remove(path, even_ours=True)
            path.symlink_to(member.linkname)
            give(path, self._folders)
        elif member.islnk():
            self._link(path, member)
        elif member.isfifo():
            self._remove(path, even_ours=True)
            os.mkfifo(path, member.mode & 0o777)
            give(path, self._folders)
        else:
            # Devices are left out: the sandbox has its own /dev, and no right to use another.
            return
        self._added.add(path)

    def _make_folder(self, path: Path, member: tarfile.TarInfo) -> None:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            mode = 0
        if not stat.S_ISDIR(mode):
            self._remove(path, even_ours=True)
            path.mkdir()
            give(path, self._folders)
        path.chmod(folder_mode(member.mode))
        self._set_times(path, member)

    def _write_file(self, tar: tarfile.TarFile, path: Path, member: tarfile.TarInfo) -> None:
        self._remove(path, even_ours=True)
        source = tar.extractfile(member)
        if source is None:
            raise ImageInvalid(f"{member.name!r} has no content")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as target:
            shutil.copyfileobj(source, target, CHUNK)
            os.fchmod(fd, file_mode(member.mode))
        give(path, self._folders)
        self._set_times(path, member)

    def _link(self, path: Path, member: tarfile.TarInfo) -> None:
        target = resolve(self._root, member.linkname, follow_last=False)
        try:
            mode = target.lstat().st_mode
        except FileNotFoundError:
            raise ImageInvalid(
                f"{member.name!r} is a hard link to {member.linkname!r}, which is not there"
            ) from None
        if stat.S_ISDIR(mode):
            raise ImageInvalid(f"{member.name!r} is a hard link to a folder")
        if target == path:
            return
        self._remove(path, even_ours=True)
        os.link(target, path, follow_symlinks=False)

    def _remove(self, path: Path, *, even_ours: bool = False) -> None:
        """What lower layers put there; a whiteout never takes what its own layer added."""
        if not even_ours and path in self._added:
            return
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            remove_tree(path, self._root.parent)
            self._parents.clear()
        else:
            path.unlink()
            if stat.S_ISLNK(mode):
                self._parents.clear()

    def _clear(self, folder: Path) -> None:
        for entry in list(os.scandir(folder)):
            path = folder / entry.name
            if path not in self._added:
                self._remove(path)
            elif entry.is_dir(follow_symlinks=False):
                self._clear(path)

    def _set_times(self, path: Path, member: tarfile.TarInfo) -> None:
        # Compiled Python files are valid only for the exact time of their source.
        when = max(0, int(member.mtime * 1_000_000_000))
        os.utime(path, ns=(when, when), follow_symlinks=False)


def folder_mode(mode: int) -> int:
    return mode & 0o1777 | 0o700


def file_mode(mode: int) -> int:
    """Without set-uid bits (inside they mean nothing, outside they would belong to the sandboxes' uid), and readable for the owner:
    what root could read in the image, the sandbox's root must be able to read without privileges."""
    return mode & 0o777 | 0o400


def copy_tree(source: Path, root: Path, folders: Folders, budget: Budget) -> None:
    """An unpacked root folder, without what is mounted inside it. Hard links stay hard links. Raises as Layers does."""
    top = source.lstat()
    links: dict[tuple[int, int], Path] = {}
    todo = [(source, root)]
    while todo:
        here, there = todo.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                path = there / entry.name
                budget.take(found.st_size if stat.S_ISREG(found.st_mode) else 0)
                if stat.S_ISDIR(found.st_mode):
                    path.mkdir()
                    path.chmod(folder_mode(found.st_mode))
                    if found.st_dev == top.st_dev:
                        todo.append((here / entry.name, path))
                elif stat.S_ISLNK(found.st_mode):
                    path.symlink_to(os.readlink(here / entry.name))  # noqa: PTH115  (Path would tidy the text)
                elif stat.S_ISREG(found.st_mode):
                    same = links.get((found.st_dev, found.st_ino))
                    if same is not None:
                        os.link(same, path)
                        continue
                    if found.st_nlink > 1:
                        links[found.st_dev, found.st_ino] = path
                    _copy_file(here / entry.name, path, found)
                elif stat.S_ISFIFO(found.st_mode):
                    os.mkfifo(path, found.st_mode & 0o777)
                else:
                    continue
                give(path, folders)


def _copy_file(source: Path, target: Path, found: os.stat_result) -> None:
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as content, target.open("xb") as copy:
        shutil.copyfileobj(content, copy, CHUNK)
    target.chmod(file_mode(found.st_mode))
    os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
