"""The restart back-off: quick after one crash, capped, and forgotten after a healthy while."""

from __future__ import annotations

from worker.up.backoff import FIRST_SECONDS, HEALTHY_SECONDS, MAX_SECONDS, Backoff


def test_doubles_from_the_first_delay_to_the_cap() -> None:
    backoff = Backoff()
    delays = [backoff.delay(0.1) for _ in range(40)]
    assert delays[:4] == [FIRST_SECONDS * 2**n for n in range(4)]
    assert delays[-1] == MAX_SECONDS
    assert delays == sorted(delays)


def test_a_healthy_while_forgets_earlier_deaths() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay(0.1)
    assert backoff.delay(HEALTHY_SECONDS) == FIRST_SECONDS
    assert backoff.failures == 1
