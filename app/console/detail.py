"""What the page of one sandbox says, worked out from its record; everything in here is pure.

The overview shows one line of a sandbox; here nothing is cut off that the ledger keeps, and all text of others is still made plain.
Environment values are not part of it: they are secrets more often than not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.console import wording
from app.console.execs import ExecLine, ExecRow, exec_row
from app.console.overview import RECLAIM_WORDS, bytes_of, held_of
from app.ledger.model import Reason, Record, State

DETAIL_MAX: Final = 2000
"""All that the ledger keeps of a failure's details."""
REASON_WORDS: Final = {
    Reason.IMAGE_PULL: "The image could not be fetched.",
    Reason.IMAGE_INVALID: "The image cannot be used.",
    Reason.UNSCHEDULABLE: "No place for it was found.",
    Reason.OOM_KILLED: "It ran out of memory and was killed.",
    Reason.EVICTED: "Its machine needed the room and evicted it.",
    Reason.PREEMPTED: "Something more urgent took its place.",
    Reason.EXITED: "It ended by itself.",
    Reason.NODE_LOST: "Its machine, or the service on it, was lost.",
    Reason.DAEMON_LOST: "Its daemon stopped answering.",
    Reason.DAEMON_UNREADY: "Its daemon did not come up in time.",
    Reason.QUOTA: "A quota was used up.",
    Reason.DEADLINE: "It was not ready within its lifetime.",
    Reason.BACKEND_ERROR: "The backend failed.",
}
CAUSE_WORDS: Final = {
    "caller": "Caused by the caller",
    "task": "Caused by the task",
    "infra": "Caused by the infrastructure",
}
ORDER: Final = (*State, "cleaned")


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    at: str
    at_iso: str
    lasted: str
    """Until the next one, or until now."""
    part: float
    """Of the longest, 0 to 100, for the bar."""
    going_on: bool


@dataclass(frozen=True, slots=True)
class Detail:
    id: str
    updated: str
    updated_iso: str
    state: str
    headline: str
    cause: str
    detail: str
    phases: tuple[Phase, ...]
    holding: tuple[Fact, ...]
    spec: tuple[Fact, ...]
    labels: tuple[str, ...]
    enforced: tuple[Fact, ...]
    execs: tuple[ExecRow, ...]
    execs_note: str
    """In place of a list, or about what is not in it."""


def detail_of(record: Record, now_ms: int, execs: list[ExecLine] | None) -> Detail:
    """`execs` None: the daemon did not say."""
    headline, cause = _headline(record)
    rows, note = _execs(record, now_ms, execs)
    return Detail(
        id=wording.plain(record.id, 60),
        updated=wording.clock(now_ms),
        updated_iso=wording.iso(now_ms),
        state=record.state.value,
        headline=headline,
        cause=cause,
        detail=wording.plain(record.detail or "", DETAIL_MAX),
        phases=_phases(record, now_ms),
        holding=_holding(record, now_ms),
        spec=_spec(record),
        labels=tuple(
            wording.plain(f"{name}={value}", 160) for name, value in sorted(record.spec.labels.items())
        ),
        enforced=tuple(
            Fact(wording.phrase(limit), wording.phrase(how)) for limit, how in sorted(record.enforced.items())
        ),
        execs=rows,
        execs_note=note,
    )


def _headline(record: Record) -> tuple[str, str]:
    if record.state is State.FAILED and record.reason is not None:
        again = (
            "the same create may succeed later" if record.retryable else "the same create would fail again"
        )
        return REASON_WORDS[record.reason], f"{CAUSE_WORDS[record.cause or 'infra']}; {again}."
    if record.reclaim is not None:
        return f"Taken back: {RECLAIM_WORDS[record.reclaim]}.", ""
    return "", ""


def _phases(record: Record, now_ms: int) -> tuple[Phase, ...]:
    reached = [(str(name), record.times[name]) for name in ORDER if name in record.times]
    reached.sort(key=lambda pair: pair[1])
    ended = not record.live and (record.state is not State.DELETING)
    spans = []
    for place, (name, at_ms) in enumerate(reached):
        last = place == len(reached) - 1
        until = now_ms if last else reached[place + 1][1]
        spans.append((name, at_ms, max(0, until - at_ms), last and not ended, last and ended))
    longest = max((length for *_, length, _, over in spans if not over), default=0)
    return tuple(
        Phase(
            name=name.capitalize(),
            at=wording.clock(at_ms),
            at_iso=wording.iso(at_ms),
            lasted="" if over else wording.span(length / 1000),
            part=0.0 if over or not longest else round(length / longest * 100, 1),
            going_on=going_on,
        )
        for name, at_ms, length, going_on, over in spans
    )


def _holding(record: Record, now_ms: int) -> tuple[Fact, ...]:
    facts = [Fact("Tenant", wording.plain(record.tenant, 60))]
    if record.run:
        facts.append(Fact("Run", wording.plain(record.run, 60), code=True))
    if record.live:
        facts.append(Fact("Held", held_of(record, now_ms)))
        left = (record.deadline_ms - now_ms) / 1000
        facts.append(Fact("Lifetime", f"{wording.span(left)} left" if left > 0 else "over"))
    facts.append(Fact("Lease", wording.span(record.lease_seconds)))
    if record.reclaim is not None:
        facts.append(Fact("Reclaim", RECLAIM_WORDS[record.reclaim]))
    if record.attempts > 1:
        facts.append(Fact("Attempts", wording.count(record.attempts)))
    return tuple(facts)


def _spec(record: Record) -> tuple[Fact, ...]:
    spec = record.spec
    facts = [
        Fact("Image", wording.plain(spec.image, 600), code=True),
        Fact("CPU", f"{spec.cpu:g}"),
        Fact("Memory", bytes_of(spec.memory)),
        Fact("Disk", bytes_of(spec.disk)),
        Fact("Network", wording.phrase(spec.policy.network)),
    ]
    if spec.policy.pids is not None:
        facts.append(Fact("Processes", f"at most {wording.count(spec.policy.pids)}"))
    if spec.user is not None:
        facts.append(Fact("User", wording.plain(spec.user, 100), code=True))
    if spec.workdir is not None:
        facts.append(Fact("Folder", wording.plain(spec.workdir, 400), code=True))
    if spec.env:
        facts.append(Fact("Environment", wording.plain(", ".join(sorted(spec.env)), 1000), code=True))
    return tuple(facts)


def _execs(record: Record, now_ms: int, execs: list[ExecLine] | None) -> tuple[tuple[ExecRow, ...], str]:
    if record.state is not State.READY:
        return (), "Commands are listed while it is ready."
    if execs is None:
        return (), "Unavailable: its daemon did not answer within a second."
    if not execs:
        return (), "None yet."
    return tuple(exec_row(line, now_ms) for line in execs), ""
