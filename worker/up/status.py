"""The line that tells what the service is doing: said only when its numbers have changed."""

from __future__ import annotations

from typing import Any

STATES = ("queued", "creating", "starting", "ready", "deleting")


class StatusLine:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The numbers of the last line, for the json form."""
        self._last: str | None = None
        self._silent = False

    def changed(self, stats: Any) -> str | None:
        """The new line, or None when it would repeat the last one. `stats` is the body of /v1/stats, None when there was none."""
        if not isinstance(stats, dict):
            # One missed answer is a restart of the API, which is said anyway; a second one is news.
            text = "the API does not answer" if self._silent else None
            self._silent = True
        else:
            self._silent = False
            text = self._describe(stats)
        if text is None or text == self._last:
            return None
        self._last = text
        return text

    def _describe(self, stats: dict[str, Any]) -> str:
        live = {state: _number(stats, "live", state) for state in STATES}
        orphans = _number(stats, "orphans", "now")
        self.fields = {**live, "peak": _number(stats, "concurrency", "peak"), "orphans": orphans}
        parts = [f"{count} {state}" for state, count in live.items() if count]
        text = "sandboxes: " + (" · ".join(parts) or "none")
        pacing = stats.get("pacing")
        if live["queued"] and isinstance(pacing, dict) and pacing.get("reason"):
            text += f" (pacing: {pacing['reason']})"
        if orphans:
            text += f" · {orphans} orphans"
        return text


def _number(stats: dict[str, Any], group: str, name: str) -> int:
    """0 for whatever is not as expected: a display must not end what it displays."""
    found = stats.get(group)
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) else 0
