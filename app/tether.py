"""Ties a server's worker process to the server: killed alone, the server would leave it behind with port and connections in hand,
and its successor could not listen."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def die_with_server() -> None:
    """Ask the kernel to kill this process when its parent dies. Does nothing outside of a worker process."""
    server = multiprocessing.parent_process()
    if server is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before the kernel was asked.
    if os.getppid() != server.pid:
        os._exit(1)
