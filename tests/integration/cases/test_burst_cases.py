"""The hard cases about bursts and about the queue, through the running service.

Kills of each process in a burst are in tests/integration/test_kill_rounds.py, killed clients at full size in test_burst_clients.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.burst import burst, create_until_answered, delete_all, http_client, live_count, request
from tests.integration.cases.box import SLOW, problem
from tests.integration.cases.plain import SMALL, Plain, create, descendants, live, percentile, steps
from tests.integration.cases.test_lifecycle_cases import slow_image, stopped
from tests.service import ROOT, Service, dying_with_us, eventually, eventually_clean

BURST = int(os.environ.get("SANDMAN_TEST_BURST", "60"))
"""500 is the size of B096, 200 that of B097."""
OWNED = int(os.environ.get("SANDMAN_TEST_OWNED", "24"))
"""Sandboxes of the trainer that is killed; 300 is the case's own."""
EXPIRING = int(os.environ.get("SANDMAN_TEST_EXPIRING", "40"))
"""1000 is the case's own."""
OUTAGES = int(os.environ.get("SANDMAN_TEST_OUTAGES", "2"))
OUTAGE_SECONDS = float(os.environ.get("SANDMAN_TEST_OUTAGE_SECONDS", "5"))
"""5 outages of 30 s are the case's own."""


class Probe:
    """Asks for health and for the list each 100 ms, from a thread of its own."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.health: list[float] = []
        self.lists: list[float] = []
        self.statuses: Counter[int] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with self.service.http(timeout=30) as http:
            while not self._over.wait(0.1):
                for path, times in (("/health/live", self.health), ("/v1/sandboxes?limit=50", self.lists)):
                    began = time.monotonic()
                    self.statuses[http.get(path).status_code] += 1
                    times.append(time.monotonic() - began)


async def test_b096_a_burst_leaves_the_service_answering(service: Service) -> None:
    async with http_client(service) as http:
        with Probe(service) as probe:
            answered = await burst(http, BURST)
            assert len({one.id for one in answered}) == BURST
            assert all(one.record["state"] == "ready" for one in answered)
            await delete_all(http, [one.id for one in answered])
        print(
            f"health p99 {percentile(probe.health, 0.99):.3f} s, list p99 {percentile(probe.lists, 0.99):.3f} s"
        )
        assert set(probe.statuses) == {200}
        # The clients of the burst share the two cores with the service: the bound is for them all.
        assert percentile(probe.health, 0.99) < 0.2 * SLOW and percentile(probe.lists, 0.99) < 0.5 * SLOW
        assert await live_count(http) == 0


def test_b096_over_capacity_is_told_with_a_time_to_come_back(own_service: Callable[..., Service]) -> None:
    service = own_service(env={"SANDMAN_QUEUE_BOUND": "10", "SANDMAN_QUEUE_TENANT_BOUND": "10"})
    with service.http() as http:
        with stopped(service.children()["worker"]):
            answers = [http.post("/v1/sandboxes", json=SMALL) for _ in range(25)]
            assert Counter(answer.status_code for answer in answers) == {202: 10, 429: 15}
            full = problem(answers[-1], 429, "queue-full")
            assert full["retryable"] and int(answers[-1].headers["retry-after"]) >= 1
        made = [answer.json()["id"] for answer in answers[:10]]
        for name in made:
            assert http.get(f"/v1/sandboxes/{name}", params={"wait": 30}).json()["state"] == "ready"
            http.delete(f"/v1/sandboxes/{name}")
        assert http.post("/v1/sandboxes", params={"wait": 30}, json=SMALL).status_code == 201, (
            "there is room again"
        )


def listening() -> set[str]:
    """Local addresses of the machine's listening TCP and bound UDP sockets."""
    found = set()
    for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state:
                found.add(f"{table} {words[1]} {words[9]}")
    return found


