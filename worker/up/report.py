"""What the supervisor says, for a person (`text`) or for a log collector (`json`): a line each on stderr, the banner on stdout.

Children write their own lines to the same stderr, which they inherit: a supervisor that is stopped or killed never blocks or
breaks them, as it would if it stood between.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Report:
    format: str

    def say(self, event: str, text: str, **fields: object) -> None:
        """`event` is the stable name, `text` the sentence; `fields` only go into the json form."""
        if self.format == "json":
            line = json.dumps(
                {"ts": round(time.time(), 3), "process": "up", "event": event, "message": text, **fields}
            )
        else:
            line = f"{time.strftime('%H:%M:%S')} up       {text}"
        _write(sys.stderr, line)

    def banner(self, lines: list[str]) -> None:
        """Shown once, when everything runs. Never part of the json form: it holds the key."""
        if self.format == "text":
            width = max(len(line) for line in lines)
            rule = "─" * (width + 2)
            _write(
                sys.stdout,
                "\n".join([f"┌{rule}┐", *(f"│ {line.ljust(width)} │" for line in lines), f"└{rule}┘"]),
            )


def _write(stream: TextIO, line: str) -> None:
    # One write each: lines of several processes do not mix in the middle.
    try:
        stream.write(line + "\n")
        stream.flush()
    except (OSError, ValueError):
        pass  # A terminal that is gone is no reason to stop holding sandboxes.
