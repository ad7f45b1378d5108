"""Many open pages share one answer (hard case B139); failures and cancelled waiters spoil it for nobody."""

from __future__ import annotations

import asyncio

import pytest

from app.console.shared import ENTRIES_MAX, Shared


class Source:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False
        self.now = 0.0

    async def make(self, key: str) -> str:
        self.calls.append(key)
        await self.gate.wait()
        if self.broken:
            raise RuntimeError("away")
        return f"{key}{len(self.calls)}"

    def shared(self) -> Shared[str, str]:
        return Shared(self.make, age_seconds=1.0, clock=lambda: self.now)


async def test_those_who_ask_at_once_share_one_reading() -> None:
    source = Source()
    source.gate.clear()
    shared = source.shared()
    waiting = [asyncio.create_task(shared.get("a")) for _ in range(20)]
    await asyncio.sleep(0)
    source.gate.set()
    assert set(await asyncio.gather(*waiting)) == {"a1"}
    assert source.calls == ["a"]


async def test_an_answer_is_used_until_it_is_too_old() -> None:
    source = Source()
    shared = source.shared()
    assert await shared.get("a") == "a1"
    source.now = 0.99
    assert await shared.get("a") == "a1"
    source.now = 1.0
    assert await shared.get("a") == "a2"


async def test_a_failure_reaches_who_waits_and_is_not_kept() -> None:
    source = Source()
    source.broken = True
    shared = source.shared()
    with pytest.raises(RuntimeError):
        await shared.get("a")
    source.broken = False
    assert await shared.get("a") == "a2"


async def test_one_waiter_that_leaves_does_not_take_the_answer_from_the_others() -> None:
    source = Source()
    source.gate.clear()
    shared = source.shared()
    leaving, staying = asyncio.create_task(shared.get("a")), asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0)
    leaving.cancel()
    source.gate.set()
    assert await staying == "a1"


async def test_the_answers_kept_are_bounded() -> None:
    source = Source()
    shared = source.shared()
    for number in range(ENTRIES_MAX + 10):
        await shared.get(str(number))
    assert len(shared._entries) == ENTRIES_MAX


async def test_answers_that_are_too_old_are_not_held() -> None:
    source = Source()
    shared = source.shared()
    for number in range(9):
        await shared.get(str(number))
    source.now = 2.0
    await shared.get("x")
    assert list(shared._entries) == ["x"]


async def test_closing_ends_what_is_under_way() -> None:
    source = Source()
    source.gate.clear()
    shared = source.shared()
    waiting = asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
