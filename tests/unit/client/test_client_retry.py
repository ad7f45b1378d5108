"""Repeats: jittered, capped, obeying Retry-After, and over in bounded time."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sandman.retry import RetryPolicy


@given(st.integers(), st.lists(st.one_of(st.none(), st.floats(0, 60)), max_size=200))
def test_delays_are_bounded_and_their_sum_too(seed: int, hints: list[float | None]) -> None:
    policy = RetryPolicy(total_seconds=60, base_seconds=0.1, cap_seconds=5, retry_after_cap_seconds=30)
    now = 0.0
    backoff = policy.start(lambda: now, random.Random(seed))
    for number, hint in enumerate(hints):
        delay = backoff.next_delay(hint)
        if delay is None:
            assert (hint or 0) > 30 or now > 60 - 5 - (hint or 0) - 0.001
            return
        assert (hint or 0) <= delay <= (hint or 0) + min(5, 0.1 * 2**number)
        now += delay
        assert now < 60


def test_zero_total_turns_repeats_off() -> None:
    assert RetryPolicy(total_seconds=0).start().next_delay() is None


def test_two_clients_do_not_wait_alike() -> None:
    policy = RetryPolicy()
    one, other = policy.start(rng=random.Random(1)), policy.start(rng=random.Random(2))
    assert [one.next_delay() for _ in range(5)] != [other.next_delay() for _ in range(5)]
