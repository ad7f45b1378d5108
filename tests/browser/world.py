"""The console's world in tests: the real API process over a real ledger that the test fills by hand.

No worker runs, so every record stays in the state that the test brought it to, and a page can be compared with it exactly.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from app.ledger.ledger import Ledger
from app.ledger.model import NewSandbox, Reason, Record, SandboxSpec, State, new_sandbox_id
from app.ledger.settings import read_settings
from tests.service import ROOT, dying_with_us

START_SECONDS = 30.0
WORKER = "test"
TENANTS = {"operator": "acme", "user": "acme", "viewer": "quiet"}
COMMAND = [sys.executable, "-m", "app.serve"]


@dataclass
class World:
    """One API process with a key for each role; their tenants are in `TENANTS`."""

    redis_url: str
    folder: Path
    extra_env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    keys: dict[str, str] = field(default_factory=dict)

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
            **self.extra_env,
        }

    def start(self) -> None:
        self.port = self.port or free_port()
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        for name, content in (("secret", secrets.token_hex(32)), ("log", "")):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(content)
        if not self.keys:
            self.keys = {role: "sm_" + secrets.token_urlsafe(32) for role in TENANTS}
            self.write_keys(TENANTS)
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                dying_with_us(COMMAND),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd=ROOT,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError((self.folder / "log").read_text()[-4000:])
            try:
                if httpx.get(f"{self.url}/login", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.05)
        raise AssertionError("the API process does not answer:\n" + (self.folder / "log").read_text()[-4000:])

    def write_keys(self, tenants: dict[str, str]) -> None:
        """The key file with exactly these roles; what is left out is withdrawn."""
        entries = [
            {
                "name": f"{role} key",
                "tenant": tenant,
                "role": role,
                "sha256": hashlib.sha256(self.keys[role].encode()).hexdigest(),
            }
            for role, tenant in tenants.items()
        ]
        fresh = self.folder / "keys.json.new"
        fresh.write_text(json.dumps({"keys": entries}))
        fresh.chmod(0o600)
        fresh.rename(self.folder / "keys.json")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)

    @asynccontextmanager
    async def ledger(self) -> AsyncIterator[Ledger]:
        ledger = await Ledger.connect(read_settings(self.environment))
        try:
            yield ledger
        finally:
            await ledger.aclose()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_sandbox(
    image: str = "host", *, tenant: str = "acme", labels: dict[str, str] | None = None
) -> NewSandbox:
    return NewSandbox(
        id=new_sandbox_id(),
        tenant=tenant,
        spec=SandboxSpec(image=image, cpu=1, memory=512 << 20, disk=1 << 30, labels=labels or {}),
        run=None,
        idempotency_key=None,
        fingerprint="-",
        lease_seconds=600,
        lifetime_seconds=3600,
        waiting=False,
    )


async def bring(ledger: Ledger, *news: NewSandbox, to: State) -> list[Record]:
    """Create these and bring them all to one state; the queue must be empty before."""
    made = [(await ledger.create(new)).record for new in news]
    if to is State.QUEUED:
        return made
    wanted = {record.id for record in made}
    admitted: set[str] = set()
    while not wanted <= admitted:
        batch = await ledger.admit(500, WORKER, 600)
        if not batch.records:
            await asyncio.sleep(max(batch.retry_after_ms, 5) / 1000)
        admitted |= {record.id for record in batch.records}
    for record in made:
        if to is State.FAILED:
            await ledger.mark_failed(record.id, Reason.IMAGE_PULL, "no such tag")
        elif to in (State.STARTING, State.READY):
            await ledger.mark_starting(record.id, "unix:/none", {})
            if to is State.READY:
                await ledger.mark_ready(record.id)
    found = [await ledger.get(record.id) for record in made]
    return [record for record in found if record is not None]
