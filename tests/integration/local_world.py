"""A local provider of a test's own, and the eyes to see whether anything of it is left on the machine.

The provider needs a supervisor: a subreaper that reaps what is given to it. Here a small process of its own plays that part, so
that tests can kill it, and pytest is not changed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from app.ledger.model import Policy, Record, SandboxSpec, State, new_sandbox_id
from app.ledger.settings import Settings, read_settings
from worker.providers.local.options import read_options
from worker.providers.local.provider import LocalProvider

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024**2
TOKEN = "t" * 64
TOKEN_SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
SUPERVISOR = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
child = os.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
print(child, flush=True)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        time.sleep(0.02)
"""


def record(image: str = "host", *, id: str | None = None, **spec: Any) -> Record:  # noqa: A002
    spec = {"cpu": 1.0, "memory": 256 * MIB, "disk": 1024 * MIB, "policy": Policy(), **spec}
    return Record(
        id=id or new_sandbox_id(),
        tenant="test",
        run=None,
        state=State.CREATING,
        reason=None,
        detail=None,
        spec=SandboxSpec(image=image, **spec),
        lease_seconds=60,
        lease_expires_ms=None,
        deadline_ms=3_600_000,
        claimed=False,
        times={"queued": 1, "creating": 2},
        attempts=1,
        address=None,
        enforced={},
        reclaim=None,
        rev=1,
    )


@dataclass
class Installation:
    """Folders of one service on this machine; nothing in it is shared with another."""

    base: Path
    runtime: Path
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SANDMAN_DATA_DIR": str(self.base / "data"),
            "SANDMAN_STORAGE_DIR": str(self.base / "storage"),
            "SANDMAN_RUNTIME_DIR": str(self.runtime),
            "SANDMAN_NAMESPACE": "test",
            **self.more,
        }

    def settings(self) -> Settings:
        return read_settings(self.environment)

    def leftovers(self) -> list[str]:
        """By what the kernel and the file system show, not by asking the provider."""
        found = [
            str(path) for name in ("sandboxes", "state", "locks", "trash") for path in self._entries(name)
        ]
        found += (
            [str(path) for path in (self.runtime / "s").iterdir()] if (self.runtime / "s").is_dir() else []
        )
        found += [str(path) for path in self._cgroups()]
        mark = os.fsencode(self.base)
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            try:
                ours = (
                    mark in (process / "mountinfo").read_bytes() or mark in (process / "cmdline").read_bytes()
                )
                if ours and (process / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                    found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
            except OSError:
                continue
        return found

    def _entries(self, name: str) -> Iterator[Path]:
        folder = self.base / "storage" / name
        return folder.iterdir() if folder.is_dir() else iter(())

    def _cgroups(self) -> list[Path]:
        return [path for base in self._cgroup_bases() for path in base.iterdir() if path.is_dir()]

    def _cgroup_bases(self) -> list[Path]:
        """Wherever in the trees; others come and go meanwhile, which os.walk takes as it is."""
        instance = read_options(self.settings()).instance
        return [Path(top, instance) for top, names, _ in os.walk("/sys/fs/cgroup") if instance in names]

    def remove(self) -> None:
        for base in self._cgroup_bases():
            base.rmdir()
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.rmtree(self.runtime, ignore_errors=True)


def new_installation(**more: str) -> Installation:
    """Under /var/tmp: pytest's own folders are closed to the sandboxes' user."""
    name = f"sandman-test-{secrets.token_hex(4)}"
    base, runtime = Path("/var/tmp") / name, Path("/tmp") / name
    base.mkdir(mode=0o755)
    runtime.mkdir(mode=0o700)
    return Installation(base, runtime, more)


@cache
def shared_installation() -> Installation:
    """One for all tests of this process that do not need their own: making the host's layers costs seconds."""
    installation = new_installation()
    atexit.register(installation.remove)
    return installation


@contextlib.asynccontextmanager
async def provider_at(installation: Installation) -> AsyncIterator[LocalProvider]:
    """A provider that leaves nothing behind, which is checked when it is done."""
    provider = LocalProvider(installation.settings())
    try:
        await provider.check()
        yield provider
    finally:
        for found in await provider.list():
            await provider.delete(found.id)
        await provider.close()
    left = eventually(lambda: not installation.leftovers(), 5) or installation.leftovers()
    assert left is True, left


class Client:
    """The daemon of one sandbox, spoken to as the gateway does."""

    def __init__(self, address: str) -> None:
        assert address.startswith("unix:")
        self._path = address.removeprefix("unix:")

    def request(self, method: str, path: str, body: Any = None, *, token: str = TOKEN) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("sandbox", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(60)
        connection.sock.connect(self._path)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def run(self, command: str, **fields: Any) -> dict[str, Any]:
        status, answer = self.request("POST", "/v1/exec", {"command": command, **fields})
        assert status in (200, 202), answer
        assert isinstance(answer, dict)
        return answer

    def out(self, command: str, **fields: Any) -> str:
        answer = self.run(command, **fields)
        assert answer["exit_code"] == 0, answer
        return str(answer["stdout"])


def eventually(look: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


class Supervised:
    """A Python program under a stand-in supervisor. Everything dies with the test's process."""

    def __init__(self, installation: Installation, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **installation.environment},
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
