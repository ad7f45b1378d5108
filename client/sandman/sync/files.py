"""Files inside a sandbox, blocking; the contracts are those of `sandman.aio.files`.

Progress callbacks run on the client's background loop: they must be quick and must not call the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sandman.aio.files import FileInfos, LocalPath
from sandman.aio.transfer import Progress
from sandman.models import FileInfo
from sandman.options import Source
from sandman.tarball import LinkPolicy, Unpacked

if TYPE_CHECKING:
    from sandman.sync.sandbox import Sandbox


class Files:
    """`sandbox.files`. Paths are absolute, or relative to the sandbox's working directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._inner = sandbox._inner.files

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileMissing, IsADirectory, FileError."""
        return self._sandbox._call(self._inner.read, path)

    def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._sandbox._call(self._inner.read_text, path, encoding, errors)

    def read_chunks(
        self, path: str, *, start: int = 0, end: int | None = None, progress: Progress | None = None
    ) -> Iterator[bytes]:
        """The file as it arrives, or its bytes from `start` up to (not including) `end`."""
        yield from self._sandbox._iterate(
            self._inner.read_chunks(path, start=start, end=end, progress=progress)
        )

    def write(
        self,
        path: str,
        content: Source,
        *,
        mode: str | int | None = None,
        owner: str | None = None,
        append: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write a file, making its parents; atomic unless `append`. `mode` is octal text ("0755") or an int (0o755)."""
        self._sandbox._call(
            self._inner.write, path, content, mode=mode, owner=owner, append=append, progress=progress
        )

    def upload(self, local: LocalPath, path: str, *, progress: Progress | None = None) -> None:
        """A local file or folder to `path`. A folder's contents go into `path`, which is made."""
        self._sandbox._call(self._inner.upload, local, path, progress=progress)

    def download(
        self, path: str, local: LocalPath, *, progress: Progress | None = None, links: LinkPolicy = "inside"
    ) -> Unpacked:
        """A file or folder of the sandbox to `local`. Members that would leave `local` raise ArchiveError."""
        return self._sandbox._call(self._inner.download, path, local, progress=progress, links=links)

    def list(self, path: str = ".", depth: int = 1) -> FileInfos:
        return self._sandbox._call(self._inner.list, path, depth)

    def iterate(self, path: str = ".", depth: int = 1, page: int = 1000) -> Iterator[FileInfo]:
        """Like `list`, page by page: for folders of any size."""
        yield from self._sandbox._iterate(self._inner.iterate(path, depth, page))

    def stat(self, path: str, follow: bool = False) -> FileInfo:
        """One file, folder or link (the link itself, unless `follow`). Raises FileMissing."""
        return self._sandbox._call(self._inner.stat, path, follow)

    def exists(self, path: str) -> bool:
        return self._sandbox._call(self._inner.exists, path)

    def mkdir(self, path: str, *, mode: str | int | None = None, parents: bool = True) -> None:
        self._sandbox._call(self._inner.mkdir, path, mode=mode, parents=parents)

    def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        self._sandbox._call(self._inner.move, source, target, overwrite=overwrite)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link, or a folder (with what is in it only if `recursive`)."""
        self._sandbox._call(self._inner.remove, path, recursive=recursive)
