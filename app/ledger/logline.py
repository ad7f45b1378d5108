"""One log event as a line for a person, in the shape of the supervisor's own lines; for log collectors there is JSON.

Which of the two is asked for by SANDMAN_LOG_FORMAT. It lies here because API and worker share it and share nothing else. structlog's
own console renderer is no choice: it brings a rich traceback printer that shows local variables, and those hold tokens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

SHOWN_ELSEWHERE = frozenset({"event", "level", "timestamp", "process", "logger", "exception"})


def text_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get("SANDMAN_LOG_FORMAT") == "text"


def text_line(event: MutableMapping[str, Any], *, process: str = "") -> str:
    """`12:00:01 worker   warning: worker.no_redis error=ConnectionError`"""
    name = str(event.get("process") or process)
    level = str(event.get("level", "info"))
    words = [
        time.strftime("%H:%M:%S"),
        name.ljust(8),
        *([f"{level}:"] if level != "info" else []),
        str(event.get("event", "")),
    ]
    words += [f"{key}={_shown(value)}" for key, value in event.items() if key not in SHOWN_ELSEWHERE]
    line = " ".join(words)
    if event.get("exception"):
        line += "\n" + str(event["exception"])
    return line


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text
