"""Runs the real worker processes over the fake backend: `python -m tests.fakes.process rq_worker|loops FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import worker.loops
import worker.provision
import worker.rq_worker
from app.ledger.settings import Settings
from tests.fakes.provider import FakeProvider

FOLDER = Path(sys.argv[2])


def open_fake(_settings: Settings) -> FakeProvider:
    return FakeProvider(FOLDER)


if __name__ == "__main__":
    for module in (worker.loops, worker.provision):
        vars(module)["open_provider"] = open_fake
    sys.exit(worker.rq_worker.main() if sys.argv[1] == "rq_worker" else worker.loops.main())
