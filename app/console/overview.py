"""What the overview says, worked out from the ledger's figures; everything in here is pure.

The templates only place these strings. All ages are differences to one `now_ms` (Redis time, like every time in a record), so
that a page never disagrees with itself or with a browser's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from app.console import wording
from app.console.chart import HEIGHT, WIDTH, Chart, Sample, draw
from app.console.settings import ConsoleSettings
from app.ledger.model import (
    Page,
    Reason,
    Reclaim,
    ReclaimEntry,
    Record,
    State,
    Stats,
    cause_of,
    is_sandbox_id,
)

ORDER: Final = (
    State.QUEUED,
    State.CREATING,
    State.STARTING,
    State.READY,
    State.DELETING,
    State.FAILED,
    State.DELETED,
)
LABELS_SHOWN: Final = 3

PACING_WORDS: Final = {
    "initial": "first rate, nothing learnt yet",
    "growing": "backend keeps up, growing",
    "throttled": "slowed: backend refuses or times out",
    "slow": "slowed: backend answers late",
    "steady": "steady at the highest rate",
}
RECLAIM_WORDS: Final = {
    Reclaim.DELETED: "deleted by caller",
    Reclaim.CANCELLED: "cancelled by caller",
    Reclaim.HUNG_UP: "caller hung up",
    Reclaim.LEASE_EXPIRED: "lease expired",
    Reclaim.LIFETIME: "lifetime reached",
    Reclaim.RUN_ENDED: "run ended",
    Reclaim.RUN_LEASE_EXPIRED: "run's lease expired",
    Reclaim.FAILED: "failed",
    Reclaim.ORPHAN: "orphan",
    Reclaim.SHUTDOWN: "service shut down",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The ledger's figures at one moment, for one scope; shared by every open page of that scope."""

    now_ms: int
    stats: Stats
    samples: Sequence[Sample]
    reclaims: Sequence[ReclaimEntry]


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: str
    notes: tuple[str, ...]
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Tab:
    state: str
    label: str
    count: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Live:
    label: str
    count: str
    band: str
    """Which band of the chart it is part of, if any."""


