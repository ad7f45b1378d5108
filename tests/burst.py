"""Bursts of creates against a service that may be hurt meanwhile: every create is repeated under its key until it is answered."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import Any

import httpx

from tests.service import Service

SMALL = {"image": "host", "cpu": 0.5, "memory": 64 * 1024**2}
RETRIED = frozenset({429, 502, 503, 504})


@dataclass
class Answered:
    key: str
    id: str
    tries: int
    seconds: float
    record: dict[str, Any]


def http_client(service: Service) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=service.url,
        headers={"Authorization": f"Bearer {service.key}"},
        timeout=httpx.Timeout(90, connect=5),
        limits=httpx.Limits(max_connections=400, max_keepalive_connections=50),
    )


async def create_until_answered(
    http: httpx.AsyncClient, key: str, *, seconds: float = 90.0, body: dict[str, Any] | None = None
) -> Answered:
    """Create under `key` until it is ready or failed for a reason; raises AssertionError when nothing came of it in time."""
    began = time.monotonic()
    tries = 0
    last = "never tried"
    while time.monotonic() - began < seconds:
        tries += 1
        try:
            answer = await http.post(
                "/v1/sandboxes", params={"wait": 20}, json=body or SMALL, headers={"Idempotency-Key": key}
            )
        except httpx.TransportError as error:
            last = repr(error)
            await asyncio.sleep(0.1)
            continue
        if answer.status_code == 201:
            record = answer.json()
            return Answered(key, record["id"], tries, time.monotonic() - began, record)
        last = f"{answer.status_code} {answer.text[:300]}"
        if answer.status_code != 202 and answer.status_code not in RETRIED:
            raise AssertionError(f"create {key}: {last}")
        await asyncio.sleep(0.05)
    raise AssertionError(f"create {key} was not answered in {seconds} s; last: {last}")


async def burst(http: httpx.AsyncClient, count: int, *, body: dict[str, Any] | None = None) -> list[Answered]:
    keys = [f"burst-{uuid.uuid4()}" for _ in range(count)]
    return list(await asyncio.gather(*(create_until_answered(http, key, body=body) for key in keys)))


async def request(
    http: httpx.AsyncClient, method: str, path: str, *, seconds: float = 60.0, **options: Any
) -> httpx.Response:
    """One idempotent call, repeated while the service is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = await http.request(method, path, **options)
            if answer.status_code not in RETRIED or time.monotonic() > deadline:
                return answer
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def run(http: httpx.AsyncClient, sandbox: str, command: str, **fields: Any) -> dict[str, Any]:
    """A command under an id of its own, so that a repeat attaches; answers its result."""
    body = {"command": command, "id": f"x-{uuid.uuid4()}", **fields}
    answer = await request(http, "POST", f"/v1/sandboxes/{sandbox}/exec", json=body)
    assert answer.status_code in (200, 202), answer.text
    result: dict[str, Any] = answer.json()
    return result


async def delete_all(http: httpx.AsyncClient, ids: list[str]) -> None:
    async def delete(sandbox: str) -> None:
        answer = await request(http, "DELETE", f"/v1/sandboxes/{sandbox}")
        assert answer.status_code in (200, 202, 204, 404), answer.text

    await asyncio.gather(*(delete(sandbox) for sandbox in ids))


async def live_count(http: httpx.AsyncClient) -> int:
    stats = (await request(http, "GET", "/v1/stats")).json()
    return sum(int(count) for state, count in stats["live"].items() if state != "deleting")
