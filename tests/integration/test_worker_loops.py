"""The worker's two processes over a backend of files: killed, restarted, lied to, and still nothing lost, doubled or leaked."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from app.ledger.events import EventFeed
from app.ledger.model import Reason, Reclaim, State, new_run_id, new_sandbox_id
from app.ledger.tokens import read_secret, sandbox_token
from tests.conftest import Valkey, start_valkey
from tests.fakes.ledger import new_sandbox
from tests.fakes.provider import FakeDaemon, FakeProvider
from tests.fakes.workers import Backstage, eventually
from worker.loops import Loops
from worker.reclaim import Reclaimer
from worker.reconcile import Reconciler


@asynccontextmanager
async def backstage(
    valkey: Valkey, *modules: str, **environment: str
) -> AsyncIterator[tuple[Backstage, FakeDaemon]]:
    with tempfile.TemporaryDirectory(prefix="sm-") as folder:
        stage = Backstage(valkey.url, Path(folder), **environment)
        async with stage, FakeDaemon(stage.provider.folder) as daemon:
            for module in modules:
                stage.start(module)
            yield stage, daemon


async def create(stage: Backstage, many: int, **options: object) -> list[str]:
    made = await asyncio.gather(*(stage.ledger.create(new_sandbox(**options)) for _ in range(many)))  # type: ignore[arg-type]
    return [one.record.id for one in made]


def all_in(stage: Backstage, ids: list[str], *states: State) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return set(await stage.states(ids)) <= set(states)

    return check


async def test_a_burst_becomes_usable_and_is_taken_back(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops") as (stage, daemon):
        ids = await create(stage, 40)
        await eventually(all_in(stage, ids, State.READY))
        assert Counter(stage.provider.calls("made")) == Counter(ids)
        secret = read_secret(stage.settings.paths.secret_file)
        assert daemon.tokens == {sandbox_token(secret, sandbox) for sandbox in ids}
        for sandbox in ids:
            await stage.ledger.request_delete(sandbox)
        await eventually(all_in(stage, ids, State.DELETED), 10)
        assert stage.provider.alive() == set()
        stage.recount.check()
        # Neither log gives a token away.
        for module in ("rq_worker", "loops"):
            assert not any(token in stage.log(module) for token in daemon.tokens)


async def test_a_worker_killed_in_the_middle_of_creates_loses_none(valkey: Valkey) -> None:
    """B125: SIGKILL while 16 are being made; the next worker finishes them under the same ids, each made once."""
    async with backstage(valkey, "loops") as (stage, _daemon):
        stage.provider.cue(create_seconds=0.4)
        worker = stage.start("rq_worker")
        ids = await create(stage, 40)
        await eventually(lambda: len(stage.provider.calls("create")) >= 5)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        stage.start("rq_worker")
        await eventually(all_in(stage, ids, State.READY), 25)
        assert Counter(stage.provider.calls("made")) == Counter(ids)
        assert max(record.attempts for record in await stage.ledger.get_many(ids) if record) == 2


async def test_a_create_that_kills_its_worker_fails_and_the_others_finish(valkey: Valkey) -> None:
    """B130: each worker that touches it dies; it uses up its own attempts, not those of the fifty beside it."""
    async with backstage(valkey, "loops", CLAIM_SECONDS="0.7") as (stage, _daemon):
        stage.provider.cue(poison=["poison"], create_seconds=0.05)
        [poison] = await create(stage, 1, labels={"cue": "poison"})
        others = await create(stage, 50)
        worker = stage.start("rq_worker")
        deaths = 0

        async def done() -> bool:
            nonlocal worker, deaths
            if worker.poll() is not None:
                deaths += 1
                worker = stage.start("rq_worker")
            return set(await stage.states([poison, *others])) <= {State.READY, State.FAILED}

        await eventually(done, 40)
        record = await stage.ledger.get(poison)
        assert record is not None and (record.state, record.reason) == (State.FAILED, Reason.BACKEND_ERROR)
        assert deaths <= 4
        assert set(await stage.states(others)) == {State.READY}


async def test_the_loops_killed_lose_nothing(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker") as (stage, _daemon):
        stage.provider.cue(delete_seconds=0.3)
        loops = stage.start("loops")
        ids = await create(stage, 30)
        await eventually(all_in(stage, ids, State.READY))
        for sandbox in ids:
            await stage.ledger.request_delete(sandbox)
        more = await create(stage, 10)
        await eventually(lambda: stage.provider.calls("delete"))
        loops.send_signal(signal.SIGKILL)
        loops.wait()
        stage.start("loops")
        await eventually(all_in(stage, more, State.READY))
        # What was in the middle of being removed comes up again when its cleanup claim lapses.
        prefix = stage.recount.prefix
        for pending in stage.recount.zset("clean:urgent"):
            stage.recount.client.zadd(f"{prefix}clean:urgent", {pending: 1}, xx=True)
        await eventually(all_in(stage, ids, State.DELETED))
        assert stage.provider.alive() == set(more)


async def test_sigterm_ends_both_soon_and_a_stopped_worker_leaves_its_creates_to_the_next(
    valkey: Valkey,
) -> None:
    async with backstage(valkey) as (stage, _daemon):
        stage.provider.cue(create_seconds=30)
        worker, loops = stage.start("rq_worker"), stage.start("loops")
        ids = await create(stage, 3)
        await eventually(lambda: len(stage.provider.calls("create")) == 3)
        await eventually(lambda: "leader.won" in stage.log("loops"))
        started = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        loops.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 6) == 0, stage.log("rq_worker")
        assert await asyncio.to_thread(loops.wait, 6) == 0, stage.log("loops")
        assert time.monotonic() - started < 5
        stage.provider.cue()
        stage.start("rq_worker")
        stage.start("loops")
        await eventually(all_in(stage, ids, State.READY))


async def test_a_slow_create_outlasts_its_job_and_delays_nobody(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops", JOB_SECONDS="0.5") as (stage, _daemon):
        stage.provider.cue(create_seconds=5)
        [slow] = await create(stage, 1)
        await eventually(lambda: stage.provider.calls("create"))
        stage.provider.cue()
        for _ in range(3):
            quick = await create(stage, 2)
            await eventually(all_in(stage, quick, State.READY), 3)
            await asyncio.sleep(0.4)
        assert await stage.states([slow]) == [State.CREATING]
        await eventually(all_in(stage, [slow], State.READY), 10)
        record = await stage.ledger.get(slow)
        assert record is not None and record.attempts == 1


async def test_one_tenants_slow_creates_leave_a_place_for_anothers_first(valkey: Valkey) -> None:
    """Sixty that hang in an image's import fill the window; a single create of somebody else is usable at once all the same."""
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        stage.provider.cue(create_seconds=20)
        await create(stage, 60, tenant="big")
        await eventually(lambda: len(stage.provider.calls("create")) >= 32, 10)
        stage.provider.cue()
        [single] = await create(stage, 1, tenant="small")
        await eventually(all_in(stage, [single], State.READY), 1.5)


