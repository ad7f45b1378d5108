"""Files inside a sandbox: bytes as they are, streamed both ways, with the rights of the sandbox's user.

Nothing is decoded, unzipped or given other line ends on the way. Uploads are atomic: the target is the old file until the new
one is complete. A download to a local file is written beside it and renamed, for the same reason.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec

from sandman.aio import source as sources
from sandman.aio.http import may_repeat
from sandman.aio.offload import Offload
from sandman.aio.transfer import (
    LocalFile,
    Packed,
    Progress,
    Temporary,
    ThreadPipe,
    chunks_of,
    counted,
    declared_length,
    unpack_from,
)
from sandman.errors import BadAnswer, FileError, FileMissing, ProblemError, SandmanError, ValidationError
from sandman.models import FileInfo
from sandman.options import Source
from sandman.tarball import LinkPolicy, Unpacked

if TYPE_CHECKING:
    from sandman.aio.sandbox import AsyncSandbox

LocalPath = str | os.PathLike[str]
FileInfos = list[FileInfo]

DISCARD_SECONDS = 1.0
"""How long a download that broke off waits for its own remains to be removed; a dead mount must not hold up a cancellation."""


class FileList(msgspec.Struct):
    items: list[FileInfo]
    next: str | None = None


class AsyncFiles:
    """`sandbox.files`. Paths are absolute, or relative to the sandbox's working directory."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    # Contents

    async def read(self, path: str) -> bytes:
        """The whole file. Raises FileMissing, IsADirectory, FileError."""
        return b"".join([chunk async for chunk in self.read_chunks(path)])

    async def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        return (await self.read(path)).decode(encoding, errors)

    async def read_chunks(
        self, path: str, *, start: int = 0, end: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator[bytes]:
        """The file as it arrives, or its bytes from `start` up to (not including) `end`.

        Raises ConnectionLost when it breaks off: what came before is a true prefix.
        """
        headers = {}
        if start or end is not None:
            if end is not None and end <= start:
                return
            headers["range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        http = self._sandbox.client._http
        self._sandbox._check_usable()
        try:
            async with http.download(self._path("files"), params={"path": path}, headers=headers) as response:
                if headers and response.status_code != 206:
                    raise BadAnswer(f"a range of {path} was asked for and the whole file came", status=200)
                total = declared_length(response.headers)
                received = 0
                async for chunk in http.chunks(response):
                    received += len(chunk)
                    if progress is not None:
                        progress(received, total)
                    yield chunk
        except ProblemError as error:
            if start and error.status == 416:
                return  # nothing lies behind the end
            raise await self._sandbox._explain(error)  # noqa: B904

    async def write(
        self,
        path: str,
        content: Source,
        *,
        mode: str | int | None = None,
        owner: str | None = None,
        append: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write a file, making its parents; atomic unless `append`. `mode` is octal text ("0755") or an int (0o755);
        `owner` a name or "uid:gid". Without them an existing file keeps its own.

        Content may be bytes, text, a binary file or an iterable (also asynchronous) of bytes. Repeated after a broken
        connection when the content can be read again and append is off.
        """
        params: dict[str, str | bool] = {"path": path}
        if mode is not None:
            params["mode"] = mode if isinstance(mode, str) else f"{mode:04o}"
        if owner is not None:
            params["owner"] = owner
        if append:
            params["append"] = "true"
        await self._put("files", params, content, progress, repeatable=not append)

    async def upload(self, local: LocalPath, path: str, *, progress: Progress | None = None) -> None:
        """A local file or folder to `path`. A folder's contents go into `path`, which is made; links go as links.

        A file keeps its permission bits. Raises OSError for local faults, ArchiveError when a source changes underway.
        """
        local = Path(local)
        if local.is_dir():
            params = {"path": path}
            await self._put("archive", params, Packed(local), progress, repeatable=True)
            return
        size = local.stat()
        await self._put(
            "files",
            {"path": path, "mode": f"{size.st_mode & 0o7777:04o}"},
            LocalFile(local),
            progress,
            repeatable=True,
            total=size.st_size,
        )

    async def download(
        self, path: str, local: LocalPath, *, progress: Progress | None = None, links: LinkPolicy = "inside"
    ) -> Unpacked:
        """A file or folder of the sandbox to `local`. A file replaces `local` when it is complete; a folder's contents go into
        `local`, which is made.

        Members that would leave `local` raise ArchiveError; links that point out of it are skipped (see the answer) unless
        links="all". Cancelled or broken off, a file leaves nothing, a folder what had been unpacked.
        """
        info = await self.stat(path, follow=True)
        if info.is_dir:
            return await self._download_folder(path, Path(local), progress, links)
        return await self._download_file(path, Path(local), info, progress)

    async def _download_file(
        self, path: str, local: Path, info: FileInfo, progress: Progress | None
    ) -> Unpacked:
        received = 0
        with Offload("sandman-download") as offload:
            target = Temporary(local)
            try:
                await offload.run(target.make)
                async for chunk in self.read_chunks(path, progress=progress):
                    await offload.run(target.write, chunk)
                    received += len(chunk)
                await offload.run(target.finish, info)
            except BaseException:
                with suppress(OSError):  # the time-out is one
                    async with asyncio.timeout(DISCARD_SECONDS):
                        await offload.run(target.discard)
                raise
        return Unpacked(files=1, bytes=received)

    async def _download_folder(
        self, path: str, local: Path, progress: Progress | None, links: LinkPolicy
    ) -> Unpacked:
        http = self._sandbox.client._http
        self._sandbox._check_usable()
        pipe = ThreadPipe()
        with Offload("sandman-unpack") as offload:
            unpacking = asyncio.ensure_future(offload.run(unpack_from, pipe, local, links))
            try:
                async with http.download(self._path("archive"), params={"path": path}) as response:
                    received = 0
                    async for chunk in http.chunks(response):
                        received += len(chunk)
                        if progress is not None:
                            progress(received, None)
                        await pipe.feed(chunk, unpacking)
                await pipe.feed(b"", unpacking)
                return await unpacking
            except ProblemError as error:
                raise await self._sandbox._explain(error)  # noqa: B904
            finally:
                pipe.abandon()
                unpacking.cancel()

    async def _put(
        self,
        what: str,
        params: dict[str, Any],
        content: Any,
        progress: Progress | None,
        *,
        repeatable: bool,
        total: int | None = None,
    ) -> None:
        http = self._sandbox.client._http
        data = None if isinstance(content, Packed | LocalFile) else sources.plain_bytes(content)
        if data is not None:
            total = len(data)
        start = (
            None if data is not None or isinstance(content, Packed | LocalFile) else sources.seekable(content)
        )
        again = data is not None or isinstance(content, Packed | LocalFile) or start is not None
        headers = {"content-type": "application/x-tar"} if what == "archive" else {}
        if total is not None:
            headers["content-length"] = str(total)
        backoff = http.settings.retry.start()
        while True:
            self._sandbox._check_usable()
            body = counted(chunks_of(content if data is None else data), progress, total)
            try:
                await http.upload(self._path(what), body, params=params, headers=headers)
                return
            except SandmanError as error:
                if not (again and may_repeat(error, repeatable)):
                    raise await self._explained(error)  # noqa: B904
                delay = backoff.next_delay(error.retry_after if isinstance(error, ProblemError) else None)
                if delay is None:
                    raise
            finally:
                await body.aclose()
            await asyncio.sleep(delay)
            if start is not None:
                cast(BinaryIO, content).seek(start)

    async def _explained(self, error: SandmanError) -> SandmanError:
        return await self._sandbox._explain(error) if isinstance(error, ProblemError) else error

    # Names

    async def list(self, path: str = ".", depth: int = 1) -> FileInfos:
        """The entries below a folder, `depth` levels down. Raises FileMissing, FileError."""
        return [info async for info in self.iterate(path, depth)]

    async def iterate(self, path: str = ".", depth: int = 1, page: int = 1000) -> AsyncIterator[FileInfo]:
        """Like `list`, page by page: for folders of any size."""
        cursor: str | None = None
        while True:
            params: dict[str, Any] = {"path": path, "depth": depth, "limit": page}
            if cursor:
                params["cursor"] = cursor
            found = await self._sandbox._ask(FileList, "GET", self._path("files/list"), params=params)
            for info in found.items:
                yield info
            cursor = found.next
            if not cursor:
                return

    async def stat(self, path: str, follow: bool = False) -> FileInfo:
        """One file, folder or link (the link itself, unless `follow`). Raises FileMissing."""
        params: dict[str, Any] = {"path": path}
        if follow:
            params["follow"] = "true"
        return await self._sandbox._ask(FileInfo, "GET", self._path("files/stat"), params=params)

    async def exists(self, path: str) -> bool:
        """Whether anything is there, a dangling link included."""
        try:
            await self.stat(path)
        except FileMissing:
            return False
        except FileError as error:
            if error.errno == "ENOTDIR":
                return False
            raise
        return True

    async def mkdir(self, path: str, *, mode: str | int | None = None, parents: bool = True) -> None:
        """Make a folder; one that is there already is fine with `parents`, as with mkdir -p."""
        body: dict[str, Any] = {**named("path", path), "parents": parents}
        if mode is not None:
            body["mode"] = mode if isinstance(mode, str) else f"{mode:04o}"
        await self._tell("POST", "files/mkdir", json=body, repeatable=parents)

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename. Raises FileError with errno EEXIST when the target is there and overwrite is off."""
        await self._tell(
            "POST",
            "files/move",
            json={**named("from", source), **named("to", target), "overwrite": overwrite},
        )

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link, or a folder (with what is in it only if `recursive`). Raises FileMissing."""
        params: dict[str, Any] = {"path": path}
        if recursive:
            params["recursive"] = "true"
        await self._tell("DELETE", "files", params=params)

    async def _tell(self, method: str, what: str, **options: Any) -> None:
        await self._sandbox._tell(method, self._path(what), **options)

    def _path(self, what: str) -> str:
        return f"{self._sandbox._prefix}/{what}"


def named(member: str, path: str) -> dict[str, str]:
    """A path in a JSON body: as text, or as bytes when it carries some that are not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        try:
            raw = path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValidationError(f"{path!r} holds half a surrogate pair, which is no text") from error
        return {f"{member}_b64": base64.b64encode(raw).decode()}
    return {member: path}
