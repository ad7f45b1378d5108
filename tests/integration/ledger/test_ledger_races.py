"""Races that have exactly one winner, on the real Valkey."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.ledger.errors import Ended, IdempotencyConflict
from app.ledger.ledger import Ledger
from app.ledger.model import Reason, Reclaim, State
from app.ledger.wakeup import Waker
from tests.conftest import Valkey
from tests.fakes.ledger import advance, ledger_settings, new_sandbox


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


async def test_a_create_that_was_never_answered_starts_afresh_under_its_key(ledger: Ledger) -> None:
    """No API was there for longer than the hold: nobody was told of the first one, so its key is free."""
    for state in ("queued", "ready"):
        first = await advance(ledger, new_sandbox(key=state, waiting=True), state)
        await _silent(ledger, first)
        assert [one.reclaim for one in await ledger.expire()] == [Reclaim.HUNG_UP]
        again = await ledger.create(new_sandbox(key=state, waiting=True))
        assert not again.existing and again.record.id != first
        assert (again.record.state, again.record.rev) == (State.QUEUED, 1)
        with pytest.raises(IdempotencyConflict):
            await ledger.create(new_sandbox(key=state, fingerprint="another", waiting=True))
        old = await ledger.get(first)
        assert old is not None and old.reclaim is Reclaim.HUNG_UP, "it stays readable"
        # The end of the old one's record must not take the new one's key along.
        client, prefix = ledger.connection.client, ledger.connection.prefix
        assert await client.hget(f"{prefix}sb:{first}", "idem") == ""
        assert (await ledger.create(new_sandbox(key=state, waiting=True))).record.id == again.record.id
        await ledger.request_delete(again.record.id)


async def test_a_create_that_was_answered_keeps_its_key_whatever_became_of_it(ledger: Ledger) -> None:
    for reclaim in ("lease", "deleted"):
        answered = (await ledger.create(new_sandbox(key=reclaim, waiting=True))).record.id
        await ledger.claim(answered)
        if reclaim == "lease":
            await _silent(ledger, answered)
            assert [one.reclaim for one in await ledger.expire()] == [Reclaim.LEASE_EXPIRED]
        else:
            await ledger.request_delete(answered)
        again = await ledger.create(new_sandbox(key=reclaim, waiting=True))
        assert again.existing and again.record.id == answered


async def test_a_repeated_create_wakes_a_worker_when_its_sandbox_still_waits(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's answer, or its process, was lost before it enqueued the job."""
    woken: list[str] = []

    async def wake(_waker: Waker) -> None:
        woken.append("woken")

    monkeypatch.setattr(Waker, "wake", wake)
    new = new_sandbox(key="k")
    await ledger.create(new)
    assert (await ledger.create(new)).existing and len(woken) == 2
    await ledger.drain_begin()
    assert (await ledger.create(new)).existing and len(woken) == 2, "somebody is at it"
    await ledger.drain_end()
    await ledger.request_delete(new.id)
    assert (await ledger.create(new)).existing and len(woken) == 2, "nothing waits"


async def _silent(ledger: Ledger, sandbox: str) -> None:
    """Nobody has held it for long."""
    client, prefix = ledger.connection.client, ledger.connection.prefix
    await client.hset(f"{prefix}sb:{sandbox}", "lease_at", "1")
    await client.zadd(f"{prefix}due", {sandbox: 1})


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


async def _lapse(ledger: Ledger, sandbox: str) -> None:
    """The worker that creates it fell silent long ago."""
    client, prefix = ledger.connection.client, ledger.connection.prefix
    await client.hset(f"{prefix}sb:{sandbox}", "claim_at", "1")
    await client.zadd(f"{prefix}claims", {sandbox: 1}, xx=True)
