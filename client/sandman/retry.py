"""How long to wait before a repeat, and when to stop: pure arithmetic over a clock that is passed in.

Every delay is random over the full range ("full jitter"), so that a thousand clients thrown off by one restart do not come
back in one moment. The total time is the bound, not the number of tries: it is what a caller can reason about.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """When a call is repeated; which calls are is decided where they are made."""

    total_seconds: float = 60.0
    """From the first try on; a restart of the service takes 2-10 s. 0 turns retries off."""
    base_seconds: float = 0.1
    cap_seconds: float = 5.0
    retry_after_cap_seconds: float = 30.0
    """A Retry-After above this ends the call: its caller knows better what to do in half a minute."""

    def start(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> Backoff:
        return Backoff(self, clock, rng or _random)


_random = random.Random()


class Backoff:
    """The repeats of one call."""

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float], rng: random.Random) -> None:
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._ends = clock() + policy.total_seconds
        self.tries = 0

    def reset(self) -> None:
        """After progress (a connection that worked): count the total anew."""
        self._ends = self._clock() + self._policy.total_seconds
        self.tries = 0

    def next_delay(self, retry_after: float | None = None) -> float | None:
        """Seconds to sleep before the next try; None when it is time to give up."""
        policy = self._policy
        ceiling = min(policy.cap_seconds, policy.base_seconds * 2 ** min(self.tries, 32))
        self.tries += 1
        delay = self._rng.uniform(0, ceiling)
        if retry_after is not None:
            if retry_after > policy.retry_after_cap_seconds:
                return None
            # The jitter goes on top: never sooner than asked, and not all at that very moment.
            delay += retry_after
        if self._clock() + delay >= self._ends:
            return None
        return delay
