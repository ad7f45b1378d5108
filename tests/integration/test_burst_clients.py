"""Eight client processes ask for 200 sandboxes at once; then the clients are killed, and the leases take everything back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service import ROOT, Service, dying_with_us, eventually_clean

CLIENTS = 8
EACH = int(os.environ.get("SANDMAN_TEST_BURST_EACH", "25"))
LEASE_SECONDS = 5.0
AFTER_LEASE_SECONDS = 5.0

CLIENT = f"""
import asyncio, sys
from pathlib import Path
from tests.burst import SMALL, burst, http_client
from tests.service import Service

async def main(url, key, count, out):
    service = Service(process=None, data_dir=Path(), env={{}}, options=(), log=Path(), url=url, key=key)
    async with http_client(service) as http:
        answered = await burst(http, count, body=SMALL | {{"lease_seconds": {LEASE_SECONDS}}})
        with open(out, "w") as file:
            file.write("\\n".join(one.id for one in answered) + "\\n")
        while True:
            await asyncio.gather(*(http.post(f"/v1/sandboxes/{{one.id}}/renew") for one in answered))
            await asyncio.sleep(1)

asyncio.run(main(sys.argv[1], sys.stdin.readline().strip(), int(sys.argv[2]), sys.argv[3]))
"""


@pytest.mark.slow
def test_killed_clients_leave_nothing(own_service: Callable[..., Service], tmp_path: Path) -> None:
    service = own_service()
    outs = [tmp_path / f"client-{number}" for number in range(CLIENTS)]
    clients = []
    began = time.monotonic()
    for out in outs:
        command = dying_with_us([sys.executable, "-c", CLIENT, service.url, str(EACH), str(out)])
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True)
        assert client.stdin is not None
        client.stdin.write(service.key + "\n")
        client.stdin.close()
        clients.append(client)
    try:
        while not all(out.exists() and out.read_text().endswith("\n") for out in outs):
            assert all(client.poll() is None for client in clients), "a client failed"
            assert time.monotonic() - began < 120, service.output()[-4000:]
            time.sleep(0.1)
        print(f"{CLIENTS * EACH} sandboxes for {CLIENTS} clients in {time.monotonic() - began:.1f} s")
        ids = [line for out in outs for line in out.read_text().split()]
        assert len(set(ids)) == CLIENTS * EACH
        time.sleep(1.5)
    finally:
        for client in clients:
            client.send_signal(signal.SIGKILL)
            client.wait()

    killed = time.monotonic()
    left = eventually_clean(service.sandbox_leftovers, LEASE_SECONDS + AFTER_LEASE_SECONDS)
    print(
        f"nothing left {time.monotonic() - killed:.1f} s after the clients were killed (lease {LEASE_SECONDS} s)"
    )
    assert not left, left
    with service.http() as http:
        reasons = Counter(http.get(f"/v1/sandboxes/{sandbox}").json()["reclaim"] for sandbox in ids)
        assert reasons == {"lease_expired": len(ids)}
        assert http.get("/v1/stats").json()["reclaimed"]["lease_expired"] >= len(ids)
