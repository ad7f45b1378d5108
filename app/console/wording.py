"""Figures, times and foreign text as an operator reads them.

Foreign text (image names, labels, error messages) may hold control characters and right-to-left overrides that change how the
rest of a line reads. Escaping is the template's job; `plain` is what makes such text *honest*: one line, bounded, nothing
invisible.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

ELLIPSIS: Final = "…"
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

# Categories that draw nothing or reorder their neighbours: controls, formats (bidi marks), surrogates, private use, separators.
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def span(seconds: float) -> str:
    """A duration in at most two units: 0.4s, 12s, 3m 05s, 2h 14m, 3d 04h. Negative durations read as 0s."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s" if seconds >= 0.05 else "0s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m {whole % MINUTE:02d}s"
    if whole < DAY:
        return f"{whole // HOUR}h {whole % HOUR // MINUTE:02d}m"
    return f"{whole // DAY}d {whole % DAY // HOUR:02d}h"


def count(number: int) -> str:
    """An integer with thousands grouped: 10,000."""
    return f"{number:,}"


def rate(per_second: float) -> str:
    """A rate with as many digits as help: 120/s, 12.5/s, 0.25/s."""
    if per_second >= 100:
        return f"{per_second:,.0f}/s"
    if per_second >= 1:
        return f"{per_second:.1f}/s"
    return f"{per_second:.2f}/s"


def clock(at_ms: int) -> str:
    """Time of day, UTC: an operator compares it with logs, which are UTC too."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")


def iso(at_ms: int) -> str:
    """For a `datetime` attribute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(text: str, limit: int = 200) -> str:
    """One bounded line without invisible characters; each of those becomes its visible escape."""
    shown: list[str] = []
    for character in text[: limit + 1]:
        if unicodedata.category(character) in _INVISIBLE:
            point = ord(character)
            shown.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\u{point:04x}"))
        else:
            shown.append(character)
    if len(text) > limit:
        return "".join(shown[:limit]) + ELLIPSIS
    return "".join(shown)


def phrase(word: str) -> str:
    """An identifier as words: lease_expired becomes "lease expired"."""
    return plain(word.replace("_", " "), 60)


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
