"""How long to wait before a child that died is started again: arithmetic only, no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 0.2
"""A single crash costs hardly more than the start itself."""
MAX_SECONDS = 10.0
"""A child that cannot live is tried often enough to be back soon after its cause is gone, and costs no more than 1 % of a core."""
HEALTHY_SECONDS = 30.0
"""A child that lived this long had started well: what killed it is news, not the same failure again."""


@dataclass
class Backoff:
    failures: int = 0

    def delay(self, lived_seconds: float) -> float:
        """Call once per death; answers the seconds to wait before the next start."""
        if lived_seconds >= HEALTHY_SECONDS:
            self.failures = 0
        self.failures += 1
        return float(min(MAX_SECONDS, FIRST_SECONDS * 2 ** min(self.failures - 1, 16)))
