"""Reading HTTP/1.1 answers, without I/O: bytes in, head and body pieces out.

Written for one kind of peer, the daemon (Go's net/http), so it is strict: whatever an honest daemon never sends ends the
connection. A sandbox's own processes may be able to stand in for its daemon, so nothing in here trusts a length or a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

# Go's default limit for a server's own headers is far above what the daemon sends (under 1 KB).
HEAD_BYTES_MAX: Final = 64 * 1024
CHUNK_LINE_MAX: Final = 256
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class ProtocolViolation(Exception):
    """The peer does not speak HTTP/1.1 as the daemon does."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers; names in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    length: int | None
    """Bytes of the body; None: chunked, or until the connection ends."""
    chunked: bool
    keep_alive: bool

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class _Part(Enum):
    HEAD = 0
    SIZED = 1
    CHUNK_SIZE = 2
    CHUNK_DATA = 3
    CHUNK_END = 4
    TRAILER = 5
    UNTIL_EOF = 6
    DONE = 7


class AnswerReader:
    """One answer. `feed` returns the pieces of the body that became readable; `head` is set once it is whole.

    `leave_body` is for answers that have none whatever their head says: those to HEAD."""

    __slots__ = ("_buffer", "_left", "_no_body", "_part", "head")

    def __init__(self, no_body: bool = False) -> None:
        self.head: Head | None = None
        self._no_body = no_body
        self._buffer = b""
        self._part = _Part.HEAD
        self._left = 0

    @property
    def done(self) -> bool:
        return self._part is _Part.DONE

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ProtocolViolation. Bytes after the end of the answer are one too: nothing was asked for."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        pieces: list[bytes] = []
        if self._part is _Part.HEAD:
            data = self._read_head(data)
            if self._part is _Part.HEAD:
                return pieces
        self._read_body(data, pieces)
        return pieces

    def eof(self) -> bool:
        """The peer closed; True when the answer is whole all the same."""
        if self._part is _Part.UNTIL_EOF:
            self._part = _Part.DONE
        return self.done

    def _read_head(self, data: bytes) -> bytes:
        while True:
            end = data.find(b"\r\n\r\n")
            if end > HEAD_BYTES_MAX or (end < 0 and len(data) > HEAD_BYTES_MAX):
                raise ProtocolViolation("the head is too long")
            if end < 0:
                self._buffer = data
                return b""
            head = _parse_head(data[:end])
            data = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise ProtocolViolation("an upgrade nobody asked for")
        self.head = head
        if self._no_body or head.status in (204, 304) or head.length == 0:
            self._part = _Part.DONE
        elif head.chunked:
            self._part = _Part.CHUNK_SIZE
        elif head.length is not None:
            self._part, self._left = _Part.SIZED, head.length
        else:
            self._part = _Part.UNTIL_EOF
        return data

    def _read_body(self, data: bytes, pieces: list[bytes]) -> None:
        part = self._part
        if part is _Part.SIZED:
            self._read_sized(data, pieces)
        elif part is _Part.UNTIL_EOF:
            if data:
                pieces.append(data)
        elif part is _Part.DONE:
            if data:
                raise ProtocolViolation("bytes after the end of the answer")
        else:
            self._read_chunks(data, pieces)

    def _read_sized(self, data: bytes, pieces: list[bytes]) -> None:
        if len(data) > self._left:
            raise ProtocolViolation("bytes after the end of the answer")
        if data:
            pieces.append(data)
            self._left -= len(data)
            if self._left == 0:
                self._part = _Part.DONE

    def _read_chunks(self, data: bytes, pieces: list[bytes]) -> None:
        at, size = 0, len(data)
        while True:
            if self._part is _Part.CHUNK_DATA:
                piece = data[at : at + self._left]
                if not piece:
                    return
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return
                self._part = _Part.CHUNK_END
            elif self._part is _Part.DONE:
                if at < size:
                    raise ProtocolViolation("bytes after the end of the answer")
                return
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._buffer = data[at:]
                    if len(self._buffer) > CHUNK_LINE_MAX:
                        raise ProtocolViolation("a chunk's line is too long")
                    return
                self._take_line(data[at:end])
                at = end + 2

    def _take_line(self, line: bytes) -> None:
        if self._part is _Part.CHUNK_END:
            if line:
                raise ProtocolViolation("a chunk is longer than it said")
            self._part = _Part.CHUNK_SIZE
        elif self._part is _Part.CHUNK_SIZE:
            digits = line.partition(b";")[0].strip()
            if not 1 <= len(digits) <= 15 or not _HEX.issuperset(digits):
                raise ProtocolViolation("a chunk's size is not a number")
            self._left = int(digits, 16)
            self._part = _Part.CHUNK_DATA if self._left else _Part.TRAILER
        elif not line:
            self._part = _Part.DONE


def _parse_head(data: bytes) -> Head:
    lines = data.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
        raise ProtocolViolation("not a status line")
    keep_alive = version == b"HTTP/1.1"
    length: int | None = None
    chunked = False
    headers: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if (
            not colon
            or not name
            or name[-1:] in b" \t"
            or name[:1] in b" \t"
            or b"\n" in line
            or b"\0" in line
        ):
            raise ProtocolViolation("not a header line")
        name = name.lower()
        value = value.strip(b" \t")
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or (length is not None and length != int(value)):
                raise ProtocolViolation("not a content length")
            length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise ProtocolViolation("an unknown transfer encoding")
            chunked = True
        elif name == b"connection" and value.lower() == b"close":
            keep_alive = False
        headers.append((name, value))
    if chunked and length is not None:
        raise ProtocolViolation("a length and chunks")
    if not chunked and length is None and int(code) not in (204, 304) and int(code) >= 200:
        keep_alive = False
    return Head(int(code), headers, length, chunked, keep_alive)
