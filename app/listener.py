"""Options of the listening TCP socket, which Linux hands on to every connection accepted from it.

The server opens the socket itself and has no settings for these, so it is found among this process's files by its address.
TCP_NODELAY: a line of output leaves at once instead of waiting for the acknowledgement of the one before. Keep-alive probes and
TCP_USER_TIMEOUT: a caller whose machine is gone is noticed within about a minute, and what it held is let go.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

KEEPALIVE_IDLE_SECONDS: Final = 20
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 4
UNACKNOWLEDGED_MILLISECONDS: Final = 60_000


def tune_listeners(port: int) -> int:
    """Set the options on this process's listening sockets of `port`; returns how many there were."""
    tuned = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            duplicate = os.dup(int(entry.name))
        except (OSError, ValueError):
            continue
        try:
            candidate = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            continue
        with candidate:
            if _listens_on(candidate, port):
                _tune(candidate)
                tuned += 1
    return tuned


def _listens_on(candidate: socket.socket, port: int) -> bool:
    try:
        if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
            return False
        if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        return bool(candidate.getsockname()[1] == port)
    except OSError:
        return False


def _tune(listener: socket.socket) -> None:
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
