"""Takes back every sandbox when the service stops: a process of its own, so that the supervisor never carries a Redis client.

It runs beside the loops, which do the deleting; after `HELP_AFTER_SECONDS` it deletes what is left itself, so that a loop that
hangs or died does not keep anything alive. It ends when nothing is left *and* its stdin is closed: that is how the supervisor
says that the API has ended and no new sandbox can come.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from app.ledger.errors import LedgerError
from app.ledger.ledger import Ledger
from app.ledger.model import Reclaim
from app.ledger.settings import get_settings
from worker.providers.base import Provider, ProviderError
from worker.providers.choose import open_provider

HELP_AFTER_SECONDS = 3.0
"""The loops need about 1 s for 200 sandboxes; from here on they are slower than they should be."""
DELETES_AT_ONCE = 16
POLL_SECONDS = 0.1


async def drain() -> None:
    settings = get_settings()
    ledger = await Ledger.connect(settings)
    provider = open_provider(settings)
    await provider.start()
    no_more = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: no_more.set() if not os.read(0, 4096) else None)
    started = time.monotonic()
    try:
        while True:
            may_end = no_more.is_set()
            try:
                left = await reclaim_all(ledger)
                alive = await provider.list()
            except (LedgerError, ProviderError) as error:
                print(f"sandman: taking back sandboxes: {error}", file=sys.stderr, flush=True)
                left, alive = 1, []
            if not left and not alive and may_end:
                await provider.withdraw()
                return
            if alive and time.monotonic() - started > HELP_AFTER_SECONDS:
                await delete_all(provider, [observed.id for observed in alive])
            await asyncio.sleep(POLL_SECONDS)
    finally:
        await provider.close()
        await ledger.aclose()


async def reclaim_all(ledger: Ledger) -> int:
    """Everything that lives is to be deleted from now on; answers how many are not gone yet."""
    while await ledger.reclaim_all(Reclaim.SHUTDOWN):
        pass
    return sum((await ledger.stats()).live.values())


async def delete_all(provider: Provider, ids: list[str]) -> None:
    slots = asyncio.Semaphore(DELETES_AT_ONCE)

    async def delete(sandbox: str) -> None:
        async with slots:
            try:
                await provider.delete(sandbox)
            except ProviderError as error:
                print(f"sandman: {sandbox} is not gone yet: {error}", file=sys.stderr, flush=True)

    await asyncio.gather(*(delete(sandbox) for sandbox in ids))


if __name__ == "__main__":
    asyncio.run(drain())
