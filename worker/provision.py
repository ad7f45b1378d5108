"""The job `worker.provision.run`: drain the queue into the provider, under the ledger's pacing.

A job is only a wake-up. It may be lost, doubled, or killed at any line: what it had admitted carries a claim, and when the claim
lapses another job takes the same creates over. The runtime (loop, connections, provider) is kept between jobs, because a job is
often shorter than opening it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid

import structlog

from app.ledger.errors import LedgerError
from app.ledger.ledger import Ledger
from app.ledger.settings import Settings, get_settings
from app.ledger.tokens import read_secret
from worker.drain import Drain
from worker.providers.base import Provider
from worker.providers.choose import open_provider

log = structlog.get_logger(__name__)


def worker_name() -> str:
    """Unique for each process ever started, so that a restarted worker never takes its predecessor's claims for its own."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Runtime:
    """What the jobs of one process share."""

    def __init__(self, ledger: Ledger, provider: Provider, secret: bytes, settings: Settings) -> None:
        self.ledger = ledger
        self.provider = provider
        self.secret = secret
        self.settings = settings
        self.worker = worker_name()

    @classmethod
    async def open(cls, settings: Settings) -> Runtime:
        """Raises ProviderUnavailable or SecretUnreadable: then the job fails, and the queue waits for one that can work."""
        secret = read_secret(settings.paths.secret_file)
        provider = open_provider(settings)
        await provider.start()
        return cls(await Ledger.connect(settings), provider, secret, settings)

    async def close(self) -> None:
        await self.provider.close()
        await self.ledger.aclose()


_runner: asyncio.Runner | None = None
_runtime: Runtime | None = None
_drain: Drain | None = None
_stopping = False


async def _work() -> None:
    global _runtime, _drain
    if _runtime is None:
        _runtime = await Runtime.open(get_settings())
    runtime = _runtime
    _drain = Drain(runtime.ledger, runtime.provider, runtime.secret, runtime.settings, runtime.worker)
    if _stopping:
        _drain.stop()
    try:
        made = await _drain.work()
    except LedgerError as error:
        # The queue is still there; whoever wakes next continues. Failing the job would only add a traceback.
        log.warning("provision.interrupted", error=str(error))
    else:
        if made:
            log.info("provision.drained", sandboxes=made)
    finally:
        _drain = None


def run() -> None:
    """What RQ calls."""
    global _runner
    if _runner is None:
        _runner = asyncio.Runner()
    _runner.run(_work())


def request_stop() -> None:
    """From a signal handler: take nothing new, finish what is nearly done, then let the job end."""
    global _stopping
    _stopping = True
    if _drain is not None:
        _drain.stop()


def close() -> None:
    """At the end of the process."""
    global _runner, _runtime
    if _runner is not None:
        if _runtime is not None:
            _runner.run(_runtime.close())
        _runner.close()
    _runner = _runtime = None
