"""What a command wrote, as the caller asked for it: text decoded across chunk borders, and a bounded capture.

One decoder a stream: a character of several bytes may arrive in several chunks, and with chunks of the other stream in
between. A capture over its limit keeps the beginning and the end, like the daemon's own spool, and counts what lies between.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass


def decoder_for(encoding: str) -> codecs.IncrementalDecoder:
    """Bad bytes become U+FFFD and never an exception: output is the task's, and a result must not be lost over it."""
    return codecs.getincrementaldecoder(encoding)(errors="replace")


class Capture:
    """Keeps at most `limit` bytes: the first half of it and the last; `dropped` counts the bytes between."""

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError("max_output_bytes must not be negative")
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.dropped = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        # Whole chunks only: at most one chunk beyond the limit is held, and nothing is copied per chunk.
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            gone = self._tail.popleft()
            self._tail_size -= len(gone)
            self.dropped += len(gone)
            if not self._tail:
                break

    def skip(self, count: int) -> None:
        """Note bytes that the service no longer had: they count as dropped, and what follows is the end part."""
        self.total += count
        self.dropped += count + self._tail_size
        self._tail.clear()
        self._tail_size = 0
        self._head_limit = len(self._head)

    def finish(self) -> Kept:
        """What was kept; call once."""
        tail = b"".join(self._tail)
        excess = len(tail) - self._tail_limit
        if excess > 0:
            self.dropped += excess
            tail = tail[excess:]
        self._tail.clear()
        return Kept(bytes(self._head), tail, self.dropped)


@dataclass(frozen=True)
class Kept:
    head: bytes
    tail: bytes
    dropped: int
    """Bytes between the two."""

    def joined(self) -> tuple[bytes, int]:
        """The bytes, and how many are missing in their middle."""
        return self.head + self.tail, self.dropped

    def text(self, encoding: str) -> tuple[str, int]:
        """Decoded, and how many bytes are missing: the cuts are moved to between characters, not inside them."""
        if not self.dropped:
            return (self.head + self.tail).decode(encoding, "replace"), 0
        decoder = decoder_for(encoding)
        head = decoder.decode(self.head)
        lost = len(decoder.getstate()[0])
        tail = self.tail
        if codecs.lookup(encoding).name == "utf-8":
            unknown = len(tail) if len(tail) < 4 else 0  # four in a row are no part of one character
            begins = next((at for at, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), unknown)
            tail, lost = tail[begins:], lost + begins
        return head + tail.decode(encoding, "replace"), self.dropped + lost
