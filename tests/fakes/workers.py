"""Worker processes over the fake backend, and a service's worth of their surroundings in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.ledger.ledger import Ledger
from app.ledger.model import State
from app.ledger.settings import Settings
from tests.fakes.ledger import Recount, ledger_settings
from tests.fakes.provider import FakeProvider
from tests.service import dying_with_us

ROOT = Path(__file__).resolve().parents[2]


class Backstage:
    """Settings, ledger and fake backend of one test, and the worker processes that it starts. All end with it."""

    def __init__(self, url: str, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            "REDIS_URL": url,
            "CLAIM_SECONDS": "1.5",
            "LEADER_SECONDS": "1",
            "JOB_SECONDS": "4",
            "RELIST_SECONDS": "0.5",
            "ORPHAN_GRACE_SECONDS": "0.5",
            "SECRET_FILE": str(folder / "secret"),
            "LOG_LEVEL": "info",
        } | environment
        (folder / "secret").write_text("ab" * 32)
        self.settings: Settings = ledger_settings(url, folder, **self.environment)
        self.environment |= {"NAMESPACE": self.settings.redis.namespace, "DATA_DIR": str(folder)}
        self.provider = FakeProvider(folder / "backend")
        self.recount = Recount(url, self.settings.redis.namespace)
        self.ledger: Ledger
        self._processes: list[subprocess.Popen[bytes]] = []

    async def __aenter__(self) -> Backstage:
        self.ledger = await Ledger.connect(self.settings)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        await self.ledger.aclose()
        self.recount.close()

    def start(self, module: str) -> subprocess.Popen[bytes]:
        """`rq_worker` or `loops`; its log is FOLDER/<module>.log."""
        environment = os.environ | {f"SANDMAN_{name}": value for name, value in self.environment.items()}
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, "-m", "tests.fakes.process", module, str(self.folder / "backend")]
        with (self.folder / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                dying_with_us(command), env=environment, cwd=ROOT, stderr=log, stdout=log
            )
        self._processes.append(process)
        return process

    def log(self, module: str) -> str:
        return (self.folder / f"{module}.log").read_text()

    async def states(self, ids: list[str]) -> list[State]:
        return [record.state for record in await self.ledger.get_many(ids) if record is not None]


async def eventually(condition: Callable[[], object], seconds: float = 20.0, what: str = "") -> None:
    """Wait until it holds (a coroutine function's result counts); a bound, not a pause."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < end, what or f"not within {seconds} s"
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """SIGKILL it some time into the block's work."""
    timer = asyncio.get_running_loop().call_later(seconds, os.kill, process.pid, signal.SIGKILL)
    try:
        yield
    finally:
        timer.cancel()
