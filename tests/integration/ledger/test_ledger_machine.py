"""The ledger as a state machine: any interleaving of callers, workers and reclaim leaves every index equal to a recount.

Leases run out by poking the clock of one record, not by sleeping: the scripts only see a time that has passed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from app.ledger.errors import Ended, IdempotencyConflict, NotFound, RunEnded
from app.ledger.ledger import Ledger
from app.ledger.model import FORWARD, LIVE, Reason, Reclaim, Record, State, new_run_id
from tests.conftest import Valkey
from tests.fakes.ledger import Recount, ledger_settings, new_sandbox

T = TypeVar("T")

TENANTS = st.sampled_from(["a", "b", "c"])


class LedgerMachine(RuleBasedStateMachine):
    url = ""

    sandboxes = Bundle("sandboxes")
    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.settings = ledger_settings(
            self.url, Path(self.folder.name), PACING_WINDOW="6", PACING_RATE_INITIAL="1000", ATTEMPTS_MAX="3"
        )
        self.ledger = self.do(Ledger.connect(self.settings))
        self.recount = Recount(self.url, self.settings.redis.namespace)
        self.states: dict[str, State] = {}
        self.keys: dict[tuple[str, str], str] = {}

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        for key in self.recount.client.scan_iter(f"{self.recount.prefix}*"):
            self.recount.client.delete(key)
        self.recount.close()
        self.do(self.ledger.aclose())
        self.runner.close()
        self.folder.cleanup()

    # What the machine believes, and the one rule that all changes must obey.

    def saw(self, record: Record) -> None:
        before = self.states.get(record.id)
        if before is not None and before != record.state:
            assert reachable(before, record.state), f"{before} → {record.state}"
        self.states[record.id] = record.state

    def age(self, sandbox_id: str) -> None:
        """Its lease has run out."""
        key = f"{self.recount.prefix}sb:{sandbox_id}"
        if self.recount.client.hget(key, "lease_at"):
            self.recount.client.hset(key, "lease_at", 1)
            self.recount.client.zadd(f"{self.recount.prefix}due", {sandbox_id: 1}, xx=True)

    # Callers.

    @rule(target=runs, tenant=TENANTS)
    def open_run(self, tenant: str) -> tuple[str, str]:
        run, existing = self.do(self.ledger.create_run(new_run_id(), tenant, lease_seconds=60))
        assert not existing
        return tenant, run.id

    @rule(target=sandboxes, tenant=TENANTS, waiting=st.booleans())
    def create(self, tenant: str, waiting: bool) -> str:
        created = self.do(self.ledger.create(new_sandbox(tenant, waiting=waiting, env={"SECRET": "x"})))
        assert not created.existing
        self.saw(created.record)
        return created.record.id

    @rule(target=sandboxes, run=runs, waiting=st.booleans())
    def create_in_run(self, run: tuple[str, str], waiting: bool) -> Any:
        tenant, run_id = run
        try:
            created = self.do(self.ledger.create(new_sandbox(tenant, run=run_id, waiting=waiting)))
        except RunEnded:
            found = self.do(self.ledger.get_run(run_id))
            assert found is not None and found.state == "ended"
            return multiple()
        self.saw(created.record)
        assert (created.record.lease_expires_ms is None) == (not waiting)
        return created.record.id

    @rule(tenant=TENANTS, key=st.sampled_from(["k1", "k2"]), body=st.sampled_from(["x", "y"]))
    def create_with_key(self, tenant: str, key: str, body: str) -> None:
        new = new_sandbox(tenant, key=key, fingerprint=body)
        known = self.keys.get((tenant, key))
        try:
            created = self.do(self.ledger.create(new))
        except IdempotencyConflict as conflict:
            assert known is not None and known.split("/") == [known.split("/")[0], conflict.sandbox_id]
            assert known.split("/")[0] != body
            return
        self.saw(created.record)
        if known is None:
            assert not created.existing
            self.keys[tenant, key] = f"{body}/{created.record.id}"
        else:
            assert created.existing and known == f"{body}/{created.record.id}"

    @rule(sandbox=sandboxes)
    def claim(self, sandbox: str) -> None:
        record = self.do(self.ledger.claim(sandbox))
        self.saw(record)
        assert record.claimed or not record.live

    @rule(sandbox=sandboxes, seconds=st.sampled_from([None, 5.0]))
    def renew(self, sandbox: str, seconds: float | None) -> None:
        try:
            record = self.do(self.ledger.renew(sandbox, seconds))
        except Ended as ended:
            assert self.states[sandbox] not in LIVE
            self.saw(ended.record)
            return
        assert record.live and record.claimed
        assert (record.lease_expires_ms is None) == (record.run is not None)
        self.saw(record)

    @rule(sandbox=sandboxes)
    def touch(self, sandbox: str) -> None:
        alive = self.do(self.ledger.touch([sandbox, "sb-unknown"]))
        assert (sandbox in alive) == (self.states[sandbox] in LIVE)
        assert "sb-unknown" not in alive

    @rule(sandbox=sandboxes)
    def delete(self, sandbox: str) -> None:
        before = self.states[sandbox]
        record = self.do(self.ledger.request_delete(sandbox))
        if before == State.QUEUED:
            assert record.state == State.DELETED and record.reclaim == Reclaim.CANCELLED
        elif before in LIVE:
            assert record.state == State.DELETING
            assert record.reclaim == (Reclaim.DELETED if before == State.READY else Reclaim.CANCELLED)
        else:
            assert record.state == before
        self.saw(record)

    @rule(run=runs)
    def renew_run(self, run: tuple[str, str]) -> None:
        try:
            assert self.do(self.ledger.renew_run(run[1])).lease_expires_ms
        except RunEnded:
            found = self.do(self.ledger.get_run(run[1]))
            assert found is not None and found.state == "ended"

    @rule(run=runs)
    def end_run(self, run: tuple[str, str]) -> None:
        assert self.do(self.ledger.end_run(run[1])).state == "ended"

    # The worker.

    @rule(limit=st.integers(1, 8), worker=st.sampled_from(["w1", "w2"]))
    def admit(self, limit: int, worker: str) -> None:
        self.recount.client.hset(f"{self.recount.prefix}pace", "tokens", "100")
        for record in self.do(self.ledger.admit(limit, worker)).records:
            assert self.states[record.id] == State.QUEUED and record.attempts == 1
            self.saw(record)

    @rule(sandbox=sandboxes)
    def lose_worker(self, sandbox: str) -> None:
        self.recount.client.zadd(f"{self.recount.prefix}claims", {sandbox: 1}, xx=True)
        if self.recount.client.hexists(f"{self.recount.prefix}sb:{sandbox}", "claim_at"):
            self.recount.client.hset(f"{self.recount.prefix}sb:{sandbox}", "claim_at", 1)

    @rule(alone=st.booleans())
    def take_stale(self, alone: bool) -> None:
        takeover = self.do(self.ledger.take_over("w3", 8, alone=alone))
        suspects = [record for record in takeover.records if record.crashes >= 2]
        assert not suspects or (alone and len(takeover.records) == 1)
        for record in takeover.records:
            assert 1 <= record.attempts <= 3
            self.saw(record)

    @rule(sandbox=sandboxes, worker=st.sampled_from(["w1", "w2", "w3"]), delay=st.sampled_from([0.0, 9.0]))
    def release(self, sandbox: str, worker: str, delay: float) -> None:
        self.do(
            self.ledger.release_claim(
                sandbox, worker, delay_seconds=delay, error="try again", counts=delay == 0.0
            )
        )

    @rule(sandbox=sandboxes)
    def placed(self, sandbox: str) -> None:
        moved = self.do(self.ledger.mark_starting(sandbox, "unix:/x", {"memory": "cgroup"}))
        assert moved == (self.states[sandbox] == State.CREATING)
        self.look(sandbox)

    @rule(sandbox=sandboxes)
    def usable(self, sandbox: str) -> None:
        assert self.do(self.ledger.mark_ready(sandbox)) == (self.states[sandbox] == State.STARTING)
        self.look(sandbox)

    @rule(sandbox=sandboxes, reason=st.sampled_from(list(Reason)))
    def broke(self, sandbox: str, reason: Reason) -> None:
        assert self.do(self.ledger.mark_failed(sandbox, reason, "x")) == (self.states[sandbox] in LIVE)
        self.look(sandbox)

    # Reclaim.

    @rule(sandbox=sandboxes)
    def fall_silent(self, sandbox: str) -> None:
        self.age(sandbox)

    @rule(limit=st.integers(1, 20))
    def expire(self, limit: int) -> None:
        for expired in self.do(self.ledger.expire(limit)):
            if not expired.is_run:
                assert self.states[expired.id] in LIVE
                self.look(expired.id)

    @rule(limit=st.integers(1, 4), works=st.booleans())
    def clean(self, limit: int, works: bool) -> None:
        for record in self.do(self.ledger.cleanup_due(limit)):
            assert record.state in (State.DELETING, State.FAILED)
            if works:
                self.do(self.ledger.cleanup_done(record.id))
            else:
                assert self.do(self.ledger.cleanup_retry(record.id, "no", 0.0)) > 0
            self.look(record.id)

    @rule()
    def audit(self) -> None:
        self.do(self.ledger.audit())

    def look(self, sandbox: str) -> None:
        record = self.do(self.ledger.get(sandbox))
        assert record is not None
        self.saw(record)

    @invariant()
    def recounts(self) -> None:
        self.recount.check()
        assert self.do(self.ledger.anomalies()) == [], "nothing was there to be mended"
        for record in self.do(self.ledger.get_many(list(self.states))):
            assert record is not None
            self.saw(record)
        # Every sandbox that is over was written to the reclaim log, once.
        over = {sandbox for sandbox, state in self.states.items() if state not in LIVE}
        entries = self.recount.client.xrange(f"{self.recount.prefix}reclaims")
        assert sorted(fields["id"] for _entry, fields in entries) == sorted(over)


def reachable(before: State, after: State) -> bool:
    """Several steps may have happened between two looks."""
    frontier, seen = [before], {before}
    while frontier:
        for following in FORWARD[frontier.pop()]:
            if following not in seen:
                seen.add(following)
                frontier.append(following)
    return after in seen


def test_any_interleaving_leaves_the_indexes_equal_to_a_recount(valkey: Valkey) -> None:
    LedgerMachine.url = valkey.url
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=25, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


async def test_unknown_ids_are_not_found(valkey: Valkey, tmp_path: Path) -> None:
    ledger = await Ledger.connect(ledger_settings(valkey.url, tmp_path))
    assert await ledger.get("sb-nope") is None
    for call in (ledger.claim, ledger.renew, ledger.request_delete):
        with pytest.raises(NotFound):
            await call("sb-nope")
    assert not await ledger.mark_ready("sb-nope")
    await ledger.aclose()
