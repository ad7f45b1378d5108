"""How long to wait before a child that died is started again: arithmetic only, no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 0.2
"""A single crash costs hardly more than the start itself."""
MAX_SECONDS = 5.0
"""With the time to start, an API that keeps dying is away for less than the 10 s after which creates that nobody waits for are taken
back. What cannot live at all is tried often enough to be back soon after its cause is gone."""
HEALTHY_SECONDS = 5.0
"""What cannot live dies while it starts, within about 3 s. A child that lived longer had started well: what killed it is news, and
waiting for longer each time would only prolong the outage."""


@dataclass
class Backoff:
    failures: int = 0

    def delay(self, lived_seconds: float) -> float:
        """Call once per death; answers the seconds to wait before the next start."""
        if lived_seconds >= HEALTHY_SECONDS:
            self.failures = 0
        self.failures += 1
        return float(min(MAX_SECONDS, FIRST_SECONDS * 2 ** min(self.failures - 1, 16)))
