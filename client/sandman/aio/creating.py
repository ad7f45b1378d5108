"""One create, from the first request to a ready sandbox, such that nothing of it is left when the caller goes away.

All tries of a create carry one idempotency key: however often it is sent, it is one sandbox. While its request is waiting the
service itself notices a caller that hangs up and takes the sandbox back; once the id is known here, a cancelled create deletes
it. Between those two (an answer that is never read) its lease runs out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandman.aio.http import Answer
from sandman.aio.sandbox import POLL_SECONDS, AsyncSandbox
from sandman.endings import failure_from
from sandman.errors import CreateTimeout, ProblemError, SandmanError
from sandman.models import SandboxInfo
from sandman.options import create_body

if TYPE_CHECKING:
    from sandman.aio.client import AsyncClient

CLEANUP_SECONDS = 2.0
"""How long a cancelled create may take to delete what it made; after that the lease does it."""


async def create(
    client: AsyncClient, image: str, run: str | None, wait: float, options: Mapping[str, Any]
) -> AsyncSandbox:
    body = create_body(image, run, options)
    key = options.get("idempotency_key") or uuid.uuid4().hex
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait
    request = loop.create_task(post(client, body, key, wait), name="sandman-create")
    sandbox: AsyncSandbox | None = None
    try:
        answer = await asyncio.shield(request)
        sandbox = opened(client, answer)
        if wait > 0:
            await sandbox.wait_ready(max(0.0, ends - loop.time()))
        return sandbox
    except BaseException as error:
        if sandbox is None and request.done() and not request.cancelled() and request.exception() is None:
            # Answered in the very moment in which the caller gave up.
            with suppress(SandmanError):
                sandbox = opened(client, request.result())
        request.cancel()
        if sandbox is not None:
            with suppress(TimeoutError, SandmanError):
                async with asyncio.timeout(CLEANUP_SECONDS):
                    await client._finish(sandbox.delete())
        if isinstance(error, CreateTimeout):
            raise CreateTimeout(
                f"sandbox {error.sandbox} was not ready within {wait:g} s and has been deleted",
                sandbox=error.sandbox,
            ) from error
        if isinstance(error, ProblemError):
            raise failure_from(error)  # noqa: B904 - carries its own cause
        raise


async def post(client: AsyncClient, body: dict[str, Any], key: str, wait: float) -> Answer:
    """Send it until it is answered, at most `wait` seconds. Beyond the long-poll lane it is queued without a held request."""
    settings = client.settings
    full = client._http.lane_is_full("waits")
    seconds = 0.0 if full else min(wait, POLL_SECONDS)
    retry = settings.retry
    if wait > 0 and retry.total_seconds > 0:  # 0 turns retries off, here too
        retry = replace(retry, total_seconds=max(wait, 1.0))
    return await client._http.call(
        "POST",
        "/v1/sandboxes",
        params={"wait": seconds} if seconds else None,
        json=body,
        headers={"idempotency-key": key},
        lane="waits" if seconds else "calls",
        wait_seconds=seconds,
        repeatable=True,
        retry=retry,
        expect=SandboxInfo,
    )


def opened(client: AsyncClient, answer: Answer) -> AsyncSandbox:
    info = answer.decode(SandboxInfo)
    sandbox = AsyncSandbox(client, info, prefix=f"/v1/sandboxes/{info.id}", holds=True)
    if info.run is None:
        client._leases.keep(sandbox, info.lease_seconds)
    return sandbox