async def test_a_lost_wake_up_is_made_again(valkey: Valkey) -> None:
    async with backstage(valkey, "loops") as (stage, _daemon):
        [sandbox] = await create(stage, 1)
        # As if the job had been taken by a worker that died before it ran a line, and the marker had run out.
        stage.recount.client.delete(
            f"rq:queue:{stage.settings.redis.namespace}-provision", f"{stage.recount.prefix}wake"
        )
        stage.start("rq_worker")
        await eventually(all_in(stage, [sandbox], State.READY))


async def test_deleted_while_it_is_created_is_gone_afterwards(valkey: Valkey) -> None:
    """B079: accepted at once, never back, and what the late create made is removed."""
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        stage.provider.cue(create_seconds=2.0)
        [sandbox] = await create(stage, 1)
        await eventually(lambda: stage.provider.calls("create"))
        record = await stage.ledger.request_delete(sandbox)
        assert (record.state, record.reclaim) == (State.DELETING, Reclaim.CANCELLED)
        await eventually(all_in(stage, [sandbox], State.DELETED), 10)
        await asyncio.sleep(0.5)
        assert stage.provider.alive() == set()


async def test_a_failing_delete_is_repeated_until_it_works(valkey: Valkey) -> None:
    """B112: the record says deleting until the backend confirms."""
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        stage.provider.cue(delete_fails=2)
        [sandbox] = await create(stage, 1)
        await eventually(all_in(stage, [sandbox], State.READY))
        await stage.ledger.request_delete(sandbox)
        await eventually(lambda: len(stage.provider.calls("delete")) == 2)
        assert await stage.states([sandbox]) == [State.DELETING]
        await eventually(all_in(stage, [sandbox], State.DELETED), 10)
        assert stage.provider.calls("delete").count(sandbox) == 3


