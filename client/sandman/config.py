"""Where the service is and which key opens it: arguments first, then SANDMAN_* variables, then what `sandman up` leaves.

Without any of them the client finds a service started on this machine by this user: 127.0.0.1 at the default port, and the
key file in the default data folder. The key is read here once and is never put into a URL, a log line or an error.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from sandman.errors import ConfigError
from sandman.retry import RetryPolicy

DEFAULT_PORT = 8700
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Limits:
    """How many sockets one client may hold; calls above a limit queue, none fails for it."""

    calls: int = 32
    """Short HTTP calls at once (renew, delete, stat): their own share, so that no long call can starve a lease."""
    waits: int = 128
    """Long polls at once (creates and waits for ready). Creates beyond it are queued at the service without a held poll."""
    transfers: int = 16
    """Uploads and downloads at once."""
    channels: int = 512
    """Exec connections at once, one a sandbox; idle ones are closed for those that queue."""
    queue_seconds: float = 600.0
    """How long an exec waits for a free connection before ConnectionLimit says which limit to raise."""

    @classmethod
    def for_this_process(cls) -> Limits:
        """Sized from `ulimit -n`: at most three quarters of it, for the program has files of its own."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft > 16384:
            soft = 16384
        usable = max(16, soft * 3 // 4)
        return cls(
            calls=max(2, min(32, usable // 16)),
            waits=max(4, min(256, usable // 6)),
            transfers=max(2, min(32, usable // 32)),
            channels=max(4, usable * 2 // 3),
        )


@dataclass(frozen=True)
class Timeouts:
    """Bounds of the client's own calls, in seconds. None of them bounds a command: that is `timeout` of the exec."""

    connect: float = 10.0
    request: float = 30.0
    """Without a byte of answer, for one HTTP request; a waiting request adds the time it asked the service to wait."""
    silence: float = 45.0
    """An exec connection without any frame for this long is taken for dead and made anew: three missed heartbeats."""
    resume: float = 120.0
    """How long a broken exec connection is tried again before ConnectionLost; the command runs on meanwhile."""
    idle: float = 30.0
    """An exec connection without an open exec is closed after this."""
    close: float = 2.0
    """All of close(), whatever is open."""


@dataclass(frozen=True)
class Settings:
    url: str
    api_key: str = field(repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits.for_this_process)
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def websocket_url(self) -> str:
        return "ws" + self.url.removeprefix("http")

    @property
    def is_loopback(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK

    def with_request_timeout(self, seconds: float | None) -> Settings:
        if seconds is None:
            return self
        return replace(self, timeouts=replace(self.timeouts, request=seconds))


def resolve(
    url: str | None = None,
    api_key: str | None = None,
    *,
    timeouts: Timeouts | None = None,
    limits: Limits | None = None,
    retry: RetryPolicy | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from arguments, environment and files. Raises ConfigError before anything is sent."""
    env = os.environ if environ is None else environ
    return Settings(
        url=check_url(url or env.get("SANDMAN_URL") or DEFAULT_URL),
        api_key=check_key(api_key or find_key(env)),
        timeouts=timeouts or Timeouts(),
        limits=limits or Limits.for_this_process(),
        retry=retry or RetryPolicy(),
    )


def check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"not a URL: {without_secrets(url)!r} ({error})") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(
            f"the service's URL must be http://HOST[:PORT] or https://…, not {without_secrets(url)!r}"
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            "the service's URL takes no query, fragment or user: give the key by SANDMAN_API_KEY"
        )
    try:
        httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigError(f"not a URL: {without_secrets(url)!r} ({error})") from error
    return url.rstrip("/")


def without_secrets(url: str) -> str:
    """A URL as it may be shown: what stands before an @, or behind a ?, may be a password."""
    return re.sub(r"//[^/]*@|^[^/]*@", "//…@", url).partition("?")[0]


def check_key(key: str) -> str:
    """It goes into a header: anything but visible ASCII cannot be a key, and would fail there with the key in the message."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("the API key holds characters that no key has: was it copied whole?")
    return key


def default_data_dir(env: Mapping[str, str]) -> Path:
    """Where `sandman up` keeps its data unless told otherwise; the same rule as in the service."""
    if env.get("SANDMAN_DATA_DIR"):
        return Path(env["SANDMAN_DATA_DIR"]).expanduser()
    if os.geteuid() == 0:
        return Path("/var/lib/sandman")
    base = env.get("XDG_DATA_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".local" / "share")
    return Path(base) / "sandman"


def find_key(env: Mapping[str, str]) -> str:
    if env.get("SANDMAN_API_KEY"):
        return env["SANDMAN_API_KEY"].strip()
    named = env.get("SANDMAN_API_KEY_FILE")
    path = Path(named) if named else default_data_dir(env) / "api-key"
    try:
        key = path.read_text("ascii").strip()
    except FileNotFoundError as error:
        raise ConfigError(
            f"no API key: set SANDMAN_API_KEY or SANDMAN_API_KEY_FILE, or pass api_key= (looked for {path})"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API key in {path}: {error}") from error
    if not key:
        raise ConfigError(f"the API key file {path} is empty")
    return key