@dataclass(frozen=True, slots=True)
class Share:
    label: str
    count: str
    part: float
    """Of the largest, 0 to 100, for the bar."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class SandboxRow:
    id: str
    href: str
    tenant: str
    run: str
    state: str
    image: str
    labels: tuple[str, ...]
    more_labels: int
    size: str
    created: str
    created_iso: str
    age: str
    to_ready: str
    held: str
    why: str
    attention: bool


@dataclass(frozen=True, slots=True)
class ReclaimRow:
    at: str
    at_iso: str
    age: str
    id: str
    href: str
    tenant: str
    reclaim: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Overview:
    updated: str
    updated_iso: str
    figures: tuple[Figure, ...]
    chart: Chart
    chart_width: int
    chart_height: int
    minutes: int
    live: tuple[Live, ...]
    tabs: tuple[Tab, ...]
    rows: tuple[SandboxRow, ...]
    first_page: bool
    newest_href: str
    next_href: str
    reclaims: tuple[ReclaimRow, ...]
    reclaimed: tuple[Share, ...]
    failures: tuple[Share, ...]
    show_tenant: bool


def sample_of(stats: Stats, at_ms: int) -> Sample:
    live = stats.live
    return Sample(
        at_ms=at_ms,
        ready=live.get(State.READY, 0),
        starting=live.get(State.STARTING, 0),
        queued=live.get(State.QUEUED, 0),
        creating=live.get(State.CREATING, 0),
    )


def overview_of(
    snapshot: Snapshot,
    page: Page,
    *,
    state: State | None,
    cursor: str | None,
    settings: ConsoleSettings,
    show_tenant: bool,
) -> Overview:
    now_ms = snapshot.now_ms
    stats = snapshot.stats
    # The last reading is up to an interval old; the present one joins, so that the chart agrees with the figures above it.
    samples = [sample for sample in snapshot.samples if sample.at_ms < now_ms]
    return Overview(
        updated=wording.clock(now_ms),
        updated_iso=wording.iso(now_ms),
        figures=figures_of(stats),
        chart=draw(
            [*samples, sample_of(stats, now_ms)],
            now_ms=now_ms,
            span_seconds=settings.chart_seconds,
            interval_seconds=settings.sample_seconds,
        ),
        chart_width=WIDTH,
        chart_height=HEIGHT,
        minutes=settings.chart_seconds // 60,
        live=_live(stats),
        tabs=_tabs(stats, state),
        rows=tuple(row_of(record, now_ms) for record in page.items),
        first_page=cursor is None,
        newest_href=page_href(state, None),
        next_href=page_href(state, page.next) if page.next else "",
        reclaims=tuple(_reclaim_row(entry, now_ms) for entry in snapshot.reclaims),
        reclaimed=_shares(
            (RECLAIM_WORDS[Reclaim(word)] if word in set(Reclaim) else wording.phrase(word), number, "")
            for word, number in stats.reclaimed.items()
        ),
        failures=_shares(
            (wording.phrase(word), number, _cause(word)) for word, number in stats.failed.items()
        ),
        show_tenant=show_tenant,
    )


def figures_of(stats: Stats) -> tuple[Figure, ...]:
    pacing = stats.pacing
    starting = stats.live.get(State.CREATING, 0) + stats.live.get(State.STARTING, 0)
    oldest = f"oldest {wording.span(stats.queue.oldest_seconds)}" if stats.queue.depth else "nobody waits"
    return (
        Figure(
            "Concurrency",
            wording.count(stats.concurrency.now),
            (f"peak {wording.count(stats.concurrency.peak)}", f"{wording.count(starting)} starting"),
        ),
        Figure("Queue", wording.count(stats.queue.depth), (oldest,)),
        Figure(
            "Pacing",
            wording.rate(pacing.rate),
            (
                f"{wording.count(pacing.in_flight)} of {wording.count(pacing.window)} in flight",
                PACING_WORDS.get(pacing.reason, wording.phrase(pacing.reason)),
            ),
            alarm=pacing.reason in ("throttled", "slow"),
        ),
        Figure(
            "Orphans",
            wording.count(stats.orphans.now),
            (f"{wording.count(stats.orphans.reclaimed)} taken back",),
            alarm=stats.orphans.now > 0,
        ),
        Figure(
            "Failed",
            wording.count(sum(stats.failed.values())),
            (
                "mostly " + wording.phrase(max(stats.failed, key=stats.failed.__getitem__))
                if stats.failed
                else "none",
            ),
        ),
    )


def row_of(record: Record, now_ms: int) -> SandboxRow:
    spec = record.spec
    created_ms = record.times.get(State.QUEUED, now_ms)
    ready_ms = record.times.get(State.READY)
    labels = [f"{name}={value}" for name, value in spec.labels.items()]
    return SandboxRow(
        id=wording.plain(record.id),
        href=sandbox_href(record.id),
        tenant=wording.plain(record.tenant, 40),
        run=wording.plain(record.run, 60) if record.run else "",
        state=record.state.value,
        image=image_name(spec.image),
        labels=tuple(wording.plain(label, 60) for label in labels[:LABELS_SHOWN]),
        more_labels=max(0, len(labels) - LABELS_SHOWN),
        size=f"{spec.cpu:g} CPU · {bytes_of(spec.memory)}",
        created=wording.clock(created_ms),
        created_iso=wording.iso(created_ms),
        age=wording.span((now_ms - created_ms) / 1000),
        to_ready=wording.span((ready_ms - created_ms) / 1000) if ready_ms is not None else "",
        held=held_of(record, now_ms),
        why=_why(record, now_ms),
        attention=record.state is State.FAILED,
    )


def page_href(state: State | None, cursor: str | None) -> str:
    query = {name: value for name, value in (("state", state), ("cursor", cursor)) if value}
    return "/?" + urlencode(query) if query else "/"


def sandbox_href(sandbox_id: str) -> str:
    """The page of one sandbox; none of what is not one's id, such as an orphan's name."""
    return f"/console/sandboxes/{sandbox_id}" if is_sandbox_id(sandbox_id) else ""


def image_name(image: str) -> str:
    """The name with at most a dozen digits of its digest: the rest tells a reader nothing and costs a line."""
    name, mark, digest = image.partition("@sha256:")
    return wording.plain(name, 100) + (f"@{wording.plain(digest, 12)}" if mark else "")


def held_of(record: Record, now_ms: int) -> str:
    if not record.live:
        return ""
    if record.lease_expires_ms is None:
        return "by its run"
    left = (record.lease_expires_ms - now_ms) / 1000
    if left <= 0:
        return "lapsed"
    return f"{wording.span(left)} left" if record.claimed else "by its waiting caller"


def _why(record: Record, now_ms: int) -> str:
    if record.state is State.FAILED:
        reason = wording.phrase(record.reason) if record.reason else "unknown"
        return f"{reason}: {wording.plain(record.detail, 160)}" if record.detail else reason
    if record.reclaim is not None:
        return RECLAIM_WORDS[record.reclaim]
    since = record.times.get(record.state)
    if record.state in (State.QUEUED, State.CREATING, State.STARTING) and since is not None:
        again = f", attempt {record.attempts}" if record.attempts > 1 else ""
        return f"for {wording.span((now_ms - since) / 1000)}{again}"
    return ""


def _reclaim_row(entry: ReclaimEntry, now_ms: int) -> ReclaimRow:
    return ReclaimRow(
        at=wording.clock(entry.at_ms),
        at_iso=wording.iso(entry.at_ms),
        age=wording.span((now_ms - entry.at_ms) / 1000),
        id=wording.plain(entry.id, 60),
        href=sandbox_href(entry.id),
        tenant=wording.plain(entry.tenant, 40),
        reclaim=RECLAIM_WORDS[entry.reclaim],
        state=wording.phrase(entry.state),
        detail=wording.plain(entry.detail, 160),
    )


def _live(stats: Stats) -> tuple[Live, ...]:
    bands = {
        State.READY: "ready",
        State.STARTING: "starting",
        State.CREATING: "creating",
        State.QUEUED: "queued",
        State.DELETING: "deleting",
    }
    shown = [State.READY, State.STARTING, State.CREATING, State.QUEUED]
    shown += [state for state in (State.DELETING,) if state in stats.live]
    return tuple(
        Live(state.value.capitalize(), wording.count(stats.live.get(state, 0)), bands.get(state, ""))
        for state in shown
    )


def _tabs(stats: Stats, chosen: State | None) -> tuple[Tab, ...]:
    def tab(state: State | None) -> Tab:
        known = {**stats.live, **stats.ended}
        number = "" if state is None or state not in known else wording.count(known[state])
        return Tab(
            state=state.value if state else "all",
            label=state.value.capitalize() if state else "All",
            count=number,
            href=page_href(state, None),
            current=state is chosen,
        )

    return tuple(tab(state) for state in (None, *ORDER))


def _shares(items: Iterable[tuple[str, int, str]]) -> tuple[Share, ...]:
    pairs = sorted(items, key=lambda item: (-item[1], item[0]))
    largest = max((number for _, number, _ in pairs), default=0)
    return tuple(
        Share(label, wording.count(number), round(number / largest * 100, 1), note)
        for label, number, note in pairs
        if number > 0
    )


def _cause(word: str) -> str:
    try:
        return cause_of(Reason(word))
    except ValueError:
        return ""


def bytes_of(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1024:.3g} KiB"
