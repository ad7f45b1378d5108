"""`python -m worker.loops`: watch and reclaim, in one process, by one leader.

Any number of these may run; whoever holds the leader key in Redis does the work and the others wait for it to fall silent. What the
leader does is safe to do twice (every step is one atomic script, every call to the backend is idempotent); the fencing token guards
the one thing that is not, the word that ledger and backend agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable

import structlog

from app.ledger.errors import LedgerError, LedgerUnavailable
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.settings import Settings, get_settings
from app.ledger.tasks import end_tasks
from app.ledger.tokens import SecretUnreadable, read_secret
from worker.logs import configure_logs
from worker.providers.base import Provider, ProviderError, ProviderUnavailable
from worker.providers.choose import open_provider
from worker.provision import worker_name
from worker.reclaim import Reclaimer
from worker.reconcile import Reconciler
from worker.watch import Prober, follow

log = structlog.get_logger("worker.loops")

LEADER = "loops"
_BACKOFF_SECONDS = (0.2, 5.0)
_STOP_SECONDS = 3.5
_WELL_SECONDS = 30.0
"""A task that ran for so long has recovered: its next failure starts with the short pause again."""


async def supervised(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run it again whenever it ends or breaks, with back-off: one broken loop must not take the others along."""
    loop = asyncio.get_running_loop()
    backoff = _BACKOFF_SECONDS[0]
    while True:
        started = loop.time()
        try:
            await work()
            log.warning("loop.ended", loop=name)
        except (LedgerUnavailable, ProviderError, ProviderUnavailable) as error:
            log.warning("loop.interrupted", loop=name, error=str(error), pause=backoff)
        except Exception:
            log.exception("loop.broke", loop=name, pause=backoff)
        if loop.time() - started > _WELL_SECONDS:
            backoff = _BACKOFF_SECONDS[0]
        await asyncio.sleep(backoff)
        backoff = min(backoff * 2, _BACKOFF_SECONDS[1])


class Loops:
    def __init__(self, ledger: Ledger, provider: Provider, secret: bytes, settings: Settings) -> None:
        self._ledger = ledger
        self._provider = provider
        self._secret = secret
        self._settings = settings
        self._holder = worker_name()
        self._ttl_ms = round(settings.worker.leader_seconds * 1000)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then step down, so that another can begin at once."""
        every = self._settings.worker.leader_seconds / 4
        loop = asyncio.get_running_loop()
        led_until = 0.0
        led_by: int | None = None
        duties: asyncio.Task[None] | None = None
        try:
            while not stop.is_set():
                asked = loop.time()
                try:
                    # No longer than the word is good for: a leader that cannot ask must know when it has stopped to be one.
                    longest = self._settings.worker.leader_seconds if duties is None else led_until - asked
                    async with asyncio.timeout(max(every, longest)):
                        token = await self._ledger.leader(LEADER, self._holder, self._ttl_ms)
                    led_until = asked + self._settings.worker.leader_seconds if token else 0.0
                except (LedgerError, TimeoutError) as error:
                    log.warning("leader.unknown", error=f"{type(error).__name__}: {error}")
                    token = led_by if loop.time() < led_until else None
                if duties is not None and duties.done():
                    log.error("leader.duties_ended", error=_why(duties))
                    duties = None
                if duties is not None and (token != led_by or token is None):
                    log.warning("leader.lost", token=led_by)
                    await _end(duties)
                    duties = None
                if token is not None and duties is None:
                    log.info("leader.won", token=token)
                    led_by = token
                    duties = asyncio.create_task(self._duties(token))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(every):
                        await stop.wait()
        finally:
            if duties is not None:
                await _end(duties)
            with contextlib.suppress(LedgerError):
                await self._ledger.leader(LEADER, self._holder, 0)

    async def _duties(self, token: int) -> None:
        async with EventFeed(self._ledger) as feed:
            prober = Prober(self._ledger, feed, self._secret, self._settings)
            reclaimer = Reclaimer(self._ledger, feed, self._provider, self._settings)
            reconciler = Reconciler(self._ledger, self._provider, self._settings, LEADER, token)
            work: dict[str, Callable[[], Awaitable[None]]] = {
                "reclaim": reclaimer.run,
                "probe": prober.run,
                "watch": lambda: follow(self._ledger, self._provider),
                "reconcile": reconciler.run,
            }
            tasks = [asyncio.create_task(supervised(name, run), name=name) for name, run in work.items()]
            try:
                # None ends by itself; should one, all end, and the leader takes up its duties anew.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _stop(tasks, _STOP_SECONDS)


def _why(task: asyncio.Task[None]) -> str:
    return "cancelled" if task.cancelled() else repr(task.exception())


async def _end(task: asyncio.Task[None]) -> None:
    await _stop([task], _STOP_SECONDS + 0.5)
    if not task.cancelled() and task.exception() is not None:
        log.error("leader.duties_ended", error=_why(task))


async def _stop(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Once, so that removals in flight may still be confirmed; again and again only when that was not enough."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=seconds)
    await end_tasks(*tasks)


async def serve(settings: Settings) -> int:
    try:
        secret = read_secret(settings.paths.secret_file)
        provider = open_provider(settings)
        await provider.start()
    except (SecretUnreadable, ProviderUnavailable) as error:
        log.error("loops.cannot_start", error=str(error))
        return 1
    ledger = await Ledger.connect(settings)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log.info("loops.started")
    try:
        await Loops(ledger, provider, secret, settings).run(stop)
    finally:
        await provider.close()
        await ledger.aclose()
    log.info("loops.stopped")
    return 0


def main() -> int:
    settings = get_settings()
    configure_logs(settings.log_level, "loops")
    return asyncio.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
