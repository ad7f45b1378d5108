"""What can be set about the console, read once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit


class ConsoleSettingsError(ValueError):
    """A setting of the console cannot be used; the text names it."""


@dataclass(frozen=True)
class ConsoleSettings:
    origins: tuple[str, ...] = ()
    """Public addresses of the console, such as https://sandman.example.org (SANDMAN_CONSOLE_ORIGIN, comma separated). Needed when
    people come by a name other than localhost; an https one also marks the cookies Secure."""

    session_seconds: int = 12 * 3600
    """How long a login lasts, used or not: one working day. A page that polls would renew an idle limit for ever."""

    poll_seconds: float = 2.0
    """How often an open page asks again. Half of it doubles the load of many open pages for little; double feels stuck."""

    snapshot_seconds: float = 1.0
    """How old the figures may be that open pages share. It makes the cost of 200 pages that of one a second."""

    sample_seconds: float = 5.0
    """Distance of two readings in the chart."""

    chart_seconds: int = 15 * 60
    """How far back the chart goes; with the line above it bounds the ring in Redis to 180 short entries a scope."""

    page_size: int = 25
    """Rows of the sandbox list: what fits a screen, and what a phone still morphs smoothly."""

    login_attempts: int = 20
    """Logins tried from one address in `login_window_seconds`, right ones included, so that stored sessions are bounded too."""

    login_window_seconds: int = 300


def read_settings(environment: Mapping[str, str] | None = None) -> ConsoleSettings:
    values = os.environ if environment is None else environment
    origins = tuple(
        _origin(part.strip()) for part in values.get("SANDMAN_CONSOLE_ORIGIN", "").split(",") if part.strip()
    )
    return ConsoleSettings(
        origins=origins,
        session_seconds=_whole(values, "SANDMAN_CONSOLE_SESSION_SECONDS", ConsoleSettings.session_seconds),
        login_attempts=_whole(values, "SANDMAN_CONSOLE_LOGIN_ATTEMPTS", ConsoleSettings.login_attempts),
    )


def _origin(text: str) -> str:
    parts = urlsplit(text.lower().rstrip("/"))
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.path
        or parts.query
        or parts.username
    ):
        raise ConsoleSettingsError(
            f"SANDMAN_CONSOLE_ORIGIN: {text!r} is not an origin such as https://sandman.example.org"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _whole(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not 0 < int(text) < 10**8:
        raise ConsoleSettingsError(f"{name}: {text!r} is not a whole number above 0")
    return int(text)
