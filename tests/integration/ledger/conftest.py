"""A ledger in a namespace of its own for each test, whose indexes must equal a recount in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.ledger.ledger import Ledger
from tests.conftest import Valkey
from tests.fakes.ledger import Recount, ledger_settings


@pytest.fixture
async def ledger(valkey: Valkey, tmp_path: Path) -> AsyncIterator[Ledger]:
    """In a namespace of its own; every test leaves indexes equal to a recount."""
    settings = ledger_settings(valkey.url, tmp_path, QUEUE_TENANT_BOUND="6000")
    one = await Ledger.connect(settings)
    yield one
    recount = Recount(valkey.url, settings.redis.namespace)
    recount.check()
    for key in recount.client.scan_iter(f"{recount.prefix}*"):
        recount.client.delete(key)
    recount.close()
    await one.aclose()
