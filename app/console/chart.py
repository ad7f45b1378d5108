"""The chart of the last minutes as plain geometry: samples in, SVG path data and a table out.

The picture is stacked (ready, then starting, creating and queued), so that its outline is everything asked for and not yet gone. A
stretch without samples stays empty: nothing is drawn that was not observed. Text is left to HTML around the picture, because
the picture is stretched to its column and would stretch letters with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.console.wording import clock, count, iso

WIDTH: Final = 900
HEIGHT: Final = 200
# More than two missed samples are a hole, not jitter of the sampling task.
GAP_INTERVALS: Final = 2.5
# A lone sample is drawn this many units wide: one would vanish on a phone.
LONE_WIDTH: Final = 3.0
# Ceilings whose half is a whole number, so that the middle grid line has an honest label.
STEPS: Final = (2, 4, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Sample:
    at_ms: int
    ready: int
    starting: int
    queued: int
    creating: int = 0

    @property
    def total(self) -> int:
        return self.ready + self.starting + self.creating + self.queued


@dataclass(frozen=True, slots=True)
class Band:
    name: str
    path: str
    """Path data of the filled area; empty when the band never rises above zero."""


@dataclass(frozen=True, slots=True)
class Row:
    at: str
    at_iso: str
    ready: str
    starting: str
    queued: str


@dataclass(frozen=True, slots=True)
class Chart:
    bands: tuple[Band, ...]
    outline: str
    ceiling: int
    marks: tuple[str, ...]
    """Labels of the horizontal lines, from the top."""
    times: tuple[str, ...]
    """Labels of the time axis, from the left."""
    grid_x: tuple[float, ...]
    summary: str
    rows: tuple[Row, ...]
    """One reading a minute, newest first: the same facts for those who cannot see the picture."""


def ceiling_of(highest: int) -> int:
    """The smallest pleasant even ceiling that the highest value fits under."""
    scale = 1
    while True:
        for step in STEPS:
            if highest <= step * scale:
                return step * scale
        scale *= 10


def draw(samples: Sequence[Sample], *, now_ms: int, span_seconds: int, interval_seconds: float) -> Chart:
    """Draw what lies within the span; `samples` in order of time, extra ones outside the span are ignored."""
    start_ms = now_ms - span_seconds * 1000
    seen = [sample for sample in samples if start_ms <= sample.at_ms <= now_ms]
    ceiling = ceiling_of(max((sample.total for sample in seen), default=0))
    pieces = _pieces(seen, interval_seconds)

    def x(at_ms: float) -> float:
        return (at_ms - start_ms) / (span_seconds * 1000) * WIDTH

    def y(value: int) -> float:
        return HEIGHT - value / ceiling * HEIGHT

    def area(piece: list[Sample], low: list[int], high: list[int]) -> str:
        if not any(top > bottom for top, bottom in zip(high, low, strict=True)):
            return ""
        points = [(x(s.at_ms), y(top)) for s, top in zip(piece, high, strict=True)]
        points += [(x(s.at_ms), y(bottom)) for s, bottom in zip(reversed(piece), reversed(low), strict=True)]
        if len(piece) == 1:
            (left, upper), (_, lower) = points
            left = min(left, WIDTH - LONE_WIDTH)
            points = [(left, upper), (left + LONE_WIDTH, upper), (left + LONE_WIDTH, lower), (left, lower)]
        return _line(points) + "Z"

    ready, starting, creating, queued, outline = "", "", "", "", ""
    for piece in pieces:
        floor = [0] * len(piece)
        first = [s.ready for s in piece]
        second = [s.ready + s.starting for s in piece]
        third = [s.ready + s.starting + s.creating for s in piece]
        all_of_it = [s.total for s in piece]
        ready += area(piece, floor, first)
        starting += area(piece, first, second)
        creating += area(piece, second, third)
        queued += area(piece, third, all_of_it)
        if len(piece) > 1:
            outline += _line([(x(s.at_ms), y(s.total)) for s in piece])

    minutes = span_seconds // 60
    thirds = [minutes, minutes * 2 // 3, minutes // 3]
    return Chart(
        bands=(
            Band("ready", ready),
            Band("starting", starting),
            Band("creating", creating),
            Band("queued", queued),
        ),
        outline=outline,
        ceiling=ceiling,
        marks=(count(ceiling), count(ceiling // 2), "0"),
        times=(*(f"−{minute} min" for minute in thirds), "now"),
        grid_x=tuple(round(WIDTH * part / 3, 1) for part in (1, 2)),
        summary=_summary(seen, minutes),
        rows=_rows(seen),
    )


def _pieces(seen: Sequence[Sample], interval_seconds: float) -> list[list[Sample]]:
    pieces: list[list[Sample]] = []
    for sample in seen:
        if pieces and sample.at_ms - pieces[-1][-1].at_ms <= GAP_INTERVALS * interval_seconds * 1000:
            pieces[-1].append(sample)
        else:
            pieces.append([sample])
    return pieces


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _summary(seen: Sequence[Sample], minutes: int) -> str:
    if not seen:
        return f"No readings in the last {minutes} minutes."
    last = seen[-1]
    most = max(seen, key=lambda sample: sample.total)
    return (
        f"Last {minutes} minutes. Now {count(last.ready)} ready, {count(last.starting + last.creating)} starting, {count(last.queued)} queued. "
        f"Highest at {clock(most.at_ms)} UTC: {count(most.ready)} ready, {count(most.starting + most.creating)} starting, "
        f"{count(most.queued)} queued."
    )


def _rows(seen: Sequence[Sample]) -> tuple[Row, ...]:
    by_minute: dict[int, Sample] = {}
    for sample in seen:
        by_minute[sample.at_ms // 60_000] = sample
    return tuple(
        Row(clock(s.at_ms), iso(s.at_ms), count(s.ready), count(s.starting + s.creating), count(s.queued))
        for s in reversed(by_minute.values())
    )
