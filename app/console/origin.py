"""Who may be speaking: the Host, Origin and Sec-Fetch-* rules of the console, without any I/O.

The console is told by its cookie who somebody is, so a request must prove that it was made by the console's own pages. The
Host rule is what stops DNS rebinding: an attacker's page reaches a loopback service only under a *name* that he controls, so
addresses and `localhost` are always good and every other name has to be configured.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Refused(Exception):
    """The request is not the console's own; the text says what to do and is safe to show."""


def split_host(host: str) -> tuple[str, int | None] | None:
    """`name:port` into its parts, lower case and without brackets; None when it is not a host at all."""
    if not host or len(host) > 260 or any(character in host for character in "/@?#\\, \t"):
        return None
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        return None
    name = (parts.hostname or "").rstrip(".")
    return (name, port) if name else None


def check_host(host: str, public_origins: tuple[str, ...]) -> None:
    """Raise Refused unless the Host header is an address, localhost, or the host of a configured origin."""
    parts = split_host(host)
    if parts is None:
        raise Refused("The request names no host.")
    name, _ = parts
    if name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    if any(name == urlsplit(origin).hostname for origin in public_origins):
        return
    raise Refused(
        "This host name is not the console's. Set SANDMAN_CONSOLE_ORIGIN to the address that people use."
    )


def check_source(
    method: str, headers: Mapping[str, str], *, scheme: str, public_origins: tuple[str, ...]
) -> None:
    """Raise Refused when another site made this request.

    Changes need an Origin that is ours (or, from a browser that sends none, Sec-Fetch-Site: same-origin). Reads are refused
    only when a browser says that another site wants to embed or fetch them; following a link to the console is fine.
    """
    site = headers.get("sec-fetch-site")
    if method in SAFE_METHODS:
        navigated = (
            headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        )
        if site in (None, "same-origin", "none") or navigated:
            return
        raise Refused("Another site asked for this page.")
    origin = headers.get("origin")
    if origin is None:
        if site == "same-origin":
            return
        raise Refused("The request does not say where it comes from.")
    if site not in (None, "same-origin"):
        raise Refused("Another site made this request.")
    if not _is_own(origin, headers.get("host", ""), scheme, public_origins):
        raise Refused("Another site made this request.")


def public_scheme(host: str, scheme: str, public_origins: tuple[str, ...]) -> str:
    """https when a configured origin of this host says so: behind a proxy the service itself sees plain http."""
    parts = split_host(host)
    for origin in public_origins:
        known = urlsplit(origin)
        if parts is not None and known.hostname == parts[0]:
            return known.scheme
    return scheme


def local_path(target: str) -> str:
    """A path of this console to go to after the login; anything else becomes the front page."""
    if (
        not target.startswith("/")
        or target.startswith(("//", "/\\", "/login", "/logout"))
        or len(target) > 600
    ):
        return "/"
    if any(ord(character) < 33 or character == "\\" for character in target):
        return "/"
    return target


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.split("%", 1)[0])
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str, scheme: str, public_origins: tuple[str, ...]) -> bool:
    claimed = _normal(origin)
    if claimed is None:
        return False
    if claimed in {_normal(known) for known in public_origins}:
        return True
    parts = split_host(host)
    if parts is None:
        return False
    # A host that a configured origin names must come by that origin, or a plain-http page of the same host could forge it.
    if any(urlsplit(known).hostname == parts[0] for known in public_origins):
        return False
    return claimed == (scheme, parts[0], parts[1] or DEFAULT_PORTS.get(scheme, 0))


def _normal(origin: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path or parts.query or parts.username:
        return None
    return parts.scheme, parts.hostname.rstrip("."), port or DEFAULT_PORTS[parts.scheme]
