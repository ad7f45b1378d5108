"""What one no-op command costs on each way to it, side by side in one run.

    ./sandman up &  …  .venv/bin/python -m loadtests.exec_latency            starts a service of its own
    .venv/bin/python -m loadtests.exec_latency --rounds 500

The four ways take turns in every round, so that whatever else the machine does meets all of them alike:

    bare        posix_spawn of the same program on this machine, its output read from a pipe, and waited for
    daemon      the sandbox's daemon over its unix socket, HTTP keep-alive, no service between
    http        through the service, HTTP keep-alive
    websocket   through the service, one WebSocket kept open
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import websockets

from loadtests.measure import NOOP, WARM_UP, KeepAlive, bare, check, share
from tests.service import Service, start_service

ROOMY = {"image": "host", "cpu": os.cpu_count() or 1, "memory": 256 * 1024**2, "lease_seconds": 600}
"""As many CPUs as the bare way has: with a smaller quota the kernel holds the whole sandbox for the rest of a 100 ms period now and
then, and the p99 would tell of that limit (56 ms at a quarter of a CPU, 5 ms at two) instead of the way to the command."""


def token_of(service: Service, sandbox: str) -> str:
    """As `app.ledger.tokens` derives it; by hand, so that the script needs nothing but the secret."""
    secret = (service.data_dir / "secret").read_text().strip()
    return hmac.new(bytes.fromhex(secret), sandbox.encode(), hashlib.sha256).hexdigest()


async def measure(service: Service, rounds: int) -> dict[str, list[float]]:
    with service.http() as http:
        created = http.post("/v1/sandboxes", params={"wait": 60}, json=ROOMY)
        created.raise_for_status()
        record = created.json()
    sandbox = record["id"]
    try:
        direct = KeepAlive(
            *await asyncio.open_unix_connection(record["address"].removeprefix("unix:")),
            token_of(service, sandbox),
        )
        host, port = service.url.removeprefix("http://").rsplit(":", 1)
        through = KeepAlive(*await asyncio.open_connection(host, int(port)), service.key)
        address = f"ws://{host}:{port}/v1/sandboxes/{sandbox}/connect"
        async with websockets.connect(
            address,
            subprotocols=[websockets.Subprotocol("sandman.v1")],
            additional_headers={"Authorization": f"Bearer {service.key}"},
            compression=None,
        ) as socket:
            channel = 0

            async def by_bare() -> None:
                bare()

            async def by_daemon() -> None:
                check(await direct.post("/v1/exec", {"argv": NOOP}))

            async def by_http() -> None:
                check(await through.post(f"/v1/sandboxes/{sandbox}/exec", {"argv": NOOP}))

            async def by_websocket() -> None:
                nonlocal channel
                channel += 1
                await socket.send(json.dumps({"op": "start", "ch": channel, "argv": NOOP}))
                while True:
                    frame = await socket.recv()
                    if isinstance(frame, str):
                        message = json.loads(frame)
                        if message["op"] == "exit":
                            return check(message)
                        if message["op"] == "error":
                            raise RuntimeError(frame)

            ways: dict[str, Callable[[], Awaitable[None]]] = {
                "bare": by_bare,
                "daemon": by_daemon,
                "http": by_http,
                "websocket": by_websocket,
            }
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(rounds + WARM_UP):
                for name, way in ways.items():
                    began = time.perf_counter()
                    await way()
                    if number >= WARM_UP:
                        seconds[name].append(time.perf_counter() - began)
            return seconds
    finally:
        with service.http() as http:
            http.delete(f"/v1/sandboxes/{sandbox}")


def show(seconds: dict[str, list[float]]) -> None:
    floor = statistics.median(seconds["bare"])
    print(
        f"{'':10} {'p50 ms':>8} {'p90 ms':>8} {'p99 ms':>8} {'p50 ÷ bare':>11}   {len(seconds['bare'])} rounds, {NOOP[0]}"
    )
    for name, values in seconds.items():
        p50, p90, p99 = (share(values, part) for part in (0.5, 0.9, 0.99))
        print(f"{name:10} {p50 * 1e3:8.3f} {p90 * 1e3:8.3f} {p99 * 1e3:8.3f} {p50 / floor:11.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandman-latency-") as folder:
        service = start_service(Path(folder) / "data")
        try:
            show(asyncio.run(measure(service, given.rounds)))
        finally:
            service.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
