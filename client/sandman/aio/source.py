"""Anything a caller may hand over as content, as one asynchronous stream of byte chunks.

Blocking sources (files, plain iterables) are read in an `Offload` thread, one chunk ahead of nothing: memory is one chunk.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from sandman.aio.offload import Offload
from sandman.options import Source
from sandman.tarball import CHUNK

_END: Any = object()


def plain_bytes(source: Source) -> bytes | None:
    """The content when it is in memory already."""
    if isinstance(source, str):
        return source.encode()
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    return None


async def stream(source: Source) -> AsyncIterator[bytes]:
    """The source's chunks. Files are read from where they stand and are not closed. Raises TypeError for anything else."""
    data = plain_bytes(source)
    if data is not None:
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]
    elif isinstance(source, AsyncIterable):
        async for chunk in source:
            yield as_bytes(chunk)
    elif hasattr(source, "read"):
        with Offload("sandman-read") as offload:
            while chunk := await offload.run(cast(BinaryIO, source).read, CHUNK):
                yield as_bytes(chunk)
    elif isinstance(source, Iterable):
        async for chunk in iterate(iter(cast("Iterable[bytes]", source))):
            yield chunk
    else:
        raise TypeError(
            f"cannot send a {type(source).__name__}: give bytes, str, a binary file or an iterable of bytes"
        )


async def iterate(iterator: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A blocking iterator, driven in a thread."""
    with Offload("sandman-iterate") as offload:
        while (chunk := await offload.run(next, iterator, _END)) is not _END:
            yield as_bytes(chunk)


async def file_chunks(path: Path) -> AsyncIterator[bytes]:
    with Offload("sandman-file") as offload:
        file = await offload.run(open_for_reading, path)
        try:
            while chunk := await offload.run(file.read, CHUNK):
                yield chunk
        finally:
            offload.afterwards(file.close)


def open_for_reading(path: Path) -> BinaryIO:
    return path.open("rb", buffering=0)


def as_bytes(chunk: object) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return bytes(chunk)
    raise TypeError(f"a source must give bytes, not {type(chunk).__name__} (open files in binary mode)")


def seekable(source: Source) -> int | None:
    """Where a file stands when it can be read again from there; None for what can only be read once."""
    try:
        return cast(BinaryIO, source).tell() if cast(BinaryIO, source).seekable() else None
    except (AttributeError, OSError, ValueError):
        return None
