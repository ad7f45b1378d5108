"""What the ledger tells: lists, logs, reports, and the events that wake those who wait."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from app.ledger.errors import LedgerUnavailable
from app.ledger.events import EventFeed
from app.ledger.ledger import Ledger
from app.ledger.model import ExecSample, Reason, State, new_run_id
from tests.conftest import Valkey, start_valkey
from tests.fakes.ledger import advance, ledger_settings, new_sandbox


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


async def test_a_failure_that_is_final_is_not_retryable_whatever_its_reason(ledger: Ledger) -> None:
    """An image that is not there fails like one whose registry is away, but waiting does not help it."""
    found = {}
    for final in (True, False):
        sandbox = await advance(ledger, new_sandbox(), "creating")
        await ledger.mark_failed(sandbox, Reason.IMAGE_PULL, "no such image", final=final)
        record = await ledger.get(sandbox)
        assert record is not None and (record.reason, record.cause) == (Reason.IMAGE_PULL, "task")
        found[final] = record.retryable
    assert found == {True: False, False: True}


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


async def test_a_listener_that_breaks_does_not_end_the_feed(ledger: Ledger) -> None:
    async with EventFeed(ledger) as feed:
        broken: list[str | None] = []

        def listener(sandbox: str | None) -> None:
            broken.append(sandbox)
            if sandbox is not None and len(broken) < 4:
                raise RuntimeError("a listener's fault")

        feed.listen(listener)
        ready = feed.signal([State.READY])
        await asyncio.sleep(0.1)
        sandbox = await advance(ledger, new_sandbox(), "starting")
        await asyncio.sleep(0.5)
        ready.clear()
        await ledger.mark_ready(sandbox)
        await asyncio.wait_for(ready.wait(), 3)
        assert not any(task.done() for task in feed._tasks)


async def test_a_wait_ends_in_time_also_when_redis_hangs(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More callers than are read at once, and no answer: each is told when its own time is up."""

    async def hang(_sandbox: str) -> None:
        await asyncio.Event().wait()

    feed = EventFeed(ledger)
    monkeypatch.setattr(ledger, "get", hang)
    started = asyncio.get_running_loop().time()
    ends = await asyncio.gather(
        *(feed.wait_for("sb-x", lambda record: True, 0.2) for _ in range(40)), return_exceptions=True
    )
    assert all(isinstance(end, LedgerUnavailable) for end in ends)
    assert asyncio.get_running_loop().time() - started < 2


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
