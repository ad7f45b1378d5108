"""API keys, kept as sha256 digests in one file that only its owner can read.

A key has 256 random bits, so a plain digest cannot be reversed, and what is compared is never the key itself. The file is read
again when it changes, so a key is added or withdrawn without a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import structlog

log = structlog.get_logger("sandman.auth")

KEY_BYTES_MAX: Final = 256
# A withdrawn key works for at most this long; a stat of the file for each request would cost more than the check itself.
RELOAD_SECONDS: Final = 1.0


class Role(StrEnum):
    VIEWER = "viewer"
    """May look, and change nothing."""
    USER = "user"
    OPERATOR = "operator"
    """A user who also sees the counts of all tenants. Its calls on sandboxes and runs are still its own tenant's."""


class KeyEntry(msgspec.Struct, frozen=True):
    name: str
    tenant: str
    role: Role
    sha256: str


class KeyFile(msgspec.Struct, frozen=True):
    keys: list[KeyEntry] = []


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from."""

    name: str
    tenant: str
    role: Role
    key_sha256: str

    @property
    def sees_all(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def may_write(self) -> bool:
        return self.role is not Role.VIEWER


class KeyRing:
    """The keys that are valid now. `find` never raises: an unreadable file keeps the keys that were read last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._callers: dict[str, Caller] = {}
        self._version: tuple[int, int, int] | None = None
        self._checked = -RELOAD_SECONDS

    def find(self, key: bytes) -> Caller | None:
        """The caller whose key this is. Takes the same time for each wrong key."""
        if not key or len(key) > KEY_BYTES_MAX:
            return None
        now = time.monotonic()
        if now - self._checked >= RELOAD_SECONDS:
            self._checked = now
            self.reload()
        digest = hashlib.sha256(key).hexdigest()
        caller = self._callers.get(digest)
        if caller is None or not hmac.compare_digest(caller.key_sha256, digest):
            return None
        return caller

    def valid(self, key_sha256: str) -> bool:
        """Whether a key with this digest is still in the file: sessions opened with it live no longer."""
        now = time.monotonic()
        if now - self._checked >= RELOAD_SECONDS:
            self._checked = now
            self.reload()
        return key_sha256 in self._callers

    def reload(self) -> None:
        """Read the file when it is another one than last time."""
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version == self._version:
                return
            entries = msgspec.json.decode(self._path.read_bytes(), type=KeyFile).keys
        except FileNotFoundError:
            if self._version is not None:
                log.warning("the key file is gone: no key is valid", path=str(self._path))
            self._version, self._callers = None, {}
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.error(
                "the key file cannot be read: the keys stay as they were",
                path=str(self._path),
                error=str(error),
            )
            return
        self._version = version
        self._callers = {
            entry.sha256.lower(): Caller(entry.name, entry.tenant, entry.role, entry.sha256.lower())
            for entry in entries
        }
