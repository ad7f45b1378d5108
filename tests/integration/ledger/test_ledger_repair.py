"""A ledger that contradicts itself: what is wrong is mended, counted and told, and stops nothing else."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from app.ledger.errors import IdempotencyConflict, LedgerCorrupt, LedgerUnavailable
from app.ledger.ledger import Ledger
from app.ledger.model import PaceSample, Reason, Reclaim, State, new_run_id, new_sandbox_id
from tests.conftest import Valkey, start_valkey
from tests.fakes.ledger import Recount, advance, ledger_settings, new_sandbox

GHOST = new_sandbox_id()


@pytest.fixture
async def damaged(valkey: Valkey, tmp_path: Path) -> AsyncIterator[tuple[Ledger, Recount]]:
    """A ledger, and the means to damage it."""
    settings = ledger_settings(valkey.url, tmp_path, PACING_RATE_INITIAL="1000", PACING_RATE_MAX="1000")
    one = await Ledger.connect(settings)
    recount = Recount(valkey.url, settings.redis.namespace)
    yield one, recount
    for key in recount.client.scan_iter(f"{recount.prefix}*"):
        recount.client.delete(key)
    recount.close()
    await one.aclose()


async def test_nothing_that_an_index_invents_stops_reclaim(damaged: tuple[Ledger, Recount]) -> None:
    """One entry that names no record, or a wrong one, in each index that a tick looks at; a lease and a run expire all the same."""
    ledger, recount = damaged
    client, prefix = recount.client, recount.prefix
    held = await advance(ledger, new_sandbox(), "ready")
    gone = await advance(ledger, new_sandbox(lease=0.05), "ready")
    over = (await ledger.create(new_sandbox())).record.id
    await ledger.request_delete(over)
    run = (await ledger.create_run(new_run_id(), "a", lease_seconds=0.05))[0].id
    owned = await advance(ledger, new_sandbox(run=run), "ready")
    lost_run = new_run_id()
    client.zadd(f"{prefix}due", {GHOST: 1, over: 2, held: 3})
    client.zadd(f"{prefix}due:run", {lost_run: 1})
    client.sadd(f"{prefix}live:{lost_run}", GHOST)
    client.sadd(f"{prefix}live:{run}", GHOST, over, held)
    client.zadd(f"{prefix}ended", {GHOST: 1, held: 2})
    await asyncio.sleep(0.06)
    for _ in range(3):
        await ledger.tick()
    records = await ledger.get_many([held, gone, owned])
    assert [record and record.state for record in records] == [State.READY, State.DELETING, State.DELETING]
    assert not client.exists(f"{prefix}live:{lost_run}") and GHOST not in recount.zset("due")
    counted = (await ledger.stats()).anomalies
    assert set(counted) == {"lost", "misplaced"}
    assert (await ledger.tick()).anomalies == sum(counted.values()) == await ledger.anomaly_count()
    assert any(GHOST in text for text in await ledger.anomalies())
    recount.check()


async def test_nothing_that_a_queue_invents_stops_admission(damaged: tuple[Ledger, Recount]) -> None:
    ledger, recount = damaged
    client, prefix = recount.client, recount.prefix
    ready = await advance(ledger, new_sandbox("c"), "ready")
    client.rpush(f"{prefix}rr", "nobody", "a", "b", "c")
    client.rpush(f"{prefix}ql:a", "run-without-a-queue", "-")
    client.zadd(f"{prefix}qz:-:a", {GHOST: 0})
    client.rpush(f"{prefix}ql:b", "-")
    client.zadd(f"{prefix}qz:-:b", {ready: 0})
    client.zadd(f"{prefix}qall", {GHOST: 0})
    waiting = [(await ledger.create(new_sandbox(tenant))).record.id for tenant in ("a", "b")]
    admitted: set[str] = set()
    for _ in range(100):
        admitted |= {record.id for record in (await ledger.admit(4, "w")).records}
        if admitted == set(waiting):
            break
        await asyncio.sleep(0.005)
    assert admitted == set(waiting)
    assert (await ledger.admit(4, "w")).queued == 0
    assert set((await ledger.stats()).anomalies) == {"lost", "misplaced"}
    await ledger.audit()
    recount.check()


async def test_nothing_stale_stops_take_over_cleanup_or_a_shutdown(damaged: tuple[Ledger, Recount]) -> None:
    ledger, recount = damaged
    client, prefix = recount.client, recount.prefix
    creating = await advance(ledger, new_sandbox(), "creating")
    ready = await advance(ledger, new_sandbox(), "ready")
    failed = await advance(ledger, new_sandbox(), "ready")
    await ledger.mark_failed(failed, Reason.EXITED, "x")
    client.zadd(f"{prefix}claims", {GHOST: 0, ready: 1, creating: 2})
    for cleanup in ("clean:urgent", "clean:bulk"):
        client.zadd(f"{prefix}{cleanup}", {GHOST: 0, ready: 1})
    assert [record.id for record in await ledger.take_stale("w2", 9)] == [creating]
    assert [record.id for record in await ledger.cleanup_due()] == [failed]
    assert await ledger.cleanup_retry(GHOST, "no", 0) == 0 and not client.exists(f"{prefix}sb:{GHOST}")
    client.zadd(f"{prefix}due", {GHOST: 0, failed: 1})
    while await ledger.reclaim_all(Reclaim.SHUTDOWN):
        pass
    assert recount.zset("due") == set()
    recount.check()


async def test_a_record_that_cannot_be_read_leaves_the_others_alone(damaged: tuple[Ledger, Recount]) -> None:
    """As another version may have written it, or half of it is gone."""
    ledger, recount = damaged
    odd, half, whole = [(await ledger.create(new_sandbox())).record.id for _ in range(3)]
    recount.client.hset(f"{recount.prefix}sb:{odd}", "spec", '{"image": 5}')
    recount.client.hdel(f"{recount.prefix}sb:{half}", "deadline", "tenant")
    assert [record.id for record in (await ledger.list()).items] == [whole]
    with pytest.raises(LedgerCorrupt, match=odd):
        await ledger.get(odd)
    admitted: list[str] = []
    for _ in range(20):
        admitted += [record.id for record in (await ledger.admit(9, "w")).records]
        await asyncio.sleep(0.005)
    assert admitted == [whole]
    [brief] = await ledger.briefs([odd])
    assert brief is not None and brief.live, "known, so that a comparison never takes it for an orphan"
    for at in (1, 2, 3, 4):
        recount.client.zadd(f"{recount.prefix}claims", {odd: at})
        assert await ledger.take_stale("w", 9) == []
    [brief] = await ledger.briefs([odd])
    assert brief is not None and brief.state == State.FAILED
    assert [cleanup.id for cleanup in await ledger.cleanup_due()] == [odd]


async def test_wrong_sums_neither_stop_admission_nor_stay(damaged: tuple[Ledger, Recount]) -> None:
    ledger, recount = damaged
    for key in ("n", "n:a"):
        recount.client.hset(f"{recount.prefix}{key}", mapping={"creating": 99999, "queued": -5, "ready": -1})
    sandbox = await advance(ledger, new_sandbox(), "ready")
    await ledger.request_delete(sandbox)
    await ledger.audit()
    recount.check()
    assert (await ledger.stats()).live["creating"] == 0


INDEXES = ["due", "rr", "ql:a", "qz:-:a", "qall", "claims", "starting", "clean:urgent", "clean:bulk", "ended"]
INDEXES += ["n", "n:a", "due:run", "ending", "ended:run", "open:a", "live:RUN", "qz:RUN:a"]


@pytest.mark.parametrize("index", INDEXES)
async def test_an_audit_restores_each_index_from_the_records(
    damaged: tuple[Ledger, Recount], index: str
) -> None:
    """What no index names, nobody would take back: a lost `due` would be a lease that never ends."""
    ledger, recount = damaged
    run, ended = [(await ledger.create_run(new_run_id(), "a"))[0].id for _ in range(2)]
    for state in ("creating", "starting", "ready"):
        await advance(ledger, new_sandbox(), state)
        await advance(ledger, new_sandbox(run=run), state)
    removed, failed, bulk = [await advance(ledger, new_sandbox(), "ready") for _ in range(3)]
    await ledger.request_delete(removed)
    await ledger.request_delete(bulk, Reclaim.SHUTDOWN)
    await ledger.mark_failed(failed, Reason.EXITED, "x")
    await ledger.end_run(ended)
    await ledger.request_delete((await ledger.create(new_sandbox())).record.id)
    if index != "ending":
        await ledger.tick()
    for owner in (None, run):
        await ledger.create(new_sandbox(run=owner))
    await ledger.audit()
    assert await ledger.anomalies() == []
    recount.client.delete(recount.prefix + index.replace("RUN", run))
    await ledger.audit()
    recount.check()
    assert await ledger.anomalies() != []


async def test_random_damage_is_mended_and_everything_can_still_be_taken_back(
    damaged: tuple[Ledger, Recount],
) -> None:
    ledger, recount = damaged
    client, prefix = recount.client, recount.prefix
    dice = random.Random(7)
    for _round in range(15):
        ids = [
            await advance(
                ledger, new_sandbox(dice.choice("ab")), dice.choice(["creating", "starting", "ready"])
            )
            for _ in range(6)
        ]
        ids += [(await ledger.create(new_sandbox(dice.choice("ab")))).record.id for _ in range(4)]
        damages: list[Callable[[str], Any]] = [
            lambda one: client.delete(f"{prefix}sb:{one}"),
            lambda one: client.zrem(f"{prefix}due", one),
            lambda one: client.zrem(f"{prefix}claims", one),
            lambda one: client.zadd(f"{prefix}clean:bulk", {one: 1}),
            lambda one: client.zadd(f"{prefix}due", {one: 1}),
            lambda one: client.zadd(f"{prefix}starting", {one: 1}),
            lambda one: client.zadd(f"{prefix}ended", {one: 1}),
            lambda _one: client.delete(f"{prefix}{dice.choice(['n', 'n:a', 'qall', 'rr', 'ql:a'])}"),
        ]
        for one in dice.sample(ids, 5):
            dice.choice(damages)(one)
        await ledger.audit()
        await ledger.tick()
        while await ledger.reclaim_all(Reclaim.SHUTDOWN):
            pass
        for key in client.scan_iter(f"{prefix}sb:*"):
            client.hset(key, "claim_at", "1")
        for cleanup in ("clean:urgent", "clean:bulk"):
            for one in recount.zset(cleanup):
                client.zadd(f"{prefix}{cleanup}", {one: 1})
        for due in await ledger.cleanup_due(99):
            assert await ledger.cleanup_done(due.id)
        await ledger.audit()
        left = {record["state"] for record in recount.records().values()}
        assert left <= {"deleted", "failed"}, (_round, left)
    # What only names too much goes when somebody comes across it.
    for tenant in (None, "a", "b"):
        await ledger.list(tenant, limit=500)
    while client.exists(f"{prefix}rr"):
        await ledger.admit(9, "w")
    recount.check()


async def test_a_text_is_never_cut_within_a_character(ledger: Ledger) -> None:
    """A backend's message in any language, longer than what is kept: the record, its log line and their neighbours stay readable."""
    for text in ("é" * 1999, "x" + "é" * 1999, "日本語" * 600, "🤣" * 1999, "a" * 5000):
        sandbox = await advance(ledger, new_sandbox(), "creating")
        await ledger.mark_failed(sandbox, Reason.IMAGE_PULL, text)
        record = await ledger.get(sandbox)
        assert record is not None and record.detail and text.startswith(record.detail)
        [entry] = (await ledger.reclaims(limit=1)).items
        assert 490 < len(entry.detail.encode()) <= 500 and text.startswith(entry.detail)
        await ledger.release_claim(sandbox, "w", error=text)
        assert await ledger.cleanup_retry(sandbox, text, 0) == 1
        assert [due.id for due in await ledger.cleanup_due()] == [sandbox]
        assert await ledger.cleanup_done(sandbox)


