"""Folders as tar streams, without trusting the other side.

Packing is a plain generator: headers and file contents in chunks, nothing held. Unpacking resolves every member by file
descriptors from the destination downwards and never through a symbolic link, whoever made it; so a member can reach no place
outside, neither by `..`, nor by an absolute name, nor by a link that an earlier member planted.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, Literal, Protocol, cast

from sandman.errors import ArchiveError

CHUNK = 256 * 1024
"""Large enough that the cost per chunk vanishes, small enough that a thousand transfers fit in memory."""

BLOCK = 512
LinkPolicy = Literal["inside", "all"]


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


@dataclass
class Unpacked:
    """What an unpacking did."""

    files: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)
    """Members left out: devices, pipes, and links that point out of the folder (unless links="all")."""


def pack(root: Path) -> Iterator[bytes]:
    """The tree below `root` as a tar stream with names relative to it. Sockets, pipes and devices are left out.

    Links are packed as links. Raises ArchiveError when a file shrinks while it is read, OSError when one is unreadable.
    """
    for path, name in walk(root):
        status = os.lstat(path)
        info = tarfile.TarInfo(name)
        info.mode = stat.S_IMODE(status.st_mode)
        info.mtime = int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = str(Path(path).readlink())
        elif not stat.S_ISREG(status.st_mode):
            continue
        else:
            yield from pack_file(path, info)
            continue
        yield header(info)
    yield bytes(2 * BLOCK)


def pack_file(path: str, info: tarfile.TarInfo) -> Iterator[bytes]:
    # Not blocking and not following: between lstat and open the name may have become a pipe or a link.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as source:
        info.size = os.fstat(descriptor).st_size
        yield header(info)
        left = info.size
        while left:
            data = source.read(min(CHUNK, left))
            if not data:
                raise ArchiveError(f"{path} shrank while it was being read")
            left -= len(data)
            yield data
        if info.size % BLOCK:
            yield bytes(BLOCK - info.size % BLOCK)


def header(info: tarfile.TarInfo) -> bytes:
    # GNU form: names are raw bytes of any length, sizes of any value, and no text encoding is implied.
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def walk(root: Path) -> Iterator[tuple[str, str]]:
    """(path, name below root) of everything, parents first; directories are listed one at a time, links not followed."""
    stack = [("", str(root))]
    while stack:
        prefix, folder = stack.pop()
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        inner: list[tuple[str, str]] = []
        for entry in found:
            name = f"{prefix}{entry.name}"
            yield entry.path, name
            if entry.is_dir(follow_symlinks=False):
                inner.append((f"{name}/", entry.path))
        stack.extend(reversed(inner))


def unpack(source: Readable, destination: Path, links: LinkPolicy = "inside") -> Unpacked:
    """Unpack a tar stream into `destination` (made if missing). Blocks; raises ArchiveError for a member that leaves it.

    Existing files are replaced (never written through), existing folders kept. Owners are the caller's; set-id bits are
    dropped. Links are made as they are but never followed here; one whose target lies outside is skipped and reported.
    """
    destination.mkdir(parents=True, exist_ok=True)
    done = Unpacked()
    root = os.open(destination, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    modes: list[tuple[list[str], int]] = []
    try:
        try:
            with tarfile.open(
                fileobj=cast("IO[bytes]", source),
                mode="r|",
                encoding="utf-8",
                errors="surrogateescape",
                bufsize=CHUNK,
            ) as archive:
                for member in archive:
                    unpack_member(archive, member, root, links, done, modes)
        except (tarfile.TarError, EOFError) as error:
            raise ArchiveError(f"the tar stream is damaged or cut short: {error}") from error
        # Folders get their modes last and deepest first: a read-only one must be filled before.
        for parts, mode in sorted(modes, key=lambda item: -len(item[0])):
            descriptor = open_folder(root, parts, "/".join(parts), create=False)
            try:
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
    finally:
        os.close(root)
    return done


def unpack_member(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    root: int,
    links: LinkPolicy,
    done: Unpacked,
    modes: list[tuple[list[str], int]],
) -> None:
    parts = split_name(member.name)
    if member.isdir():
        os.close(open_folder(root, parts, member.name, create=True))
        if parts:
            modes.append((parts, member.mode & 0o777 | stat.S_IRWXU))
        return
    if not parts:
        raise ArchiveError(f"a member without a usable name: {member.name!r}")
    if not (member.isreg() or member.issym() or member.islnk()):
        done.skipped.append(member.name)
        return
    if member.issym() and links == "inside" and leaves(parts, member.linkname):
        done.skipped.append(member.name)
        return
    folder = open_folder(root, parts[:-1], member.name, create=True)
    try:
        clear(folder, parts[-1], member.name)
        if member.issym():
            os.symlink(member.linkname, parts[-1], dir_fd=folder)
        elif member.islnk():
            hard_link(root, split_name(member.linkname), folder, parts[-1], member.name)
        else:
            write_file(archive, member, folder, parts[-1])
            done.bytes += member.size
        done.files += 1
    finally:
        os.close(folder)


def split_name(name: str) -> list[str]:
    """The name's parts; raises for absolute names and for `..` anywhere."""
    if name.startswith("/") or "\0" in name:
        raise ArchiveError(f"a member with an absolute name: {name!r}")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"a member that leaves the folder: {name!r}")
    return parts


def leaves(parts: list[str], target: str) -> bool:
    """Whether a link at `parts` points out of the folder, by its text alone."""
    if target.startswith("/"):
        return True
    depth = len(parts) - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in ("", "."):
            depth += 1
    return False


def open_folder(root: int, parts: list[str], name: str, *, create: bool) -> int:
    """A descriptor of the folder, reached step by step without following a link; the caller closes it."""
    current = os.dup(root)
    try:
        for part in parts:
            if create:
                try:
                    os.mkdir(part, 0o777, dir_fd=current)
                except FileExistsError:
                    pass
            try:
                inner = os.open(
                    part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current
                )
            except NotADirectoryError as error:
                raise ArchiveError(f"a member below a link or a file: {name!r}") from error
            os.close(current)
            current = inner
    except BaseException:
        os.close(current)
        raise
    return current


def clear(folder: int, leaf: str, name: str) -> None:
    """Make room for a file: what is there is unlinked, so that nothing is ever written through a link."""
    try:
        os.unlink(leaf, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError) as error:
        if stat.S_ISDIR(os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_mode):
            raise ArchiveError(f"a folder is in the way of the file {name!r}") from error
        raise


def write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, leaf: str) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise ArchiveError(f"a file without content: {member.name!r}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(leaf, flags, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb", buffering=0) as target:
        left = member.size
        while left:
            data = content.read(min(CHUNK, left))
            if not data:
                raise ArchiveError(f"the tar stream ends inside {member.name!r}")
            write_all(target, data)
            left -= len(data)
        os.fchmod(descriptor, member.mode & 0o777)
        os.utime(descriptor, (member.mtime, member.mtime))


def write_all(target: BinaryIO | IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[target.write(view) :]


def hard_link(root: int, parts: list[str], folder: int, leaf: str, name: str) -> None:
    if not parts:
        raise ArchiveError(f"a hard link to nothing: {name!r}")
    source = open_folder(root, parts[:-1], name, create=False)
    try:
        os.link(parts[-1], leaf, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise ArchiveError(f"cannot link {name!r}: {error}") from error
    finally:
        os.close(source)
