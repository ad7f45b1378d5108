"""The run's report from its stored numbers: pure arithmetic, no I/O.

Delays are kept as histograms whose buckets are 10 % wide, so that a percentile is right to 5 % for any number of samples in a few
hundred bytes; sums and maxima are exact. The scripts use the same buckets (`sample` in prelude.lua).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from app.ledger.model import ExecSample, Run

_GROWTH = 1.1
PHASES = ("queued", "creating", "starting", "total")
"""Time spent in each state on the way up; total is from the create until proven usable."""
PERCENTILES = (50, 90, 99)


def bucket_of(ms: float) -> int:
    return 0 if ms < 1 else math.floor(math.log(ms) / math.log(_GROWTH)) + 1


def bucket_value(bucket: int) -> float:
    """The geometric middle of a bucket, in ms."""
    return 0.5 if bucket == 0 else _GROWTH ** (bucket - 0.5)


def percentile(histogram: dict[int, int], percent: float, maximum: float) -> float:
    """The smallest value that at least `percent` of the samples do not exceed, to the width of a bucket."""
    total = sum(histogram.values())
    rank = math.ceil(total * percent / 100)
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return min(bucket_value(bucket), maximum)
    return 0.0


def _distribution(numbers: dict[str, str], phase: str) -> dict[str, float | int | None]:
    prefix = f"h:{phase}:"
    histogram = {int(name[len(prefix) :]): int(n) for name, n in numbers.items() if name.startswith(prefix)}
    count = sum(histogram.values())
    if not count:
        return {"count": 0, **dict.fromkeys(("mean", "max", *(f"p{p}" for p in PERCENTILES)))}
    maximum = float(numbers.get(f"m:{phase}", "0"))
    figures: dict[str, float | int | None] = {
        "count": count,
        "mean": round(float(numbers.get(f"s:{phase}", "0")) / count / 1000, 4),
        "max": round(maximum / 1000, 4),
    }
    for p in PERCENTILES:
        figures[f"p{p}"] = round(percentile(histogram, p, maximum) / 1000, 4)
    return figures


def _counts(numbers: dict[str, str], prefix: str) -> dict[str, int]:
    return {name[len(prefix) :]: int(n) for name, n in sorted(numbers.items()) if name.startswith(prefix)}


def build_report(run: Run, numbers: dict[str, str], now_ms: int) -> dict[str, Any]:
    """All times in seconds. Usage counts each sandbox from its placement in the backend until it was given up, those that still
    live up to now."""

    def number(name: str) -> float:
        return float(numbers.get(name, "0"))

    elapsed = (now_ms - number("origin")) / 1000
    open_seconds = max(0.0, number("open:n") * elapsed - number("open:t"))
    open_cpu = max(0.0, number("open:cpu") * elapsed - number("open:cpu_t"))
    open_gib = max(0.0, number("open:gib") * elapsed - number("open:gib_t"))
    return {
        "run": run.id,
        "name": run.name,
        "tenant": run.tenant,
        "state": run.state,
        "ended_because": None if run.reclaim is None else str(run.reclaim),
        "created_at": run.created_ms / 1000,
        "ended_at": None if run.ended_ms is None else run.ended_ms / 1000,
        "wall_seconds": round(((run.ended_ms or now_ms) - run.created_ms) / 1000, 3),
        "sandboxes": {
            "created": int(number("created")),
            "ready": int(number("ready")),
            "live": run.live,
            "peak": int(number("peak")),
            "failed": sum(_counts(numbers, "f:").values()),
        },
        "failures": _counts(numbers, "f:"),
        "reclaimed": _counts(numbers, "r:"),
        "usage": {
            "sandbox_seconds": round(number("sandbox_seconds") + open_seconds, 3),
            "cpu_seconds": round(number("cpu_seconds") + open_cpu, 3),
            "memory_gib_seconds": round(number("gib_seconds") + open_gib, 3),
        },
        "delays": {phase: _distribution(numbers, phase) for phase in PHASES},
        "execs": {
            "count": sum(_counts(numbers, "x:").values()),
            "outcomes": _counts(numbers, "x:"),
            "seconds": _distribution(numbers, "exec"),
        },
    }


def report_rows(report: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The same report as (dotted name, value) pairs, for CSV."""
    rows: list[tuple[str, str]] = []
    for name, value in report.items():
        if isinstance(value, dict):
            rows += report_rows(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, "" if value is None else str(value)))
    return rows


def exec_updates(samples: Iterable[ExecSample]) -> dict[str, list[str | int | float]]:
    """Per run, what a batch of commands adds: triples for record_execs.lua."""
    totals: dict[str, dict[tuple[str, str], float]] = {}
    for sample in samples:
        if sample.run is None:
            continue
        ms = sample.seconds * 1000
        own = totals.setdefault(sample.run, {})
        for field, kind, value in (
            (f"x:{sample.outcome}", "i", 1),
            (f"h:exec:{bucket_of(ms)}", "i", 1),
            ("s:exec", "f", ms),
        ):
            own[field, kind] = own.get((field, kind), 0) + value
        own["m:exec", "m"] = max(own.get(("m:exec", "m"), 0), ms)
    return {
        run: [part for (field, kind), value in own.items() for part in (field, kind, f"{value:.10g}")]
        for run, own in totals.items()
    }