async def test_b097_sandboxes_take_no_ports(service: Service) -> None:
    """Each daemon listens on a unix socket of its own name: there is no port to collide, to reserve or to run out of."""

    def sockets(pid: int) -> set[str]:
        found = set()
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
        return found

    before = {line.split()[2] for line in listening()}
    async with http_client(service) as http:
        answered = await burst(http, BURST // 2)
        addresses = [one.record["address"] for one in answered]
        assert all(address.startswith("unix:/") for address in addresses)
        assert len(set(addresses)) == len(addresses)
        ours = set().union(*(sockets(pid) for pid in descendants(service.pid)))
        new = {line for line in listening() if line.split()[2] in ours - before}
        assert not new, "something of the service listens on a port that was not there before"
        port = {"command": "python3 -m http.server 8000 --bind 127.0.0.1 & sleep 1; kill %1 && echo served"}
        results = await asyncio.gather(
            *(
                http.post(f"/v1/sandboxes/{one.id}/exec", json=port | {"shell": "bash"})
                for one in answered[:5]
            )
        )
        assert [result.json()["stdout"] for result in results] == ["served\n"] * 5, (
            "each has ports of its own"
        )
        await delete_all(http, [one.id for one in answered])
    assert eventually(lambda: not service.sandbox_leftovers().sockets, 5 * SLOW)


TRAINER = """
import sandman, sys, threading
client = sandman.Client()
run = client.run("trainer", labels={"owner": "anna"}, lease_seconds=4)
made = [run.create(cpu=0.5, memory="64MiB", labels={"owner": "anna"}, wait=60) for _ in range(int(sys.argv[1]))]
for one in made:
    one.start("sleep 1000")
print(run.id, flush=True)
threading.Event().wait()
"""


def test_b103_a_killed_trainer_takes_its_own_along_and_nobody_elses(
    own_service: Callable[..., Service],
) -> None:
    service = own_service()
    env = {**os.environ, "SANDMAN_URL": service.url, "SANDMAN_API_KEY": service.key}
    trainer = subprocess.Popen(
        dying_with_us([sys.executable, "-c", TRAINER, str(OWNED)]),
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    with service.http() as http:
        others = [create(http, labels={"owner": "ben"}, lease_seconds=300) for _ in range(4)]
        assert trainer.stdout is not None
        run = trainer.stdout.readline().strip()
        assert run.startswith("run-")
        assert len(live(http, owner="anna")) == OWNED, "whose they are is told by a label"
        trainer.kill()
        trainer.wait()
        killed = time.monotonic()
        assert eventually(lambda: not live(http, owner="anna"), 4 + 5 * SLOW)
        print(
            f"{OWNED} sandboxes given up {time.monotonic() - killed:.1f} s after the kill, with a lease of 4 s"
        )
        assert time.monotonic() - killed > 1.5, "a lease is not given up before its end"
        assert eventually(lambda: len(service.sandbox_leftovers().files) == len(others), 5 * SLOW)
        assert len(live(http, owner="ben")) == len(others)
        assert all(one.out("echo here") == "here\n" for one in others)
        gone = http.get("/v1/sandboxes", params={"run": run, "limit": 500}).json()["items"]
        assert {one["reclaim"] for one in gone} == {"run_lease_expired"} and len(gone) == OWNED
        for one in others:
            one.delete()


async def test_b104_many_that_expire_at_once_do_not_hold_up_creates(
    own_service: Callable[..., Service],
) -> None:
    service = own_service(env={"SANDMAN_LEASE_SECONDS_MAX": "600"})
    async with http_client(service) as http:
        base = await burst(http, 10)
        baseline = percentile([one.seconds for one in base], 0.95)
        await delete_all(http, [one.id for one in base])
        old = [one.id for one in await burst(http, EXPIRING, body=SMALL | {"lease_seconds": 600})]
        ends = time.time() + 4
        renewals = [
            request(http, "POST", f"/v1/sandboxes/{name}/renew", json={"lease_seconds": ends - time.time()})
            for name in old
        ]
        await asyncio.gather(*renewals)
        await asyncio.sleep(max(0.0, ends - time.time()))
        with Probe(service) as probe:
            fresh = await burst(http, 10, body=SMALL | {"lease_seconds": 120})
            times = [one.seconds for one in fresh]
            print(f"creates p95 {percentile(times, 0.95):.2f} s, before {baseline:.2f} s")
            assert percentile(times, 0.95) < max(2 * baseline, 1.0) * SLOW
            left = set(old)
            while left:
                left -= {
                    name
                    for name in left
                    if (await request(http, "GET", f"/v1/sandboxes/{name}")).json()["state"] == "deleted"
                }
                assert time.time() - ends < 5 + EXPIRING / 10 * SLOW
                await asyncio.sleep(0.2)
        assert percentile(probe.health, 0.99) < 0.3 * SLOW
        page = (await http.get("/v1/stats")).json()
        assert page["reclaimed"]["lease_expired"] == EXPIRING, "each is taken back once"
        await delete_all(http, [one.id for one in fresh])


# The queue and its workers


@pytest.mark.parametrize("what", ["worker", "horse"])
def test_b125_a_worker_killed_in_a_create(own_service: Callable[..., Service], what: str) -> None:
    """In the middle of an import, once the worker and once the process in which it runs its job; there is no other traffic."""
    service = own_service(env={"SANDMAN_CLAIM_SECONDS": "5"})
    name = slow_image(service, f"b125-{what}")
    with service.http() as http:
        made = Plain(
            http, http.post("/v1/sandboxes", json=SMALL | {"image": name, "lease_seconds": 900}).json()
        )
        assert eventually(lambda: made.look()["state"] == "creating", 10)
        worker = service.children()["worker"]
        below = descendants(worker)
        os.kill(below[-1] if what == "horse" else worker, signal.SIGKILL)
        began = time.monotonic()
        record = made.look(wait=90)
        print(f"ready {time.monotonic() - began:.1f} s after the kill, {record.get('attempts')} attempts")
        assert record["state"] == "ready" and time.monotonic() - began < 90
        assert len(list((service.storage / "sandboxes").iterdir())) == 1
        assert made.out("echo once") == "once\n"
        made.delete(wait=20)


async def test_b127_redis_is_away_again_and_again(own_service: Callable[..., Service]) -> None:
    """Killed, and kept from coming back for a while by stopping the supervisor."""
    service = own_service()
    async with http_client(service) as http:
        for number in range(OUTAGES):
            creates = asyncio.create_task(burst(http, 12))
            await asyncio.sleep(0.3)
            before = service.children()["valkey"]
            statuses: Counter[int] = Counter()
            with stopped(service.pid):
                os.kill(before, signal.SIGKILL)
                until = time.monotonic() + OUTAGE_SECONDS
                while time.monotonic() < until:
                    answer = await http.get("/v1/stats", timeout=30)
                    statuses[answer.status_code] += 1
                    if answer.status_code != 200:
                        document = answer.json()
                        assert document["type"].endswith(":ledger-unavailable") and document["retryable"], (
                            document
                        )
                        assert answer.headers["retry-after"]
                    await asyncio.sleep(0.2)
                assert (await http.get("/health/ready")).status_code == 503
                assert (await http.get("/health/live")).status_code == 200
            assert statuses[503] and not statuses[500], statuses
            await asyncio.to_thread(service.wait_child, "valkey", other_than=before)
            answered = await creates
            ids = [one.id for one in answered]
            assert len(set(ids)) == 12
            again = await asyncio.gather(*(create_until_answered(http, one.key) for one in answered))
            assert [one.id for one in again] == ids and await live_count(http) == 12
            waiting = asyncio.create_task(create_until_answered(http, f"after-{number}"))
            assert (await waiting).record["state"] == "ready", "new work is heard of"
            await delete_all(http, [*ids, waiting.result().id])
            left = await asyncio.to_thread(eventually_clean, service.sandbox_leftovers, 15 * SLOW)
            assert not left, left
    # RQ's worker ends when Redis goes away under it, says so at length, and is started again; nothing else is surprised.
    assert tracebacks(service.output()) <= {"worker"}


def tracebacks(output: str) -> set[str]:
    """Which processes of the service have printed one: a line of the log begins with the time and the process's name."""
    found, speaker = set(), ""
    for line in output.splitlines():
        if said := re.match(r"\d\d:\d\d:\d\d (\w+)", line):
            speaker = said[1]
        if "Traceback" in line:
            found.add(speaker)
    return found


def test_b130_a_create_that_kills_its_workers(own_service: Callable[..., Service]) -> None:
    """Whenever a worker has begun on the poisoned create, that worker dies; among others, which finish."""
    service = own_service(
        env={"SANDMAN_WORKER_CONCURRENCY": "2", "SANDMAN_CLAIM_SECONDS": "2", "SANDMAN_ATTEMPTS_MAX": "3"}
    )
    name = slow_image(service, "b130")
    with service.http() as http:
        poison = Plain(
            http, http.post("/v1/sandboxes", json=SMALL | {"image": name, "lease_seconds": 900}).json()
        )
        others = [
            Plain(http, http.post("/v1/sandboxes", json=SMALL | {"lease_seconds": 900}).json())
            for _ in range(12)
        ]
        deaths = attempts = 0
        for _ in steps(120, 0.1):
            record = poison.look()
            if record["state"] == "failed":
                break
            assert record["state"] in ("queued", "creating"), record
            worker = service.children().get("worker")
            if worker and record["state"] == "creating" and record["attempts"] > attempts:
                attempts = record["attempts"]
                os.kill(worker, signal.SIGKILL)
                deaths += 1
        record = poison.look()
        print(f"{deaths} workers died; {record['reason']}: {record['detail']}")
        assert record["state"] == "failed" and record["reason"] == "backend_error" and deaths == 3
        assert all(one.look(wait=60)["state"] == "ready" for one in others)
        assert http.get("/v1/stats").json()["pacing"]["in_flight"] == 0, "its place is given back"
        assert create(http).record["state"] == "ready"
        for one in live(http):
            http.delete(f"/v1/sandboxes/{one}")


async def test_b132_what_is_deleted_in_the_queue_never_starts(own_service: Callable[..., Service]) -> None:
    service = own_service()
    worker = service.children()["worker"]
    os.kill(worker, signal.SIGSTOP)
    async with http_client(service) as http:
        waiting = [
            asyncio.create_task(
                http.post("/v1/sandboxes", params={"wait": 60}, json=SMALL | {"labels": {"n": str(n)}})
            )
            for n in range(40)
        ]
        while (await http.get("/v1/stats")).json()["queue"]["depth"] < 40:
            await asyncio.sleep(0.1)
        listed = (await http.get("/v1/sandboxes", params={"limit": 100})).json()["items"]
        by_number = {item["labels"]["n"]: item["id"] for item in listed}
        last = max(
            [(await http.get(f"/v1/sandboxes/{name}")).json() for name in by_number.values()], key=position
        )
        doomed = [name for name in by_number.values() if name != last["id"]][::2]
        began = time.monotonic()
        await delete_all(http, doomed)
        cancelled = [task for n, task in enumerate(waiting) if by_number[str(n)] in doomed]
        for answer in await asyncio.wait_for(asyncio.gather(*cancelled), 5 * SLOW):
            problem(answer, 409, "cancelled")
        assert time.monotonic() - began < 5 * SLOW
        now = (await http.get(f"/v1/sandboxes/{last['id']}")).json()
        assert now["queue_position"] <= last["queue_position"] - len(doomed), "the others move up"
        os.kill(worker, signal.SIGCONT)
        answers = await asyncio.gather(*waiting)
        assert Counter(answer.status_code for answer in answers) == {201: 40 - len(doomed), 409: len(doomed)}
        for name in doomed:
            record = (await http.get(f"/v1/sandboxes/{name}")).json()
            assert record["state"] == "deleted" and not set(record["timings"]) & {
                "creating",
                "starting",
                "ready",
            }, record
        await delete_all(http, [answer.json()["id"] for answer in answers if answer.status_code == 201])


def position(record: dict[str, object]) -> int:
    found = record["queue_position"]
    assert isinstance(found, int)
    return found
