"""Files and background processes outlive the call, the client's connection and the API's process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.burst import SMALL
from tests.service import Service

SERVER = "cd /tmp && echo kept > state.txt && nohup python3 -m http.server 8123 --bind 127.0.0.1 > /tmp/log 2>&1 & sleep 0.7"
ASK = "python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123/state.txt').read().decode(), end='')\""


@pytest.mark.parametrize("victim", ["app", "worker", "loops", "valkey"])
def test_state_outlives_a_killed_process(own_service: Callable[..., Service], victim: str) -> None:
    service = own_service()
    with service.http() as http:
        created = http.post("/v1/sandboxes", params={"wait": 30}, json=SMALL)
        assert created.status_code == 201, created.text
        path = f"/v1/sandboxes/{created.json()['id']}"
        assert http.post(f"{path}/exec", json={"command": SERVER}).json()["exit_code"] == 0
        before = service.children()[victim]
        os.kill(before, signal.SIGKILL)
    service.wait_child(victim, other_than=before)
    service.wait_health()
    with service.http() as http:
        assert http.get(path).json()["state"] == "ready"
        assert http.post(f"{path}/exec", json={"command": "cat /tmp/state.txt"}).json()["stdout"] == "kept\n"
        answer = http.post(f"{path}/exec", json={"command": ASK}).json()
        assert answer["stdout"] == "kept\n", answer
        assert http.delete(path).status_code in (200, 202, 204)
