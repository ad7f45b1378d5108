"""Who leads, what the clock says, and whether this Redis still is the ledger that it was."""

from __future__ import annotations

import uuid
from typing import Any, cast

from app.ledger.concern import Concern
from app.ledger.connection import translated
from app.ledger.epoch import Attestation, read_epoch, write_epoch


class Coordination(Concern):
    async def now_ms(self) -> int:
        """Redis time: the only clock that records are compared with."""
        async with translated():
            seconds, micros = await cast(Any, self._connection.client.time())
        return int(seconds) * 1000 + int(micros) // 1000

    async def leader(self, name: str, holder: str, ttl_ms: int) -> int | None:
        """Become or stay the leader; None while another one is. The token grows with each change of leader: what must only be
        done by the leader passes it along. `ttl_ms` 0 steps down."""
        token = int(await self._connection.run("leader", name, holder, ttl_ms, again=False))
        return token or None

    async def is_led(self, name: str) -> bool:
        """Whether somebody leads: a leader that fell silent is forgotten after its ttl."""
        async with translated():
            return bool(await self._connection.client.exists(f"{self._connection.prefix}leader:{name}"))

    async def agreement_ms(self) -> int | None:
        """The last moment at which ledger and backend were compared in full, within this epoch."""
        moment = int(await self._connection.run("agreement"))
        return moment or None

    async def set_agreement(self, moment_ms: int, leader: str, token: int) -> bool:
        """False: the caller does not lead any more."""
        return bool(await self._connection.run("agreement", moment_ms, leader, token))

    async def anomaly_count(self) -> int:
        """How many contradictions the scripts have found and mended so far."""
        async with translated():
            found = await cast(Any, self._connection.client.hvals(f"{self._connection.prefix}anomalies"))
        return sum(int(n) for n in found)

    async def eviction_policy(self) -> str:
        """What Redis does when it is full; empty when it does not say."""
        async with translated():
            info = await cast(Any, self._connection.client.info("memory"))
        return str(info.get("maxmemory_policy", ""))

    async def starting(self, limit: int = 1000) -> list[tuple[str, int]]:
        """Ids that wait to be proven usable, with the moment they were placed, oldest first."""
        async with translated():
            found = await self._connection.client.zrange(
                f"{self._connection.prefix}starting", 0, limit - 1, withscores=True
            )
        return [(str(member), int(score)) for member, score in cast(list[tuple[str, float]], found)]

    async def held(self, cursor: int = 0, count: int = 1000) -> tuple[int, list[str]]:
        """Ids of live records, in pieces: pass the returned cursor until it is 0."""
        async with translated():
            following, found = await cast(
                Any, self._connection.client.zscan(f"{self._connection.prefix}due", cursor, count=count)
            )
        return int(following), [str(member) for member, _score in found]

    async def attest(self) -> Attestation:
        """Compare Redis with what the data folder knows of it; after a loss or a roll-back a new epoch begins, which protects
        everything made before. Call before each full comparison with the backend."""
        data_dir = self._settings.paths.data_dir
        known = read_epoch(data_dir)
        epoch, born, generation, verdict = await self._connection.run_list(
            "attest", known.id, known.generation, uuid.uuid4().hex, again=False
        )
        write_epoch(data_dir, epoch, int(generation))
        return Attestation(epoch, int(born), int(generation), verdict)