async def test_backend_errors_are_typed_or_retried(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        stage.provider.cue(fail={"bad": ["image_invalid", False, 9], "flaky": ["backend_error", True, 1]})
        [bad] = await create(stage, 1, labels={"cue": "bad"})
        [flaky] = await create(stage, 1, labels={"cue": "flaky"})
        await eventually(all_in(stage, [bad], State.FAILED), 10)
        await eventually(all_in(stage, [flaky], State.READY), 15)
        record = await stage.ledger.get(bad)
        assert record is not None and record.reason == Reason.IMAGE_INVALID and record.attempts == 1


async def test_what_never_answers_the_probe_fails_typed(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops", READY_SECONDS_MAX="1") as (stage, daemon):
        daemon.exit_code = 127
        [sandbox] = await create(stage, 1)
        await eventually(all_in(stage, [sandbox], State.FAILED), 10)
        record = await stage.ledger.get(sandbox)
        assert record is not None and record.reason == Reason.DAEMON_UNREADY and "127" in str(record.detail)
        await eventually(lambda: not stage.provider.alive())


async def test_what_vanishes_fails_and_orphans_go_only_when_the_ledger_can_be_trusted(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        [lost, kept] = await create(stage, 2)
        await eventually(all_in(stage, [lost, kept], State.READY))
        stage.provider.lose(lost)
        await eventually(all_in(stage, [lost], State.FAILED), 10)
        record = await stage.ledger.get(lost)
        assert record is not None and record.reason in (Reason.EXITED, Reason.DAEMON_LOST)

        now = int(time.time() * 1000)
        ancient, fresh = new_sandbox_id(), new_sandbox_id()
        stage.provider.put(ancient, now - 3_600_000)
        stage.provider.put(fresh, now)
        await eventually(lambda: fresh not in stage.provider.alive(), 10)
        assert stage.provider.alive() == {kept, ancient}, "what is older than this ledger is not its to judge"
        await eventually(lambda: _orphans(stage, now=1, reclaimed=1))
        assert (await stage.ledger.reclaims()).items[0].reclaim == Reclaim.ORPHAN


async def _orphans(stage: Backstage, *, now: int, reclaimed: int) -> bool:
    orphans = (await stage.ledger.stats()).orphans
    return (orphans.now, orphans.reclaimed) == (now, reclaimed)


async def test_an_emptied_redis_deletes_nothing_that_is_alive(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        ids = await create(stage, 10)
        await eventually(all_in(stage, ids, State.READY))
        for key in stage.recount.client.scan_iter(f"{stage.recount.prefix}*"):
            stage.recount.client.delete(key)
        await eventually(lambda: "lost" in stage.log("loops"))
        await asyncio.sleep(2.5)
        assert stage.provider.alive() == set(ids)
        # And it goes on working.
        more = await create(stage, 3)
        await eventually(all_in(stage, more, State.READY))


async def test_a_redis_restart_in_a_burst_loses_nothing() -> None:
    """B127: killed with SIGKILL and started again on its append-only file, three times."""
    with tempfile.TemporaryDirectory(prefix="sm-v-") as folder:
        process, server = start_valkey(Path(folder))
        try:
            async with backstage(server, "rq_worker", "loops") as (stage, _daemon):
                run, _ = await stage.ledger.create_run(new_run_id(), "a", lease_seconds=60)
                ids: list[str] = []
                for _ in range(3):
                    ids += await create(stage, 20, run=run.id)
                    await asyncio.sleep(0.15)
                    process.kill()
                    process.wait()
                    await asyncio.sleep(0.5)
                    process, _server = start_valkey(Path(folder))
                await eventually(all_in(stage, ids, State.READY), 40)
                assert Counter(stage.provider.calls("made")) == Counter(ids)
                await stage.ledger.end_run(run.id)
                await eventually(all_in(stage, ids, State.DELETED), 40)
                assert stage.provider.alive() == set()
                stage.recount.client = redis.Redis.from_url(server.url, decode_responses=True)
                stage.recount.check()
                assert "Traceback" not in stage.log("loops")
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("what", ["expired", "hung_up"])
async def test_leases_end_within_a_second_or_so(valkey: Valkey, what: str) -> None:
    async with backstage(valkey, "rq_worker", "loops", HOLD_SECONDS="1") as (stage, _daemon):
        ids = await create(stage, 20, lease=1.0, waiting=what == "hung_up")
        started = time.monotonic()
        await eventually(all_in(stage, ids, State.DELETED, State.DELETING), 5)
        await eventually(lambda: not stage.provider.alive(), 5)
        assert time.monotonic() - started < 5
        reclaims = {entry.reclaim for entry in (await stage.ledger.reclaims()).items}
        assert reclaims == {Reclaim.LEASE_EXPIRED if what == "expired" else Reclaim.HUNG_UP}


async def test_a_redis_that_is_away_for_a_while_costs_no_create_its_attempts() -> None:
    """What the backend is at work on goes on meanwhile, and is neither begun again nor counted as a worker's death."""
    with tempfile.TemporaryDirectory(prefix="sm-v-") as folder:
        process, server = start_valkey(Path(folder))
        try:
            async with backstage(server, "rq_worker", "loops", CLAIM_SECONDS="1") as (stage, _daemon):
                stage.provider.cue(create_seconds=4)
                ids = await create(stage, 5)
                await eventually(lambda: len(stage.provider.calls("create")) == 5)
                process.kill()
                process.wait()
                await asyncio.sleep(1.5)
                process, _server = start_valkey(Path(folder))
                await eventually(all_in(stage, ids, State.READY), 20)
                assert Counter(stage.provider.calls("create")) == Counter(ids)
                assert {record.attempts for record in await stage.ledger.get_many(ids) if record} == {1}
        finally:
            process.kill()
            process.wait()


async def test_a_busy_backend_uses_up_no_attempts(valkey: Valkey) -> None:
    """Refused three times with two attempts allowed, and still made."""
    async with backstage(valkey, "rq_worker", "loops", ATTEMPTS_MAX="2") as (stage, _daemon):
        stage.provider.cue(fail={"busy": ["backend_error", True, 3, True]})
        [sandbox] = await create(stage, 1, labels={"cue": "busy"})
        await eventually(all_in(stage, [sandbox], State.READY, State.FAILED), 20)
        assert await stage.states([sandbox]) == [State.READY]
        assert stage.provider.calls("create").count(sandbox) == 4


async def test_claims_shorter_than_a_beat_are_kept(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops", CLAIM_SECONDS="0.5") as (stage, _daemon):
        stage.provider.cue(create_seconds=3)
        ids = await create(stage, 3)
        await eventually(all_in(stage, ids, State.READY), 20)
        assert Counter(stage.provider.calls("create")) == Counter(ids)


async def test_what_nobody_could_probe_gets_its_chance(valkey: Valkey) -> None:
    """The loops were away for longer than a sandbox may take; that is not the sandbox's fault."""
    async with backstage(valkey, "rq_worker", READY_SECONDS_MAX="0.5") as (stage, daemon):
        daemon.seconds = 0.3
        [sandbox] = await create(stage, 1)
        await eventually(all_in(stage, [sandbox], State.STARTING))
        await asyncio.sleep(0.6)
        stage.start("loops")
        await eventually(all_in(stage, [sandbox], State.READY, State.FAILED), 15)
        assert await stage.states([sandbox]) == [State.READY]


async def test_what_is_wrong_in_the_ledger_is_said_mended_and_stops_nobody(valkey: Valkey) -> None:
    async with backstage(valkey, "rq_worker", "loops") as (stage, _daemon):
        [kept, unheld] = await create(stage, 2, lease=2.0)
        await eventually(all_in(stage, [kept, unheld], State.READY))
        client, prefix = stage.recount.client, stage.recount.prefix
        await stage.ledger.renew(kept, 60)
        client.zadd(f"{prefix}due", {new_sandbox_id(): 1})
        client.zrem(f"{prefix}due", unheld)
        await eventually(all_in(stage, [unheld], State.DELETED), 10, "its lease has no end")
        assert await stage.states([kept]) == [State.READY]
        await eventually(lambda: "ledger.anomaly" in stage.log("loops"))
        stage.recount.check()


class Breaking(FakeProvider):
    """Raises what no provider should, or never answers."""

    def __init__(self, folder: Path, hang: bool) -> None:
        super().__init__(folder)
        self._hang = hang
        self.bad = ""

    async def delete(self, sandbox_id: str) -> None:
        if sandbox_id == self.bad:
            if self._hang:
                await asyncio.Event().wait()
            raise RuntimeError("as no provider should")
        await super().delete(sandbox_id)


@pytest.mark.parametrize("hang", [False, True])
async def test_an_orphan_that_cannot_be_removed_does_not_keep_the_comparison_from_its_end(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, hang: bool
) -> None:
    monkeypatch.setattr("worker.reconcile._REMOVE_SECONDS", 0.2)
    async with backstage(valkey) as (stage, _daemon):
        provider = Breaking(stage.provider.folder, hang)
        token = await stage.ledger.leader("loops", "me", 60_000)
        assert token is not None
        reconciler = Reconciler(stage.ledger, provider, stage.settings, "loops", token)
        await reconciler.compare()
        provider.bad, *others = [new_sandbox_id() for _ in range(4)]
        now = await stage.ledger.now_ms()
        for sandbox in (provider.bad, *others):
            provider.put(sandbox, now)
        await asyncio.sleep(0.6)
        await reconciler.compare()
        await reconciler.compare()
        assert provider.alive() == {provider.bad}
        orphans = (await stage.ledger.stats()).orphans
        assert (orphans.now, orphans.reclaimed) == (1, 3)


async def test_a_removal_that_hangs_gives_its_place_to_others(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.reclaim._REMOVE_SECONDS", 0.3)
    async with backstage(valkey, "rq_worker", DELETE_CONCURRENCY="1") as (stage, _daemon):
        provider = Breaking(stage.provider.folder, hang=True)
        provider.bad, other = ids = await create(stage, 2)
        await eventually(lambda: len(stage.provider.alive()) == 2)
        await eventually(all_in(stage, ids, State.STARTING))
        for sandbox in ids:
            await stage.ledger.request_delete(sandbox)
        async with EventFeed(stage.ledger) as feed:
            reclaimer = asyncio.create_task(Reclaimer(stage.ledger, feed, provider, stage.settings).run())
            await eventually(all_in(stage, [other], State.DELETED), 5)
            reclaimer.cancel()
            await asyncio.wait([reclaimer])
        assert await stage.states([provider.bad]) == [State.DELETING]


async def test_a_leader_whose_duties_ended_takes_them_up_again(valkey: Valkey) -> None:
    """Whatever ended them, a cancellation that went astray included: or it would keep the lead and do nothing, for ever."""
    async with backstage(valkey) as (stage, _daemon):
        loops = Loops(stage.ledger, stage.provider, b"x" * 32, stage.settings)
        begun: list[int] = []

        async def duties(token: int) -> None:
            begun.append(token)
            if len(begun) == 1:
                raise asyncio.CancelledError
            if len(begun) == 2:
                raise RuntimeError("astray")
            await asyncio.Event().wait()

        loops._duties = duties  # type: ignore[method-assign]
        stop = asyncio.Event()
        running = asyncio.create_task(loops.run(stop))
        await eventually(lambda: len(begun) == 3, 5)
        stop.set()
        await asyncio.wait_for(running, 2)
        assert not await stage.ledger.is_led("loops")


async def test_a_leader_that_cannot_ask_stops_when_its_time_is_over(valkey: Valkey) -> None:
    """Redis hangs for longer than the lead lasts: by then another may lead."""
    async with backstage(valkey) as (stage, _daemon):
        loops = Loops(stage.ledger, stage.provider, b"x" * 32, stage.settings)
        ended: list[float] = []

        async def duties(token: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(time.monotonic())

        loops._duties = duties  # type: ignore[method-assign]
        stop = asyncio.Event()
        running = asyncio.create_task(loops.run(stop))
        await eventually(lambda: stage.ledger.is_led("loops"), 5)
        await asyncio.sleep(0.1)
        stage.recount.client.execute_command("CLIENT", "PAUSE", "2500", "ALL")
        paused = time.monotonic()
        await eventually(lambda: ended, 4)
        assert ended[0] - paused < 1.5, "the lead lasts 1 s"
        stop.set()
        await asyncio.wait_for(running, 8)


async def test_removals_in_flight_are_confirmed_before_the_loops_end(valkey: Valkey) -> None:
    """Or each restart would leave them to the lapse of their cleanup claims, half a minute later."""
    async with backstage(valkey, "rq_worker") as (stage, _daemon):
        stage.provider.cue(delete_seconds=1.0)
        loops = stage.start("loops")
        ids = await create(stage, 3)
        await eventually(all_in(stage, ids, State.READY))
        for sandbox in ids:
            await stage.ledger.request_delete(sandbox)
        await eventually(lambda: len(stage.provider.calls("delete")) == 3)
        loops.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(loops.wait, 6) == 0
        assert await stage.states(ids) == [State.DELETED] * 3


async def test_a_redis_that_may_evict_is_complained_about() -> None:
    """One that drops keys when it is full drops sandboxes."""
    with tempfile.TemporaryDirectory(prefix="sm-v-") as folder:
        process, server = start_valkey(Path(folder))
        try:
            async with backstage(server) as (stage, _daemon):
                stage.recount.client.config_set("maxmemory-policy", "allkeys-lru")
                stage.start("loops")
                await eventually(lambda: "ledger.may_be_evicted" in stage.log("loops"))
        finally:
            process.kill()
            process.wait()
