"""The gateway: every call on a ready sandbox goes through here, holding its lease while it lasts."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any, Final

import msgspec
import structlog
from litestar.types import Receive, Scope, Send

from app.drain import Drain
from app.execs.schemas import ExecBody
from app.gateway.holder import Holder
from app.gateway.http1 import Head
from app.gateway.pool import Pool
from app.gateway.relay import (
    Call,
    HangUp,
    connection,
    passed_up,
    request_head,
    send_down,
    send_up,
)
from app.gateway.routes import Route, Routes
from app.gateway.samples import Samples, outcome_of
from app.gateway.wire import WireError
from app.ledger.ledger import Ledger
from app.ledger.model import Reclaim, Record
from app.problems import Problem
from app.sandboxes.endings import ended_problem

log = structlog.get_logger("sandman.gateway")

# How long a daemon may be out of reach while the ledger still says ready. The watch notices a dead one within a few seconds
# and then says why it died, which is the better answer.
RECOVER_SECONDS: Final = 10.0
RECOVER_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

_UNREACHABLE = (WireError, OSError, TimeoutError)


class ExecOutcome(msgspec.Struct):
    """The few fields of an exec result that the counts need."""

    state: str = "exited"
    exit_code: int | None = None
    signal: int | str | None = None
    timed_out: bool = False
    oom_killed: bool = False


_outcomes: Final = msgspec.json.Decoder(ExecOutcome)


class Gateway:
    """One for a process."""

    def __init__(
        self,
        ledger: Ledger,
        routes: Routes,
        holder: Holder,
        pool: Pool,
        samples: Samples,
        drain: Drain,
    ) -> None:
        self._ledger = ledger
        self.routes = routes
        self.holder = holder
        self.pool = pool
        self.samples = samples
        self._drain = drain

    async def exec(
        self, scope: Scope, receive: Receive, send: Send, route: Route, body: bytes, asked: ExecBody
    ) -> None:
        """Run one command and send its result on. It carries an id in any case, so that it can be asked for again when the
        connection to the daemon breaks: the daemon then attaches and never runs it twice."""
        exec_id = asked.id
        if exec_id is None:
            exec_id = new_exec_id()
            body = with_id(body, exec_id)
        call = Call(b"POST", b"/v1/exec", body, repeatable=True)
        headers = [(b"Content-Type", b"application/json")]
        started = time.perf_counter()
        with self.holder.hold(route):
            try:
                head, answer = await self._call(scope, receive, send, route, call, headers, exec_id=exec_id)
            except Problem as problem:
                if problem.slug in ("sandbox-lost", "daemon-lost"):
                    self.samples.add(route.id, route.run, "lost", time.perf_counter() - started)
                raise
        if head.status == 200 and answer is not None:
            self._sample(route, answer, time.perf_counter() - started)
        elif head.status == 422:
            self.samples.add(route.id, route.run, "not_started", time.perf_counter() - started)

    async def forward(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        call: Call,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """A call whose request body, if any, is here as a whole; the answer streams."""
        with self.holder.hold(route):
            await self._call(scope, receive, send, route, call, headers or passed_up(scope))

    async def upload(self, scope: Scope, receive: Receive, send: Send, route: Route, call: Call) -> None:
        """A call whose body streams from the caller to the daemon. Never repeated: the body can be read only once."""
        length = _content_length(scope)
        head_bytes = request_head(route, call, passed_up(scope), length)
        with self.holder.hold(route):
            try:
                async with connection(self.pool, route.address, fresh=True) as wire:
                    hang_up = HangUp(receive, wire, self._drain)
                    try:
                        wire.send(head_bytes, more=True)
                        await send_up(scope, receive, wire, length, hang_up)
                        hang_up.watch_soon()
                        await send_down(scope, send, wire, await wire.head(), hang_up)
                    except WireError:
                        if (ended := hang_up.ended()) is not None:
                            raise ended from None
                        raise
                    finally:
                        hang_up.stop()
            except _UNREACHABLE as error:
                raise await self.lost(route, error) from error

    async def _call(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        call: Call,
        headers: list[tuple[bytes, bytes]],
        *,
        exec_id: str | None = None,
    ) -> tuple[Head, bytes | None]:
        """Send, answer, and repeat after a broken connection where that is safe."""
        body = call.body or b""
        tries = 0
        give_up = time.monotonic() + RECOVER_SECONDS
        while True:
            request = request_head(route, call, headers, len(body)) + body
            stale = False
            try:
                async with connection(self.pool, route.address, fresh=tries > 0) as wire:
                    stale = wire.uses > 0
                    hang_up = HangUp(receive, wire, self._drain)
                    try:
                        wire.send(request, no_body=call.method == b"HEAD")
                        hang_up.watch_soon()
                        head = await wire.head()
                        return head, await send_down(scope, send, wire, head, hang_up)
                    except WireError:
                        if (ended := hang_up.ended()) is not None:
                            raise ended from None
                        raise
                    finally:
                        hang_up.stop()
            except _UNREACHABLE as error:
                never_sent = not isinstance(error, WireError) or not error.sent
                if not (call.repeatable or never_sent or (stale and call.method in (b"GET", b"HEAD"))):
                    raise await self.lost(route, error, exec_id) from error
                tries += 1
                if not (stale and tries == 1):
                    route = await self._recover(route, error, tries, give_up, exec_id)

    async def _recover(
        self, route: Route, error: BaseException, tries: int, give_up: float, exec_id: str | None
    ) -> Route:
        """Look at the record again: it has ended, or the daemon may be reached a little later. Raises the problem."""
        log.info("daemon unreachable", sandbox=route.id, error=type(error).__name__, tries=tries)
        self.routes.drop(route.id)
        record = await self._ledger.get(route.id)
        if record is None or not record.live:
            raise lost_problem(route.id, record, exec_id)
        if time.monotonic() > give_up:
            raise daemon_lost_problem(route.id, exec_id)
        await asyncio.sleep(RECOVER_PAUSES[min(tries, len(RECOVER_PAUSES)) - 1])
        return self.routes.remember(record, route.tenant)

    async def lost(self, route: Route, error: BaseException, exec_id: str | None = None) -> Problem:
        """Which of sandbox and connection was lost; waits a moment for the watch to have noticed."""
        self.routes.drop(route.id)
        for pause in (0.0, 0.2, 0.8):
            await asyncio.sleep(pause)
            record = await self._ledger.get(route.id)
            if record is None or not record.live:
                return lost_problem(route.id, record, exec_id)
        log.warning("daemon lost", sandbox=route.id, error=type(error).__name__)
        return daemon_lost_problem(route.id, exec_id)

    def _sample(self, route: Route, answer: bytes, seconds: float) -> None:
        """Count how it ended. The daemon writes the figures first and the output last; only the figures are read."""
        figures, more, _ = answer.partition(b',"encoding":')
        try:
            outcome = _outcomes.decode(figures + b"}" if more else answer)
        except msgspec.MsgspecError:
            return
        if outcome.state == "exited":
            self.samples.add(route.id, route.run, outcome_of(msgspec.structs.asdict(outcome)), seconds)


def new_exec_id() -> str:
    return "ex-" + secrets.token_hex(10)


def with_id(body: bytes, exec_id: str) -> bytes:
    """The JSON object with an id in front. The body was decoded as an object with fields and without one."""
    return b'{"id":"%b",%b' % (exec_id.encode("ascii"), body.lstrip(b" \t\r\n")[1:])


def lost_problem(sandbox_id: str, record: Record | None, exec_id: str | None) -> Problem:
    """The sandbox ended under the call: with the reason where it is known. Only a caller's own delete is the caller's doing."""
    members: dict[str, Any] = {"sandbox_id": sandbox_id}
    if exec_id is not None:
        members["exec_id"] = exec_id
    if record is None:
        return Problem("sandbox-lost", "its record is gone", **members)
    ended = ended_problem(record)
    own = record.reclaim in (Reclaim.DELETED, Reclaim.CANCELLED, Reclaim.RUN_ENDED, Reclaim.LIFETIME)
    cause = record.cause or ("caller" if own else "infra")
    return Problem(
        "sandbox-lost",
        ended.detail,
        cause=cause,
        retryable=cause == "infra",
        **{**ended.members, **members},
    )


def daemon_lost_problem(sandbox_id: str, exec_id: str | None) -> Problem:
    members: dict[str, Any] = {"sandbox_id": sandbox_id}
    if exec_id is not None:
        members["exec_id"] = exec_id
    return Problem("daemon-lost", "the sandbox's daemon does not answer", **members)


def _content_length(scope: Scope) -> int | None:
    length: int | None = None
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value)
    return length
