"""Ending tasks that talk to Redis.

On Python 3.11 a cancellation is lost when it meets an `asyncio.wait_for` whose inner call has just finished, and the Redis client
sends through one. A task cancelled once may therefore go on; one that loops would go on for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

_AGAIN_SECONDS = 0.1


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them until they have ended; what they raise is dropped. Cancelling this call does not keep it from finishing soon."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()
