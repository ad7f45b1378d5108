"""The API's world in tests: the real server process, a real ledger that the test moves on by hand, and real daemons.

No worker runs and nothing is isolated: a "sandbox" is a daemon on a unix socket, so that what is tested is the way through the
service and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.ledger.ledger import Ledger
from app.ledger.model import NewSandbox, Reason, Record, SandboxSpec, new_sandbox_id
from app.ledger.settings import Settings, read_settings
from app.ledger.tasks import end_tasks
from app.ledger.tokens import read_secret, sandbox_token, token_sha256
from tests.service import ROOT, dying_with_us

DAEMON = Path(os.environ.get("SANDMAN_DAEMON_PATH") or ROOT / "daemon" / "bin" / "sandmand")
KEYS = {
    "alice": ("acme", "user"),
    "bob": ("other", "user"),
    "vera": ("acme", "viewer"),
    "root": ("acme", "operator"),
}
START_SECONDS = 20.0


@dataclass
class Daemon:
    """One daemon as a plain process, on a unix socket."""

    sandbox_id: str
    address: str
    process: subprocess.Popen[bytes]
    home: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@dataclass
class World:
    redis_url: str
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    keys: dict[str, str] = field(default_factory=dict)
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDMAN_")}
        return kept | {
            "SANDMAN_DATA_DIR": str(self.folder),
            "SANDMAN_RUNTIME_DIR": str(self.folder / "run"),
            "SANDMAN_REDIS_URL": self.redis_url,
            "SANDMAN_NAMESPACE": self.folder.name,
            "SANDMAN_PORT": str(self.port),
            "SANDMAN_PACING_RATE_INITIAL": "100000",
            "SANDMAN_PACING_RATE_MAX": "100000",
            "SANDMAN_PACING_WINDOW": "100000",
            # Nobody calls `expire` between the tests, which is no outage here.
            "SANDMAN_OUTAGE_GRACE_SECONDS": "0",
            **self.env,
        }

    @property
    def settings(self) -> Settings:
        return read_settings(self.environment)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def auth(self, name: str = "alice") -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[name]}"}

    def start(self) -> None:
        self.port = self.port or free_port()
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        if not (self.folder / "secret").exists():
            (self.folder / "secret").write_text(secrets.token_hex(32))
        if not self.keys:
            self.keys = {name: "sm_" + secrets.token_urlsafe(32) for name in KEYS}
            self.write_keys()
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                dying_with_us([sys.executable, "-P", "-m", "app.serve"]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment | {"PYTHONPATH": str(ROOT)},
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(self.log)
            time.sleep(0.05)

    def write_keys(self) -> None:
        entries = [
            {
                "name": name,
                "tenant": KEYS[name][0],
                "role": KEYS[name][1],
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
            }
            for name, key in self.keys.items()
        ]
        scratch = self.folder / "keys.tmp"
        scratch.write_text(json.dumps({"keys": entries}))
        scratch.rename(self.folder / "keys.json")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            try:
                probe.connect(("127.0.0.1", self.port))
                probe.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return probe.recv(100).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 15) -> float:
        """End the server; gives how long that took."""
        assert self.process is not None
        started = time.monotonic()
        if number is signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)  # the worker process is in the session that we made
        else:
            self.process.send_signal(number)
        try:
            self.process.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process = None
        return time.monotonic() - started

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        if self.process is not None:
            self.stop(signal.SIGKILL)

    def server_pids(self) -> list[int]:
        """The server's processes: the parent and its workers."""
        assert self.process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, ProcessLookupError):
                    if os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
        return sorted(found)

    def open_files(self) -> int:
        total = 0
        for pid in self.server_pids():
            with contextlib.suppress(OSError):
                total += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return total

    def resident_bytes(self) -> int:
        total = 0
        for pid in self.server_pids():
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
        return total

    # the ledger's side

    @contextlib.asynccontextmanager
    async def ledger(self) -> AsyncIterator[Ledger]:
        ledger = await Ledger.connect(self.settings)
        try:
            yield ledger
        finally:
            await ledger.aclose()

    def start_daemon(self, sandbox_id: str, **config: Any) -> Daemon:
        """A daemon that takes this sandbox's token."""
        path = self.folder / "run" / f"{sandbox_id[-12:]}.sock"
        home = self.folder / "homes" / sandbox_id
        home.mkdir(parents=True, exist_ok=True)
        token = sandbox_token(read_secret(self.folder / "secret"), sandbox_id)
        path.unlink(missing_ok=True)
        document = {
            "listen": f"unix:{path}",
            "token_sha256": token_sha256(token),
            "sandbox": sandbox_id,
            "workdir": str(home),
            "spool_dir": str(home),
            "env": {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(home)},
            **config,
        }
        process = subprocess.Popen(
            dying_with_us([str(DAEMON), "serve"]),
            stdin=subprocess.DEVNULL,
            env={"SANDMAND_CONFIG": json.dumps(document)},
            start_new_session=True,
        )
        daemon = Daemon(sandbox_id, f"unix:{path}", process, home)
        self.daemons.append(daemon)
        deadline = time.monotonic() + 10
        while not _connects(path):
            assert process.poll() is None and time.monotonic() < deadline, "the daemon did not come up"
            time.sleep(0.01)
        return daemon

    async def sandbox(
        self,
        ledger: Ledger,
        *,
        address: str = "unix:/nowhere/s.sock",
        tenant: str = "acme",
        lease_seconds: float = 60,
        run: str | None = None,
        upto: str = "ready",
    ) -> Record:
        """A record brought to the state `upto`, without a daemon."""
        record = (
            await ledger.create(
                NewSandbox(
                    id=new_sandbox_id(),
                    tenant=tenant,
                    spec=SandboxSpec(image="host", cpu=1, memory=2**30, disk=2**30),
                    run=run,
                    idempotency_key=None,
                    fingerprint="",
                    lease_seconds=lease_seconds,
                    lifetime_seconds=3600,
                    waiting=False,
                )
            )
        ).record
        await self.move(ledger, record.id, address, upto)
        found = await ledger.get(record.id)
        assert found is not None
        return found

    async def move(self, ledger: Ledger, sandbox_id: str, address: str, upto: str) -> None:
        if upto == "queued":
            return
        admitted: set[str] = set()
        while sandbox_id not in admitted:
            admitted |= {one.id for one in (await ledger.admit(1000, "test")).records}
        if upto == "creating":
            return
        if upto == "failed":
            await ledger.mark_failed(sandbox_id, Reason.IMAGE_PULL, "no such image")
            return
        assert await ledger.mark_starting(sandbox_id, address, {})
        if upto == "ready":
            assert await ledger.mark_ready(sandbox_id)

    async def usable(self, ledger: Ledger, **options: Any) -> tuple[Record, Daemon]:
        """A ready sandbox with a daemon behind it."""
        queued = await self.sandbox(ledger, upto="creating", **options)
        daemon = await asyncio.to_thread(self.start_daemon, queued.id)
        assert await ledger.mark_starting(queued.id, daemon.address, {})
        assert await ledger.mark_ready(queued.id)
        record = await ledger.get(queued.id)
        assert record is not None
        return record, daemon

    @contextlib.asynccontextmanager
    async def provisioning(
        self,
        ledger: Ledger,
        *,
        delay: float = 0.0,
        fail: Callable[[Record], Reason | None] = lambda _record: None,
    ) -> AsyncIterator[None]:
        """A stand-in for the worker: whatever is queued becomes ready (or fails) after `delay`."""

        at_once = asyncio.Semaphore(12)

        async def one(record: Record) -> None:
            await asyncio.sleep(delay)
            async with at_once:
                await move(record)

        async def move(record: Record) -> None:
            if (reason := fail(record)) is not None:
                await ledger.mark_failed(record.id, reason, "as the test wants it")
            elif await ledger.mark_starting(record.id, "unix:/nowhere/s.sock", {"memory": "none"}):
                await ledger.mark_ready(record.id)

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                while True:
                    for record in (await ledger.admit(500, "test", 600)).records:
                        group.create_task(one(record))
                    await asyncio.sleep(0.02)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            await end_tasks(task)


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def raw_request(
    world: World,
    method: str,
    path: str,
    *,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    key: str = "alice",
) -> Iterator[socket.socket]:
    """A socket on which this request was sent; for hanging up and for answers that must be seen byte for byte."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {world.keys[key]}"]
    given = headers or {}
    lines += [f"{name}: {value}" for name, value in given.items()]
    if "content-length" not in {name.lower() for name in given} and "transfer-encoding" not in {
        n.lower() for n in given
    }:
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", world.port), timeout=20) as client:
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        yield client
