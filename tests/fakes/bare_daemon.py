"""The real daemon, started directly on a loopback port: the exec channel and the files without the service in between."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 10.0


@dataclass
class BareDaemon:
    process: subprocess.Popen[bytes]
    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


def start_daemon(folder: Path, **settings: object) -> BareDaemon:
    """Started in `folder`; ended by `stop`, or by the kernel when this process dies."""
    token = secrets.token_hex(16)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        config = {
            "listen": f"fd:{listener.fileno()}",
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
            "sandbox": "sb-test",
            "workdir": str(folder),
            **settings,
        }
        process = subprocess.Popen(
            [os.environ.get("SANDMAN_DAEMON_PATH", str(ROOT / "daemon" / "bin" / "sandmand")), "serve"],
            env={"SANDMAND_CONFIG": json.dumps(config), "PATH": os.environ["PATH"], "HOME": str(folder)},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
    daemon = BareDaemon(process, port, token)
    deadline = time.monotonic() + START_SECONDS
    while not answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            daemon.stop()
            raise AssertionError(f"the daemon did not start (exit code {process.returncode})")
        time.sleep(0.01)
    return daemon


def die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b"200" in client.recv(64)
    except OSError:
        return False
