"""The exec channel's frames: JSON text for control, binary for data. Pure encoding, as daemon/PROTOCOL.md lays it down.

Binary client → daemon: u8 kind 0 (stdin), u32 channel, payload. Daemon → client: u8 kind 1 (stdout) or 2 (stderr), u32
channel, u64 offset of the payload's first byte in its stream, payload. All big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from sandman.models import Stream

SUBPROTOCOL = "sandman.v1"

STDIN_KIND = 0
OUTPUT_KINDS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
STDIN_PAYLOAD_MAX = 64 * 1024
"""Below the protocol's 256 KiB: a signal or an EOF of another exec waits behind at most this much."""
MESSAGE_MAX = 1024 * 1024
"""The largest message taken from the daemon; its own are at most 64 KiB of payload, or an exit of a few KiB."""

_STDIN = struct.Struct(">BI")
_OUTPUT = struct.Struct(">BIQ")


class FrameError(ValueError):
    """The peer does not speak the protocol: the connection is of no use."""


@dataclass(frozen=True, slots=True)
class OutputFrame:
    stream: Stream
    channel: int
    offset: int
    data: bytes


def encode_stdin(channel: int, data: bytes) -> bytes:
    return _STDIN.pack(STDIN_KIND, channel) + data


def decode_output(message: bytes) -> OutputFrame:
    if len(message) < _OUTPUT.size:
        raise FrameError(f"a binary frame of {len(message)} bytes")
    kind, channel, offset = _OUTPUT.unpack_from(message)
    stream = OUTPUT_KINDS.get(kind)
    if stream is None:
        raise FrameError(f"a binary frame of kind {kind}")
    return OutputFrame(stream, channel, offset, message[_OUTPUT.size :])


def encode_output(frame: OutputFrame) -> bytes:
    """The daemon's side, for tests and fakes."""
    kind = 1 if frame.stream == "stdout" else 2
    return _OUTPUT.pack(kind, frame.channel, frame.offset) + frame.data


def encode_control(op: str, members: dict[str, Any]) -> str:
    return msgspec.json.encode({"op": op, **members}).decode()


def decode_control(message: str) -> tuple[str, dict[str, Any]]:
    """The op and the other members. Raises FrameError for what is not a JSON object with an op."""
    try:
        value = msgspec.json.decode(message)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FrameError(f"a text frame that is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("op"), str):
        raise FrameError("a text frame without an op")
    return value.pop("op"), value
