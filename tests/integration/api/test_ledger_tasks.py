"""A task that talks to Redis ends when it is ended, although a single cancellation can be lost."""

from __future__ import annotations

import asyncio
import random

from app.ledger.ledger import Ledger
from app.ledger.tasks import end_tasks


async def test_loops_over_the_ledger_end(ledger: Ledger) -> None:
    chance = random.Random(3)

    async def loop() -> None:
        while True:
            await ledger.stats()

    for _ in range(30):
        tasks = [asyncio.create_task(loop()) for _ in range(20)]
        await asyncio.sleep(chance.uniform(0, 0.02))
        await asyncio.wait_for(end_tasks(*tasks), 5)
        assert all(task.done() for task in tasks)
    await asyncio.wait_for(ledger.ping(), 5)
