"""A ledger of a test's own, and the recount of everything that its indexes claim."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import redis

from app.ledger.ledger import Ledger
from app.ledger.model import NewSandbox, SandboxSpec, new_sandbox_id
from app.ledger.settings import Settings, read_settings

LIVE = {"queued", "creating", "starting", "ready"}


def ledger_settings(url: str, data_dir: Path, **environment: str) -> Settings:
    """Settings in a namespace that nobody else uses; keyword arguments are SANDMAN_ variables without the prefix."""
    values = {
        "REDIS_URL": url,
        "NAMESPACE": f"t{uuid.uuid4().hex[:10]}",
        "DATA_DIR": str(data_dir),
    } | environment
    return read_settings({f"SANDMAN_{name}": value for name, value in values.items()})


def new_sandbox(
    tenant: str = "a",
    *,
    run: str | None = None,
    key: str | None = None,
    fingerprint: str = "body",
    waiting: bool = False,
    lease: float = 60.0,
    lifetime: float = 3600.0,
    env: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> NewSandbox:
    return NewSandbox(
        id=new_sandbox_id(),
        tenant=tenant,
        spec=SandboxSpec(image="host", cpu=0.5, memory=2**29, disk=2**30, env=env or {}, labels=labels or {}),
        run=run,
        idempotency_key=key,
        fingerprint=fingerprint,
        lease_seconds=lease,
        lifetime_seconds=lifetime,
        waiting=waiting,
    )


async def advance(ledger: Ledger, new: NewSandbox, state: str) -> str:
    """Create one and bring it to `state` through the real steps; needs an otherwise empty queue."""
    await ledger.create(new)
    if state != "queued":
        while not (admission := await ledger.admit(1, "w")).records:
            assert admission.blocked == "rate"
            await asyncio.sleep(admission.retry_after_ms / 1000)
        assert admission.records[0].id == new.id
    if state in ("starting", "ready"):
        assert await ledger.mark_starting(new.id, "unix:/x", {"memory": "rlimit"})
    if state == "ready":
        assert await ledger.mark_ready(new.id)
    return new.id


class Recount:
    """Reads every key of a namespace and compares each index with the records themselves."""

    def __init__(self, url: str, namespace: str) -> None:
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)
        self.prefix = f"{namespace}:"

    def close(self) -> None:
        self.client.close()

    def records(self) -> dict[str, dict[str, str]]:
        pattern = f"{self.prefix}sb:*"
        return {
            key.removeprefix(f"{self.prefix}sb:"): self.client.hgetall(key)
            for key in self.client.scan_iter(pattern)
        }

    def zset(self, name: str) -> set[str]:
        members = self.client.zrange(self.prefix + name, 0, -1)
        assert len(members) == len(set(members))
        return set(members)

    def check(self) -> None:
        records = self.records()
        by_state: defaultdict[str, set[str]] = defaultdict(set)
        for sandbox_id, record in records.items():
            by_state[record["state"]].add(sandbox_id)
        live = {sandbox_id for sandbox_id, record in records.items() if record["state"] in LIVE}
        cleaned = {sandbox_id for sandbox_id, record in records.items() if "at:cleaned" in record}

        self._check_counts(records)
        self._check_queue(records, by_state["queued"])
        assert self.zset("due") == live
        assert self.zset("claims") == by_state["creating"]
        assert self.zset("starting") == by_state["starting"]
        urgent, bulk = self.zset("clean:urgent"), self.zset("clean:bulk")
        assert not urgent & bulk
        assert urgent | bulk == (by_state["deleting"] | by_state["failed"]) - cleaned
        assert self.zset("ended") == cleaned
        assert cleaned <= by_state["deleted"] | by_state["failed"]
        assert by_state["deleted"] <= cleaned
        assert self.zset("ix:all") == set(records)
        self._check_holders(records, live)
        for sandbox_id in cleaned:
            assert "env" not in records[sandbox_id]

    def _check_counts(self, records: dict[str, dict[str, str]]) -> None:
        def nonzero(name: str) -> dict[str, int]:
            return {k: int(v) for k, v in self.client.hgetall(self.prefix + name).items() if int(v)}

        assert nonzero("n") == dict(Counter(record["state"] for record in records.values()))
        tenants = {record["tenant"] for record in records.values()}
        for tenant in tenants:
            own = {i: r for i, r in records.items() if r["tenant"] == tenant}
            assert nonzero(f"n:{tenant}") == dict(Counter(r["state"] for r in own.values()))
            assert self.zset(f"ix:t:{tenant}") == set(own)

    def _check_queue(self, records: dict[str, dict[str, str]], queued: set[str]) -> None:
        assert self.zset("qall") == queued
        expected: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for sandbox_id in queued:
            record = records[sandbox_id]
            expected[record["tenant"]][record["run"] or "-"].add(sandbox_id)
        tenants = self.client.lrange(f"{self.prefix}rr", 0, -1)
        assert sorted(tenants) == sorted(expected)
        for tenant, runs in expected.items():
            assert sorted(self.client.lrange(f"{self.prefix}ql:{tenant}", 0, -1)) == sorted(runs)
            for run, members in runs.items():
                assert self.zset(f"qz:{run}:{tenant}") == members

    def _check_holders(self, records: dict[str, dict[str, str]], live: set[str]) -> None:
        runs = {
            key.removeprefix(f"{self.prefix}run:"): self.client.hgetall(key)
            for key in self.client.scan_iter(f"{self.prefix}run:*")
        }
        for sandbox_id in live:
            record = records[sandbox_id]
            # No live record without a lease or a run; a claimed one of an ended run is about to be taken back.
            assert record["lease_at"] or record["run"] in runs, record
        for run, fields in runs.items():
            members = self.client.smembers(f"{self.prefix}live:{run}")
            assert members == {i for i in live if records[i]["run"] == run}
            is_open = fields["state"] == "open"
            assert (run in self.zset("due:run")) == is_open
            assert self.client.sismember(f"{self.prefix}open:{fields['tenant']}", run) == is_open
            assert bool(fields["lease_at"]) == is_open
            if not is_open:
                ending = self.client.sismember(f"{self.prefix}ending", run)
                assert ending != (run in self.zset("ended:run"))
                assert ending or not members
            in_use = [i for i in members if records[i]["state"] in ("starting", "ready")]
            assert int(self.client.hget(f"{self.prefix}rep:{run}", "open:n") or 0) == len(in_use)
