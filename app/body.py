"""Reading JSON bodies strictly, and saying which field is wrong without repeating what was in it.

msgspec stops at the first fault and, for text that only the standard library would take (a lone surrogate, NaN), says just
"malformed". A second, slower reading then finds the field, so that the caller gets a 422 that names it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from app.problems import FieldError, Problem, invalid

T = TypeVar("T")

_PATH: Final = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`\Z", re.DOTALL)
# A name longer than this says nothing more about which field was meant.
_NAME_MAX: Final = 100


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode or raise a Problem: 400 `malformed` for what is not JSON, 422 `invalid` for what is not asked for."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(explain(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _malformed(body) from None


def explain(message: str) -> FieldError:
    """A field error from msgspec's message, which names a path and never a value, except for enums."""
    path = ""
    in_key = False
    if place := _PATH.search(message):
        path = place["path"].removeprefix(".")
        in_key = place["key"] is not None
        message = message[: place.start()]
    if found := _UNKNOWN.match(message):
        return FieldError(_join(path, found["name"]), "is not a known field")
    if found := _MISSING.match(message):
        return FieldError(_join(path, found["name"]), "is required")
    if message.startswith("Invalid enum value"):
        message = "is not one of the allowed values"
    elif message:
        message = message[0].lower() + message[1:]
    return FieldError(path, f"as a key: {message}" if in_key else message)


def _join(path: str, name: str) -> str:
    name = name.encode(errors="replace").decode()[:_NAME_MAX]
    return f"{path}.{name}" if path else name


def _malformed(body: bytes) -> Problem:
    try:
        value = json.loads(body.decode())
    except UnicodeDecodeError as error:
        return Problem("malformed", f"the body is not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return Problem("malformed", f"the body is not JSON (line {error.lineno}, column {error.colno})")
    except (ValueError, RecursionError):
        return Problem("malformed", "the body is nested too deep or holds a number that is too long")
    try:
        faults = list(_faults("", value))[:20]
    except RecursionError:
        return Problem("malformed", "the body is nested too deep")
    return invalid(*faults) if faults else Problem("malformed", "the body is not JSON")


def _faults(path: str, value: Any) -> Iterator[FieldError]:
    """What the standard library takes for JSON and JSON itself does not."""
    if isinstance(value, str):
        if not _encodable(value):
            yield FieldError(path, "holds half of a surrogate pair, which is not text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield FieldError(path, "is not a finite number")
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            yield FieldError(path, "is out of range")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not _encodable(key):
                yield FieldError(path, "holds a key with half of a surrogate pair, which is not text")
            yield from _faults(_join(path, key), item)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Disconnected(Exception):
    """The caller went away; nobody is there to be answered."""


class AnswerCut(Exception):
    """The rest of an answer that has begun cannot be had; the connection must end without it."""


async def chunks(receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises Disconnected when the caller goes away first."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return


async def read(receive: Callable[[], Awaitable[Any]], limit: int) -> bytes:
    """The whole body, when it is at most `limit` bytes."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        # nearly always: a small body comes in one piece
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise too_large(limit)
        return body
    if message["type"] == "http.disconnect":
        raise Disconnected
    parts = [message.get("body", b"")]
    size = len(parts[0])
    async for chunk in chunks(receive):
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        parts.append(chunk)
    return b"".join(parts)


def too_large(limit: int) -> Problem:
    return Problem(
        "too-large", f"at most {limit} bytes are taken", limit_bytes=limit, headers={"connection": "close"}
    )