async def test_bytes_that_are_no_text_are_shown_as_such(damaged: tuple[Ledger, Recount]) -> None:
    ledger, recount = damaged
    sandbox = (await ledger.create(new_sandbox())).record.id
    recount.client.hset(f"{recount.prefix}sb:{sandbox}", "detail", b"a\xe6\x97")
    record = await ledger.get(sandbox)
    assert record is not None and record.detail == "a\ufffd"


async def test_a_redis_that_is_full_is_an_outage_and_no_fault_of_the_caller(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sm-v-") as folder:
        process, server = start_valkey(Path(folder))
        ledger = await Ledger.connect(ledger_settings(server.url, tmp_path))
        try:
            sandbox = (await ledger.create(new_sandbox())).record.id
            await ledger.connection.client.config_set("maxmemory", "1")
            with pytest.raises(LedgerUnavailable) as full:
                await ledger.create(new_sandbox())
            assert full.value.retryable
            await ledger.connection.client.config_set("maxmemory", "0")
            await ledger.connection.client.replicaof("127.0.0.1", "1")
            with pytest.raises(LedgerUnavailable):
                await ledger.request_delete(sandbox)
        finally:
            await ledger.aclose()
            process.kill()
            process.wait()


async def test_a_clock_that_is_put_back_leaves_no_hold_behind(ledger: Ledger) -> None:
    client, prefix = ledger.connection.client, ledger.connection.prefix
    later = await ledger.now_ms() + 3_600_000
    await client.hset(f"{prefix}clock", mapping={"expire": later, "hold": later})
    await client.hset(f"{prefix}pace", mapping={"hold_until": later, "at": later})
    sandbox = await advance(ledger, new_sandbox(lease=0.02), "ready")
    await asyncio.sleep(0.03)
    assert await ledger.expire() == []
    hold = float(str(await client.hget(f"{prefix}clock", "hold")))
    assert hold - await ledger.now_ms() <= 30_000, "an hour would be an hour in which nothing is taken back"
    await client.hset(f"{prefix}clock", "hold", 0)
    await client.zadd(f"{prefix}due", {sandbox: 1})
    await client.hset(f"{prefix}sb:{sandbox}", "lease_at", 1)
    assert [one.id for one in await ledger.expire()] == [sandbox]


async def test_no_backend_can_ask_for_more_than_a_minute(ledger: Ledger) -> None:
    await ledger.pace_report(PaceSample(throttled=1, retry_after_seconds=86_400))
    await ledger.create(new_sandbox())
    admission = await ledger.admit(1, "w")
    assert admission.blocked == "hold" and admission.retry_after_ms <= 60_000


async def test_ended_records_are_bounded_also_while_many_grow_old(valkey: Valkey, tmp_path: Path) -> None:
    settings = ledger_settings(valkey.url, tmp_path, ENDED_BOUND="50", ENDED_SECONDS="3600")
    ledger = await Ledger.connect(settings)
    recount = Recount(valkey.url, settings.redis.namespace)
    for _ in range(400):
        await ledger.request_delete((await ledger.create(new_sandbox())).record.id)
    old = list(recount.zset("ended"))[:150]
    recount.client.zadd(f"{recount.prefix}ended", dict.fromkeys(old, 1))
    await ledger.tick()
    assert len(recount.zset("ended")) == 50
    recount.check()
    recount.close()
    await ledger.aclose()


async def test_a_conflicting_create_holds_nothing(ledger: Ledger) -> None:
    first = (await ledger.create(new_sandbox(key="k", fingerprint="x", waiting=True))).record
    await asyncio.sleep(0.03)
    with pytest.raises(IdempotencyConflict):
        await ledger.create(new_sandbox(key="k", fingerprint="y", waiting=True))
    record = await ledger.get(first.id)
    assert record is not None and record.lease_expires_ms == first.lease_expires_ms


async def test_a_place_in_the_queue_that_was_lost_is_given_again(damaged: tuple[Ledger, Recount]) -> None:
    ledger, recount = damaged
    sandbox = (await ledger.create(new_sandbox())).record.id
    recount.client.delete(*(recount.prefix + key for key in ("qz:-:a", "ql:a", "rr", "qall")))
    assert await ledger.queue_position(sandbox) == 0
    assert [record.id for record in (await ledger.admit(1, "w")).records] == [sandbox]
    recount.check()
