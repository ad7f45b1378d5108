"""When Python looks for reference cycles.

With ten thousand waiting creates there are a million objects, and one full look at them stops the event loop for more than a
second, in which no probe is answered (tried: 1.7 s, against 0.09 s without). So what start-up made is taken out of the count, full
looks are not left to chance, and `tidy` does them when few requests are in flight, or late rather than never.
"""

from __future__ import annotations

import gc
import time
from typing import Final

# Young cycles, as failed requests leave them, are found after so many new objects; a look at those takes a few milliseconds.
YOUNG: Final = 20_000
MIDDLE: Final = 50
# In effect never by itself.
FULL: Final = 100_000
TIDY_SECONDS: Final = 60.0
TIDY_SECONDS_MAX: Final = 900.0
QUIET_REQUESTS: Final = 200


class Collector:
    """Made at the end of start-up."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, FULL)
        self._last = time.monotonic()

    def tidy(self, in_flight: int) -> None:
        """A full look, when it is due and few would feel it."""
        age = time.monotonic() - self._last
        if age > TIDY_SECONDS_MAX or (age > TIDY_SECONDS and in_flight <= QUIET_REQUESTS):
            gc.collect()
            self._last = time.monotonic()
