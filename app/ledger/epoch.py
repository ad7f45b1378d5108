"""The ledger's identity: an id in Redis that a file in the data folder knows, and a generation that only grows.

An empty Redis, another one, or one that was rolled back knows less than the backend holds. If what it does not know were taken for
orphans, one wrong URL would delete everything. So a mismatch begins a new epoch, and nothing that was made before the epoch began is
ever an orphan: it ends by its own deadline, or by hand.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

_FILE = "ledger-epoch.json"

Verdict = Literal["same", "first", "adopted", "lost", "rolled_back", "other"]


class KnownEpoch(msgspec.Struct, frozen=True):
    id: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Attestation:
    epoch: str
    born_ms: int
    """What the backend holds from before this is protected."""
    generation: int
    verdict: Verdict
    """same; first (fresh install); adopted (the file was missing: its records are believed, but silence about what was made before
    now says nothing); lost (Redis is empty), rolled_back, other."""

    @property
    def alarming(self) -> bool:
        return self.verdict in ("lost", "rolled_back", "other")


def read_epoch(data_dir: Path) -> KnownEpoch:
    """An unreadable file reads as a missing one: Redis is believed then, as on a new machine."""
    try:
        return msgspec.json.decode((data_dir / _FILE).read_bytes(), type=KnownEpoch)
    except (OSError, msgspec.DecodeError):
        return KnownEpoch()


def write_epoch(data_dir: Path, epoch: str, generation: int) -> None:
    """Replaced in one step, so that a crash leaves the old or the new one."""
    data_dir.mkdir(parents=True, exist_ok=True)
    temporary = data_dir / f"{_FILE}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(KnownEpoch(epoch, generation)))
    temporary.replace(data_dir / _FILE)
