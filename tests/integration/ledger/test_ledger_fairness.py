"""Who may start, and when: turns, bounds, the window and the rate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.ledger.errors import QueueFull, TooManyRuns
from app.ledger.ledger import Ledger
from app.ledger.model import PaceSample, Reclaim, State, new_run_id
from tests.conftest import Valkey
from tests.fakes.ledger import ledger_settings, new_sandbox


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


async def test_open_runs_are_bounded_for_each_tenant(valkey: Valkey, tmp_path: Path) -> None:
    """What ended, by whatever way, makes room; what is repeated needs none; others are not held up."""
    ledger = await Ledger.connect(ledger_settings(valkey.url, tmp_path, OPEN_RUNS_MAX="2"))
    first = (await ledger.create_run(new_run_id(), "a", idempotency_key="k"))[0].id
    await ledger.create_run(new_run_id(), "a", lease_seconds=0.05)
    with pytest.raises(TooManyRuns) as full:
        await ledger.create_run(new_run_id(), "a")
    assert (full.value.bound, full.value.retryable) == (2, True)
    assert (await ledger.create_run(new_run_id(), "a", idempotency_key="k"))[0].id == first
    await ledger.create_run(new_run_id(), "b")
    await asyncio.sleep(0.06)
    await ledger.expire(10)
    third = (await ledger.create_run(new_run_id(), "a"))[0].id
    with pytest.raises(TooManyRuns):
        await ledger.create_run(new_run_id(), "a")
    await ledger.end_run(third)
    await ledger.end_run(third)
    await ledger.create_run(new_run_id(), "a")
    await ledger.aclose()


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


async def test_a_burst_of_creates_makes_a_handful_of_jobs(ledger: Ledger) -> None:
    await asyncio.gather(*(ledger.create(new_sandbox()) for _ in range(1000)))
    jobs = await ledger.connection.client.llen(f"rq:queue:{ledger.settings.redis.namespace}-provision")
    assert 1 <= jobs <= 3
