"""Between records and the flat lists of text that the scripts speak.

The env lies in a field of its own, so that it can be dropped when the sandbox is over; labels too, so that a script can filter by
them without reading the whole spec.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from app.ledger.errors import LedgerCorrupt
from app.ledger.model import Reason, Reclaim, ReclaimEntry, Record, Run, SandboxSpec, State

_texts: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(dict[str, str])
_spec: msgspec.json.Decoder[SandboxSpec] = msgspec.json.Decoder(SandboxSpec)
_encode = msgspec.json.Encoder().encode

_log = logging.getLogger(__name__)


def encode_texts(texts: dict[str, str]) -> str:
    return _encode(texts).decode()


def encode_spec(spec: SandboxSpec) -> str:
    """Without env and labels."""
    return _encode(msgspec.structs.replace(spec, env={}, labels={})).decode()


def fields(flat: list[Any]) -> dict[str, str]:
    return {str(flat[i]): str(flat[i + 1]) for i in range(0, len(flat), 2)}


def _number(text: str | None) -> int | None:
    return int(float(text)) if text else None


def clean_text(text: str, bound: int) -> str:
    """Text from a backend, made safe to store: no lone surrogates, no NUL, bounded."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")[:bound]


def decode_record(flat: list[Any]) -> Record:
    """Raises LedgerCorrupt for what a script gave and this version cannot read."""
    f = fields(flat)
    try:
        return _record(f)
    except (KeyError, ValueError) as error:
        raise LedgerCorrupt(f"{f.get('id')} cannot be read: {type(error).__name__}: {error}") from error


def decode_readable(flats: list[list[Any]]) -> list[Record]:
    """Those of many that can be read: one that cannot must not keep the others from being worked on."""
    records = []
    for flat in flats:
        try:
            records.append(decode_record(flat))
        except LedgerCorrupt as error:
            _log.error("left out a record: %s", error)
    return records


def _record(f: dict[str, str]) -> Record:
    spec = _spec.decode(f["spec"])
    spec = msgspec.structs.replace(
        spec,
        env=_texts.decode(f["env"]) if "env" in f else {},
        labels=_texts.decode(f["labels"]),
    )
    state = State(f["state"])
    over = state not in (State.QUEUED, State.CREATING, State.STARTING, State.READY)
    return Record(
        id=f["id"],
        tenant=f["tenant"],
        run=f["run"] or None,
        state=state,
        reason=Reason(f["reason"]) if f.get("reason") else None,
        detail=f.get("detail") or None,
        spec=spec,
        lease_seconds=int(f["lease_ms"]) / 1000,
        lease_expires_ms=None if over else _number(f["lease_at"]),
        deadline_ms=int(float(f["deadline"])),
        claimed=f["claimed"] == "1",
        times={name[3:]: int(float(at)) for name, at in f.items() if name.startswith("at:")},
        attempts=int(f["attempts"]),
        address=f.get("address") or None,
        enforced=_texts.decode(f["enforced"]) if f.get("enforced") else {},
        reclaim=Reclaim(f["reclaim"]) if f.get("reclaim") else None,
        rev=int(f["rev"]),
        crashes=int(f.get("crashes", "0")),
        final=f.get("final") == "1",
    )


def decode_run(flat: list[Any]) -> Run:
    f = fields(flat)
    return Run(
        id=f["id"],
        tenant=f["tenant"],
        name=f["name"],
        labels=_texts.decode(f["labels"]),
        state="open" if f["state"] == "open" else "ended",
        created_ms=int(f["created_at"]),
        ended_ms=_number(f.get("ended_at")),
        reclaim=Reclaim(f["reclaim"]) if f.get("reclaim") else None,
        lease_seconds=int(f["lease_ms"]) / 1000,
        lease_expires_ms=_number(f["lease_at"]),
        live=int(f["live"]),
        created=int(f["created"]),
    )


def decode_reclaim(entry_id: str, f: dict[str, str]) -> ReclaimEntry:
    return ReclaimEntry(
        at_ms=int(entry_id.split("-")[0]),
        id=f["id"],
        tenant=f["tenant"],
        run=f["run"] or None,
        reclaim=Reclaim(f["reclaim"]),
        state=f["state"],
        detail=f["detail"],
    )
