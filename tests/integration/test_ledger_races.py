"""Races that have exactly one winner, fairness, and bounds: the ledger's promises under concurrency, on the real Valkey."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.ledger.errors import Ended, IdempotencyConflict, LedgerUnavailable, QueueFull, RunEnded, RunNotFound
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.model import ExecSample, PaceSample, Reason, Reclaim, State, new_run_id
from tests.conftest import Valkey, start_valkey
from tests.fakes.ledger import Recount, advance, ledger_settings, new_sandbox


@pytest.fixture
async def ledger(valkey: Valkey, tmp_path: Path) -> AsyncIterator[Ledger]:
    """In a namespace of its own; every test leaves indexes equal to a recount."""
    settings = ledger_settings(valkey.url, tmp_path, QUEUE_TENANT_BOUND="6000")
    one = await Ledger.connect(settings)
    yield one
    recount = Recount(valkey.url, settings.redis.namespace)
    recount.check()
    for key in recount.client.scan_iter(f"{recount.prefix}*"):
        recount.client.delete(key)
    recount.close()
    await one.aclose()


async def test_twenty_creates_with_one_key_make_one_sandbox(ledger: Ledger) -> None:
    created = await asyncio.gather(*(ledger.create(new_sandbox(key="k")) for _ in range(20)))
    assert len({one.record.id for one in created}) == 1
    assert sum(not one.existing for one in created) == 1


async def test_a_key_with_another_body_is_a_conflict_that_names_the_sandbox(ledger: Ledger) -> None:
    first = await ledger.create(new_sandbox(key="k", fingerprint="x"))
    with pytest.raises(IdempotencyConflict) as conflict:
        await ledger.create(new_sandbox(key="k", fingerprint="y"))
    assert conflict.value.sandbox_id == first.record.id
    other = await ledger.create(new_sandbox("b", key="k", fingerprint="y"))
    assert not other.existing, "another tenant's keys are another world"


async def test_a_key_outlives_its_sandbox_as_long_as_the_record_is_readable(ledger: Ledger) -> None:
    first = await ledger.create(new_sandbox(key="k"))
    await ledger.request_delete(first.record.id)
    again = await ledger.create(new_sandbox(key="k"))
    assert again.existing and again.record.id == first.record.id
    assert again.record.state == State.DELETED


async def test_a_repeated_create_gives_a_waiting_sandbox_new_time(ledger: Ledger) -> None:
    first = await ledger.create(new_sandbox(key="k", waiting=True))
    await asyncio.sleep(0.05)
    again = await ledger.create(new_sandbox(key="k", waiting=True))
    assert first.record.lease_expires_ms is not None and again.record.lease_expires_ms is not None
    assert again.record.lease_expires_ms > first.record.lease_expires_ms


async def test_renew_and_expire_have_one_winner(ledger: Ledger) -> None:
    """The lease runs out while it is renewed: either the renewal holds, or it is told that the sandbox is gone."""
    for round_ in range(30):
        sandbox = await advance(ledger, new_sandbox(lease=0.02), "ready")
        await asyncio.sleep(0.015 + 0.0005 * round_)
        renewed, expired = await asyncio.gather(
            ledger.renew(sandbox, 60), ledger.expire(), return_exceptions=True
        )
        assert not isinstance(expired, BaseException)
        gone = [one.id for one in expired] == [sandbox]
        assert gone == isinstance(renewed, Ended), (renewed, expired)
        record = await ledger.get(sandbox)
        assert record is not None and record.live != gone
        await ledger.request_delete(sandbox)
        assert await ledger.cleanup_done(sandbox)


async def test_delete_and_ready_have_one_winner(ledger: Ledger) -> None:
    for _ in range(30):
        sandbox = await advance(ledger, new_sandbox(), "starting")
        ready, record = await asyncio.gather(ledger.mark_ready(sandbox), ledger.request_delete(sandbox))
        assert record.state == State.DELETING
        assert record.reclaim == (Reclaim.DELETED if ready else Reclaim.CANCELLED)
        assert not await ledger.mark_ready(sandbox), "never back"
        await ledger.cleanup_done(sandbox)


async def test_concurrent_admissions_give_each_sandbox_to_one_worker(ledger: Ledger) -> None:
    for _ in range(30):
        await ledger.create(new_sandbox())
    got: list[str] = []

    async def work(name: str) -> None:
        while len(got) < 30:
            got.extend(record.id for record in (await ledger.admit(4, name)).records)
            await asyncio.sleep(0.005)

    await asyncio.wait_for(asyncio.gather(*(work(f"w{i}") for i in range(4))), 10)
    assert len(set(got)) == len(got) == 30


async def test_deleted_while_queued_never_starts_and_moves_the_others_up(ledger: Ledger) -> None:
    created = [(await ledger.create(new_sandbox())).record.id for _ in range(200)]
    assert await ledger.queue_position(created[-1]) == 199
    for sandbox in created[:199:2]:
        record = await ledger.request_delete(sandbox)
        assert (record.state, record.reclaim) == (State.DELETED, Reclaim.CANCELLED)
        assert await ledger.queue_position(sandbox) is None
    assert await ledger.queue_position(created[-1]) == 99
    admitted: list[str] = []
    while len(admitted) < 32:
        admitted += [record.id for record in (await ledger.admit(32, "w")).records]
        await asyncio.sleep(0.01)
    assert not set(admitted) & set(created[:199:2])


async def test_cleanup_waits_for_a_create_in_flight(ledger: Ledger) -> None:
    """Deleted while a worker creates it: removing it before the worker has let go would miss what is about to appear."""
    sandbox = await advance(ledger, new_sandbox(), "creating")
    await ledger.request_delete(sandbox)
    assert await ledger.cleanup_due() == []
    assert not await ledger.cleanup_done(sandbox)
    assert await ledger.extend_claims("w", [sandbox]) == [sandbox], "the worker learns that it is cancelled"
    assert not await ledger.mark_starting(sandbox, "unix:/x", {})
    assert await ledger.release_claim(sandbox, "w")
    assert [record.id for record in await ledger.cleanup_due()] == [sandbox]
    assert await ledger.cleanup_done(sandbox)
    record = await ledger.get(sandbox)
    assert record is not None and record.state == State.DELETED and "cleaned" in record.times


async def test_a_burst_of_5000_delays_another_tenant_by_one_turn(ledger: Ledger) -> None:
    for start in range(0, 5000, 500):
        await asyncio.gather(*(ledger.create(new_sandbox("big")) for _ in range(start, start + 500)))
    await ledger.admit(5, "w")
    single = (await ledger.create(new_sandbox("small"))).record.id
    assert await ledger.queue_position(single) in (0, 1)
    admitted: list[str] = []
    while single not in admitted:
        admitted += [record.id for record in (await ledger.admit(1, "w")).records]
        assert len(admitted) <= 2
        await asyncio.sleep(0.005)


async def test_a_full_window_keeps_a_place_for_a_tenant_that_has_none(ledger: Ledger) -> None:
    """The other's sandboxes hang while starting: that is their window, not everybody's."""
    for _ in range(60):
        await ledger.create(new_sandbox("big"))
    for _ in range(200):
        if (await ledger.admit(40, "w")).blocked == "window":
            break
        await asyncio.sleep(0.01)
    assert (await ledger.admit(1, "w")).blocked == "window"
    single = (await ledger.create(new_sandbox("small"))).record.id
    assert [record.id for record in (await ledger.admit(1, "w")).records] == [single]
    await ledger.create(new_sandbox("small"))
    await asyncio.sleep(0.1)
    assert (await ledger.admit(1, "w")).blocked == "window", "only the first one"


async def test_one_tenant_takes_turns_over_its_runs(ledger: Ledger) -> None:
    runs = [(await ledger.create_run(new_run_id(), "a"))[0].id for _ in range(3)]
    for run in runs:
        for _ in range(3):
            await ledger.create(new_sandbox(run=run))
    order: list[str | None] = []
    while len(order) < 9:
        order += [record.run for record in (await ledger.admit(1, "w")).records]
        await asyncio.sleep(0.005)
    assert all(set(order[start : start + 3]) == set(runs) for start in (0, 3, 6))


async def test_positions_are_the_order_of_admission(ledger: Ledger) -> None:
    run = (await ledger.create_run(new_run_id(), "b"))[0].id
    waiting = []
    for tenant, owner, many in (("a", None, 4), ("b", run, 3), ("b", None, 2), ("c", None, 1)):
        for _ in range(many):
            waiting.append((await ledger.create(new_sandbox(tenant, run=owner))).record.id)
    positions = {sandbox: await ledger.queue_position(sandbox) for sandbox in waiting}
    assert sorted(position for position in positions.values() if position is not None) == list(range(10))
    order: list[str] = []
    while len(order) < 10:
        order += [record.id for record in (await ledger.admit(1, "w")).records]
        await asyncio.sleep(0.005)
    assert [positions[sandbox] for sandbox in order] == list(range(10))


async def test_the_queue_is_bounded_for_each_tenant_and_in_all(valkey: Valkey, tmp_path: Path) -> None:
    settings = ledger_settings(valkey.url, tmp_path, QUEUE_BOUND="5", QUEUE_TENANT_BOUND="3")
    ledger = await Ledger.connect(settings)
    for _ in range(3):
        await ledger.create(new_sandbox("a"))
    with pytest.raises(QueueFull) as full:
        await ledger.create(new_sandbox("a"))
    assert (full.value.scope, full.value.retryable) == ("tenant", True)
    for _ in range(2):
        await ledger.create(new_sandbox("b"))
    with pytest.raises(QueueFull) as full:
        await ledger.create(new_sandbox("b"))
    assert full.value.scope == "service"
    await ledger.aclose()


async def test_a_lost_run_takes_its_sandboxes_along_and_nobody_elses(ledger: Ledger) -> None:
    """B103: the trainer is killed; what it held goes, what others hold stays."""
    lost = (await ledger.create_run(new_run_id(), "a", lease_seconds=0.2))[0].id
    kept = (await ledger.create_run(new_run_id(), "a"))[0].id
    of_lost = [(await ledger.create(new_sandbox(run=lost))).record.id for _ in range(30)]
    of_kept = [(await ledger.create(new_sandbox(run=kept))).record.id for _ in range(5)]
    assert await ledger.touch(of_lost) == dict.fromkeys(of_lost)
    await asyncio.sleep(0.25)
    expired = []
    for _ in range(4):
        expired += await ledger.expire(20)
    assert {one.id for one in expired} == {lost, *of_lost}
    assert {one.reclaim for one in expired} == {Reclaim.RUN_LEASE_EXPIRED}
    assert set(await ledger.touch(of_kept)) == set(of_kept)
    with pytest.raises(RunEnded):
        await ledger.create(new_sandbox(run=lost))
    with pytest.raises(RunEnded):
        await ledger.renew_run(lost)


async def test_a_run_of_another_tenant_does_not_exist(ledger: Ledger) -> None:
    run = (await ledger.create_run(new_run_id(), "a"))[0].id
    for owner in (run, new_run_id()):
        with pytest.raises(RunNotFound):
            await ledger.create(new_sandbox("b", run=owner))


async def test_a_silent_waiter_is_hung_up_and_a_claimed_one_is_not(ledger: Ledger) -> None:
    """B078: only the hold keeps what nobody has been told about."""
    silent = (await ledger.create(new_sandbox(waiting=True))).record
    claimed = (await ledger.create(new_sandbox(waiting=True))).record
    assert silent.lease_expires_ms is not None
    assert 9_000 < silent.lease_expires_ms - silent.times["queued"] <= 10_000
    await ledger.claim(claimed.id)
    await _age(ledger, silent.id)
    assert [(one.id, one.reclaim) for one in await ledger.expire()] == [(silent.id, Reclaim.HUNG_UP)]


async def test_a_passed_lifetime_is_a_typed_failure_before_ready_and_a_reclaim_after(ledger: Ledger) -> None:
    ready = await advance(ledger, new_sandbox(lifetime=0.1), "ready")
    queued = (await ledger.create(new_sandbox(lifetime=0.05))).record.id
    await asyncio.sleep(0.12)
    await ledger.expire()
    [of_ready, of_queued] = await ledger.get_many([ready, queued])
    assert of_ready is not None and of_queued is not None
    assert (of_ready.state, of_ready.reclaim) == (State.DELETING, Reclaim.LIFETIME)
    assert (of_queued.state, of_queued.reason) == (State.FAILED, Reason.DEADLINE)


async def test_a_long_silence_gives_leases_a_grace_before_they_expire(valkey: Valkey, tmp_path: Path) -> None:
    """Redis, the service or the machine was away: holders could not renew, so their leases are not held against them."""
    settings = ledger_settings(
        valkey.url, tmp_path, OUTAGE_THRESHOLD_SECONDS="0.3", OUTAGE_GRACE_SECONDS="0.5"
    )
    ledger = await Ledger.connect(settings)
    run = (await ledger.create_run(new_run_id(), "a", lease_seconds=0.2))[0].id
    renewed, lost = [await advance(ledger, new_sandbox(lease=0.2), "ready") for _ in range(2)]
    assert await ledger.expire() == []
    await asyncio.sleep(0.6)
    assert await ledger.expire() == [], "all have run out, and none is taken"
    await ledger.renew(renewed, 60)
    taken: set[str] = set()
    started = asyncio.get_running_loop().time()
    while len(taken) < 2:
        await asyncio.sleep(0.05)
        taken |= {one.id for one in await ledger.expire()}
    assert taken == {lost, run}
    assert 0.3 < asyncio.get_running_loop().time() - started < 1
    await ledger.aclose()


async def test_a_create_that_is_never_finished_fails_after_its_attempts(
    valkey: Valkey, tmp_path: Path
) -> None:
    """B130: one at a time once they are suspects, so that a poison create uses up its own attempts only."""
    ledger = await Ledger.connect(ledger_settings(valkey.url, tmp_path, ATTEMPTS_MAX="4"))
    two = {await advance(ledger, new_sandbox(), "creating") for _ in range(2)}

    async def crash() -> None:
        for sandbox in two:
            await _lapse(ledger, sandbox)

    await crash()
    assert {record.id for record in await ledger.take_stale("w2", 9)} == two
    await crash()
    assert (await ledger.take_over("w3", 9, alone=False)).suspects == 2
    first = await ledger.take_over("w3", 9, alone=True)
    assert len(first.records) == 1 and first.suspects == 1
    poison = first.records[0].id
    await _lapse(ledger, poison)
    [other] = two - {poison}
    for worker in ("w4", "w5"):
        [record] = (await ledger.take_over(worker, 9, alone=True)).records
        if record.id == poison:
            assert record.attempts == 4
            await _lapse(ledger, poison)
        else:
            assert await ledger.mark_starting(other, "unix:/x", {})
    assert await ledger.take_stale("w6", 9) == []
    healthy = await ledger.get(other)
    assert healthy is not None and healthy.state == State.STARTING
    failed = await ledger.get(poison)
    assert failed is not None and (failed.state, failed.reason) == (State.FAILED, Reason.BACKEND_ERROR)
    await ledger.aclose()


async def test_pacing_halves_when_told_and_grows_again(ledger: Ledger) -> None:
    initial, window = await ledger.pace_report(PaceSample(ok=1, latency_ms=5))
    halved, narrower = await ledger.pace_report(
        PaceSample(throttled=9, ok=1, latency_ms=5, retry_after_seconds=0.2)
    )
    assert halved == pytest.approx(initial / 2) and narrower == window // 2
    again, _ = await ledger.pace_report(PaceSample(throttled=9))
    assert again == halved, "the same moment is punished once"
    await ledger.create(new_sandbox())
    admission = await ledger.admit(1, "w")
    assert admission.blocked == "hold" and 0 < admission.retry_after_ms <= 200
    await asyncio.sleep(0.21)
    assert len((await ledger.admit(1, "w")).records) == 1
    for _ in range(20):
        rate, _ = await ledger.pace_report(PaceSample(ok=10, latency_ms=5))
    assert halved < rate < initial, "above the rate that went wrong it grows slowly"


async def test_the_report_remains_when_the_records_are_gone(valkey: Valkey, tmp_path: Path) -> None:
    settings = ledger_settings(valkey.url, tmp_path, ENDED_SECONDS="0")
    ledger = await Ledger.connect(settings)
    run = (await ledger.create_run(new_run_id(), "a", name="train"))[0].id
    ready = await advance(ledger, new_sandbox(run=run, key="k"), "ready")
    failed = await advance(ledger, new_sandbox(run=run), "creating")
    await ledger.mark_failed(failed, Reason.IMAGE_PULL, "no such image")
    await asyncio.sleep(0.2)
    assert (await ledger.run_report(run))["usage"]["sandbox_seconds"] >= 0.2, "also while it lives"
    await ledger.record_execs(
        [ExecSample(ready, run, "ok", 0.05)] * 99 + [ExecSample(ready, run, "timed_out", 2)]
    )
    await ledger.end_run(run)
    await ledger.expire()
    await ledger.release_claim(failed, "w")
    for record in await ledger.cleanup_due():
        assert await ledger.cleanup_done(record.id)
    await asyncio.sleep(0.01)
    await ledger.expire()
    assert await ledger.get_many([ready, failed]) == [None, None]
    assert (await ledger.create(new_sandbox(key="k"))).existing is False, (
        "the key is forgotten with its sandbox"
    )
    report = await ledger.run_report(run)
    assert report["sandboxes"] == {"created": 2, "ready": 1, "live": 0, "peak": 1, "failed": 1}
    assert report["failures"] == {"image_pull": 1}
    assert report["reclaimed"] == {"failed": 1, "run_ended": 1}
    assert report["usage"]["cpu_seconds"] == pytest.approx(report["usage"]["sandbox_seconds"] / 2, abs=0.01)
    assert report["delays"]["total"]["count"] == 1
    assert report["execs"]["outcomes"] == {"ok": 99, "timed_out": 1}
    assert report["execs"]["seconds"]["p50"] == pytest.approx(0.05, rel=0.05)
    assert report["execs"]["seconds"]["max"] == 2.0
    await ledger.aclose()


async def test_lists_page_through_everything_once(ledger: Ledger) -> None:
    mine = [(await ledger.create(new_sandbox("a", labels={"n": str(i % 2)}))).record.id for i in range(25)]
    await ledger.create(new_sandbox("b"))
    seen: list[str] = []
    cursor = None
    while True:
        page = await ledger.list("a", limit=10, cursor=cursor)
        seen += [record.id for record in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == mine[::-1]
    assert len((await ledger.list(None, limit=100)).items) == 26
    assert {r.id for r in (await ledger.list("a", labels={"n": "1"})).items} == set(mine[1::2])
    assert (await ledger.list("a", states=[State.READY])).items == []
    exact = await ledger.list("a", limit=25)
    assert len(exact.items) == 25 and exact.next is None


async def test_the_reclaim_log_pages_and_belongs_to_tenants(ledger: Ledger) -> None:
    for tenant in ("a", "a", "b", "a"):
        sandbox = (await ledger.create(new_sandbox(tenant))).record.id
        await ledger.request_delete(sandbox, detail="asked")
    first = await ledger.reclaims("a", limit=2)
    second = await ledger.reclaims("a", limit=2, cursor=first.next)
    assert [entry.tenant for entry in first.items + second.items] == ["a"] * 3
    assert second.next is None
    assert {entry.detail for entry in first.items} == {"asked"}
    assert len((await ledger.reclaims()).items) == 4
    assert (await ledger.stats()).reclaimed == {"cancelled": 4}
    assert (await ledger.stats("b")).reclaimed == {"cancelled": 1}


async def test_waiters_are_woken_by_the_event(ledger: Ledger) -> None:
    async with EventFeed(ledger) as feed:
        sandbox = await advance(ledger, new_sandbox(), "starting")
        waits = [
            asyncio.create_task(feed.wait_for(sandbox, lambda record: record.state == State.READY, 5))
            for _ in range(50)
        ]
        await asyncio.sleep(0.1)
        started = asyncio.get_running_loop().time()
        await ledger.mark_ready(sandbox)
        assert all(record.state == State.READY for record in await asyncio.gather(*waits))
        assert asyncio.get_running_loop().time() - started < 0.3
        late = await feed.wait_for(sandbox, lambda record: record.state == State.DELETED, 0.1)
        assert late.state == State.READY, "the time is up: the record as it is"


async def test_a_missed_event_is_caught_by_the_recheck(ledger: Ledger) -> None:
    async with EventFeed(ledger) as feed:
        sandbox = await advance(ledger, new_sandbox(), "starting")
        wait = asyncio.create_task(feed.wait_for(sandbox, lambda record: record.state == State.READY, 5))
        await asyncio.sleep(0.1)
        follower = feed._tasks[0]
        follower.cancel()
        await asyncio.sleep(0)
        await ledger.mark_ready(sandbox)
        assert (await asyncio.wait_for(wait, 3)).state == State.READY


async def test_a_wait_rides_over_a_restart_of_redis(tmp_path: Path) -> None:
    """The feed comes back by itself, and what happened meanwhile is found by looking."""
    with tempfile.TemporaryDirectory(prefix="sm-v-") as folder:
        process, server = start_valkey(Path(folder))
        ledger = await Ledger.connect(ledger_settings(server.url, tmp_path))
        try:
            async with EventFeed(ledger) as feed:
                sandbox = await advance(ledger, new_sandbox(), "starting")
                placed = feed.signal([State.READY])
                wait = asyncio.create_task(
                    feed.wait_for(sandbox, lambda record: record.state == State.READY, 20)
                )
                await asyncio.sleep(0.1)
                process.kill()
                process.wait()
                with pytest.raises(LedgerUnavailable):
                    await ledger.get(sandbox)
                placed.clear()
                process, _ = start_valkey(Path(folder))
                assert await ledger.mark_ready(sandbox)
                assert (await asyncio.wait_for(wait, 6)).state == State.READY
                await asyncio.wait_for(placed.wait(), 6)
        finally:
            await ledger.aclose()
            process.kill()
            process.wait()


async def test_what_somebody_waits_for_is_removed_first_and_bulk_is_not_starved(ledger: Ledger) -> None:
    run = (await ledger.create_run(new_run_id(), "a"))[0].id
    bulk = [await advance(ledger, new_sandbox(run=run), "ready") for _ in range(8)]
    asked = [await advance(ledger, new_sandbox(), "ready") for _ in range(8)]
    await ledger.end_run(run)
    await ledger.expire()
    for sandbox in asked:
        await ledger.request_delete(sandbox)
    first = [record.id for record in await ledger.cleanup_due(4)]
    assert set(first[:3]) <= set(asked) and first[3] in bulk
    assert await ledger.cleanup_retry(first[0], "busy", 0.05) == 1
    rest = [record.id for record in await ledger.cleanup_due(50)]
    assert not set(first) & set(rest) and len(rest) == 12
    await asyncio.sleep(0.06)
    assert [record.id for record in await ledger.cleanup_due(50)] == [first[0]]
    assert await ledger.cleanup_retry(first[0], "busy", 0.0) == 2


async def test_only_one_leads_and_its_word_counts_only_while_it_does(ledger: Ledger) -> None:
    first = await ledger.leader("loops", "one", 100)
    assert first is not None
    assert await ledger.leader("loops", "two", 100) is None
    assert await ledger.leader("loops", "one", 100) == first
    assert await ledger.set_agreement(5, "loops", first)
    await asyncio.sleep(0.12)
    second = await ledger.leader("loops", "two", 5000)
    assert second is not None and second > first
    assert not await ledger.set_agreement(9, "loops", first)
    assert await ledger.agreement_ms() == 5


async def test_a_burst_of_creates_makes_a_handful_of_jobs(ledger: Ledger) -> None:
    await asyncio.gather(*(ledger.create(new_sandbox()) for _ in range(1000)))
    jobs = await ledger.connection.client.llen(f"rq:queue:{ledger.settings.redis.namespace}-provision")
    assert 1 <= jobs <= 3


async def _age(ledger: Ledger, sandbox: str) -> None:
    client, prefix = ledger.connection.client, ledger.connection.prefix
    await client.hset(f"{prefix}sb:{sandbox}", "lease_at", "1")
    await client.zadd(f"{prefix}due", {sandbox: 1})


async def _lapse(ledger: Ledger, sandbox: str) -> None:
    """The worker that creates it fell silent long ago."""
    client, prefix = ledger.connection.client, ledger.connection.prefix
    await client.hset(f"{prefix}sb:{sandbox}", "claim_at", "1")
    await client.zadd(f"{prefix}claims", {sandbox: 1}, xx=True)
