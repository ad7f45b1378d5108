"""What holds a sandbox, for how long, and what becomes of it when nothing does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.ledger.epoch import write_epoch
from app.ledger.errors import RunEnded, RunNotFound
from app.ledger.ledger import Ledger
from app.ledger.model import Reason, Reclaim, State, new_run_id
from tests.conftest import Valkey
from tests.fakes.ledger import advance, ledger_settings, new_sandbox


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


async def _age(ledger: Ledger, sandbox: str) -> None:
    client, prefix = ledger.connection.client, ledger.connection.prefix
    await client.hset(f"{prefix}sb:{sandbox}", "lease_at", "1")
    await client.zadd(f"{prefix}due", {sandbox: 1})


async def test_an_older_or_another_redis_begins_a_new_epoch(ledger: Ledger) -> None:
    """Whatever is wrong with it: the last agreement is forgotten, and everything made before now is protected."""
    client, prefix = ledger.connection.client, ledger.connection.prefix
    data_dir = ledger.settings.paths.data_dir
    token = await ledger.leader("loops", "me", 60_000)
    assert token is not None

    async def verdict(expected: str, *, renewed: bool, forgotten: bool | None = None) -> None:
        forgotten = renewed if forgotten is None else forgotten
        before = await client.hget(f"{prefix}epoch", "id")
        await client.hset(f"{prefix}epoch", "born", 1)
        await ledger.set_agreement(1, "loops", token)
        attestation = await ledger.attest()
        assert attestation.verdict == expected
        assert (attestation.epoch != before) == renewed
        assert (await ledger.agreement_ms() is None) == forgotten
        assert attestation.alarming == (expected in ("lost", "rolled_back", "other"))
        if forgotten:
            assert await ledger.now_ms() - attestation.born_ms < 1000

    await verdict("first", renewed=True)
    await verdict("same", renewed=False)
    (data_dir / "ledger-epoch.json").unlink()
    await verdict("adopted", renewed=False, forgotten=True)
    await client.hset(f"{prefix}epoch", "generation", "1")
    await verdict("rolled_back", renewed=True)
    write_epoch(data_dir, "somebody-elses", 1)
    await verdict("other", renewed=True)
    await client.delete(f"{prefix}epoch")
    await verdict("lost", renewed=True)
    await verdict("same", renewed=False)
