"""The ends of a transfer: what is read to be sent, and where what arrives is written.

Reading and writing local files happens in `Offload` threads; between them and the event loop lie a few chunks at most, so a
folder of any size passes through in constant memory.
"""

from __future__ import annotations

import asyncio
import os
import queue
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandman import tarball
from sandman.aio import source as sources
from sandman.errors import ArchiveError
from sandman.models import FileInfo
from sandman.tarball import LinkPolicy, Unpacked

Progress = Callable[[int, int | None], Any]
"""Called with (bytes so far, bytes in all or None when unknown). An exception in it ends the transfer."""
PIPE_CHUNKS = 8


@dataclass(frozen=True)
class Packed:
    """A local folder, to be sent as a tar stream."""

    root: Path


@dataclass(frozen=True)
class LocalFile:
    path: Path


def chunks_of(content: Any) -> AsyncIterator[bytes]:
    if isinstance(content, Packed):
        return sources.iterate(tarball.pack(content.root))
    if isinstance(content, LocalFile):
        return sources.file_chunks(content.path)
    return sources.stream(content)


async def counted(
    chunks: AsyncIterator[bytes], progress: Progress | None, total: int | None
) -> AsyncGenerator[bytes, None]:
    """The chunks, reported as they leave. Checks the announced length: a file that changes is not sent as if it were whole."""
    sent = 0
    async for chunk in chunks:
        sent += len(chunk)
        if total is not None and sent > total:
            raise ArchiveError("the source grew while it was being sent")
        yield chunk
        if progress is not None:
            progress(sent, total)
    if total is not None and sent < total:
        raise ArchiveError("the source shrank while it was being sent")


def declared_length(headers: Mapping[str, str]) -> int | None:
    value = headers.get("content-length", "")
    return int(value) if value.isdigit() else None


class Temporary:
    """A new file in the target's folder; a rename within a folder is what replaces the target in one step.

    All methods are for the one thread of an `Offload`, in which they follow each other: a discard that comes while the file is
    still being made or written waits for that, and then leaves nothing.
    """

    def __init__(self, local: Path) -> None:
        self._local = local
        self._file: Any = None

    def make(self) -> None:
        if self._local.is_dir():
            raise IsADirectoryError(f"{self._local} is a folder; name the file in it")
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed by finish or discard
            dir=self._local.parent, prefix=f".{self._local.name[:100]}.", delete=False, buffering=0
        )

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def finish(self, info: FileInfo) -> None:
        if info.mode is not None:
            os.fchmod(self._file.fileno(), int(info.mode, 8) & 0o777)
        self._file.close()
        Path(self._file.name).replace(self._local)
        self._file = None

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            self._file = None


class ThreadPipe:
    """Chunks from the event loop to one blocking reader in a thread, a few at a time."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(PIPE_CHUNKS)
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._ended = False

    async def feed(self, chunk: bytes, reader: asyncio.Future[Any]) -> None:
        """Hand over one chunk (empty: the end). Returns at once when the reader has ended: its outcome tells why."""
        if reader.done():
            await asyncio.shield(reader)
            return
        waiting = asyncio.ensure_future(self._room.acquire())
        try:
            await asyncio.wait([waiting, reader], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if chunk:
            self._chunks.put(chunk)
        else:
            self._chunks.put(None)

    def abandon(self) -> None:
        """No more will come; a reader that still waits gets the end of the stream, which it reports as cut short."""
        self._chunks.put(None)

    def read(self, size: int = -1, /) -> bytes:
        """The reader's side: exactly `size` bytes, fewer only at the end."""
        parts = [self._rest]
        held = len(self._rest)
        while not self._ended and (size < 0 or held < size):
            chunk = self._chunks.get()
            if chunk is None:
                self._ended = True
                break
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._room.release)
            parts.append(chunk)
            held += len(chunk)
        data = b"".join(parts)
        if size < 0:
            size = len(data)
        self._rest = data[size:]
        return data[:size]


def unpack_from(pipe: ThreadPipe, local: Path, links: LinkPolicy) -> Unpacked:
    done = tarball.unpack(pipe, local, links)
    # What follows the end marker is padding; it has to be taken for the other side to finish.
    while pipe.read(tarball.CHUNK):
        pass
    return done
