"""The options of `sandman up`, and the defaults that depend on who starts it.

Everything else is a SANDMAN_* setting of the service's own processes (docs/settings.md); these options are only what one
decides anew at each start.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, kw_only=True)
class Options:
    host: str
    port: int
    """0 takes any free port; the banner and DIR/service.json say which."""
    data_dir: Path
    provider: str
    image_roots: tuple[Path, ...]
    """Folders outside DIR under which image folders and archives may lie."""
    redis_url: str | None
    """None starts the bundled Valkey."""
    allow_volatile_redis: bool
    log_level: str
    log_format: str


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sandman")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "sandman"


def parse(argv: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="sandman up",
        description="Start the whole service on this machine: Valkey, worker, loops and API. Ctrl-C stops it and takes back "
        "every sandbox.",
    )
    parser.add_argument(
        "--host", default=os.environ.get("SANDMAN_HOST", "127.0.0.1"), help="address to listen on"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("SANDMAN_PORT", "8700"),
        help="port to listen on; 0 takes a free one",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("SANDMAN_DATA_DIR") or default_data_dir()),
        metavar="DIR",
        help="where keys, the ledger and sandboxes' files lie (default: %(default)s)",
    )
    parser.add_argument(
        "--provider", default=os.environ.get("SANDMAN_PROVIDER", "local"), help="backend of the sandboxes"
    )
    parser.add_argument(
        "--image-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder under which unpacked images and OCI archives may lie; may be given more than once",
    )
    parser.add_argument(
        "--allow-volatile-redis",
        action="store_true",
        help="accept a SANDMAN_REDIS_URL whose Redis keeps nothing on disk; a restart of that Redis then loses every record",
    )
    parser.add_argument(
        "--log-level",
        type=str.lower,
        default=os.environ.get("SANDMAN_LOG_LEVEL") or None,
        help=f"of the service's processes: {', '.join(LOG_LEVELS)} (default: warning for text, info for json)",
    )
    parser.add_argument(
        "--log-format",
        type=str.lower,
        default=os.environ.get("SANDMAN_LOG_FORMAT") or "text",
        help="text for a person, json for a log collector",
    )
    given = parser.parse_args(argv)
    # By hand: argparse checks no choices of a default, and these come from the environment too.
    if given.log_format not in LOG_FORMATS:
        parser.error(f"--log-format (or SANDMAN_LOG_FORMAT) is one of {', '.join(LOG_FORMATS)}")
    if given.log_level not in (None, *LOG_LEVELS):
        parser.error(f"--log-level (or SANDMAN_LOG_LEVEL) is one of {', '.join(LOG_LEVELS)}")
    return Options(
        host=given.host,
        port=given.port,
        data_dir=given.data_dir.expanduser().absolute(),
        provider=given.provider,
        image_roots=tuple(root.expanduser().absolute() for root in given.image_root),
        redis_url=os.environ.get("SANDMAN_REDIS_URL") or None,
        allow_volatile_redis=given.allow_volatile_redis,
        # A person wants to see what is wrong; every request is for the collector.
        log_level=given.log_level or ("warning" if given.log_format == "text" else "info"),
        log_format=given.log_format,
    )


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return port
