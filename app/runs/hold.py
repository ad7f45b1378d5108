"""WS …/runs/{run}/hold: the run is held as long as the socket is open.

The simplest way to bind a run to a process: when the process dies, its socket ends, and the run ends a lease later. The socket
says nothing but when the lease ends; closing it does not end the run, DELETE does."""

import asyncio
import contextlib
from typing import Any, Final

import structlog
from litestar import WebSocket, websocket
from litestar.params import FromPath

from app import metrics
from app.answers import send_problem
from app.auth.middleware import caller_of
from app.describe import Doc, opt
from app.drain import Drain
from app.errors import problem_of
from app.ledger.errors import LedgerUnavailable, RunEnded, RunNotFound
from app.ledger.ledger import Ledger
from app.ledger.tasks import end_tasks
from app.problems import Problem
from app.runs.controllers import ended_run_problem, find_run
from app.services import services_in
from app.sockets import NORMAL, POLICY, SERVICE_RESTART, Socket

log = structlog.get_logger("sandman.runs")

# A proxy in between cuts connections that were silent for 60 s; also the longest time between two renewals.
HEARTBEAT_SECONDS_MAX: Final = 15.0
HEARTBEAT_SECONDS_MIN: Final = 0.2

HOLD_DOC: Final = Doc(
    id="holdRun",
    summary="Hold a run as long as this WebSocket is open",
    tag="runs",
    answers=((101, "Held", None),),
    description='Frames: {"op":"held","lease_expires_at":…} at each renewal; {"op":"ended",…} and a close when the run ends.',
)


@websocket("/v1/runs/{run_id:str}/hold", opt=opt(HOLD_DOC))
async def hold_run(socket: WebSocket[Any, Any, Any], run_id: FromPath[str]) -> None:
    services = services_in(socket.app.state)
    scope, receive, send = socket.scope, socket.receive, socket.send
    try:
        run = await find_run(services.ledger, run_id, caller_of(scope).tenant)
        if run.state == "ended":
            raise ended_run_problem(run)
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        await send_problem(scope, receive, send, problem)
        return
    peer = await Socket.accept(scope, receive, send)
    period = max(HEARTBEAT_SECONDS_MIN, min(run.lease_seconds / 3, HEARTBEAT_SECONDS_MAX))
    with metrics.SOCKETS.labels("hold").track_inprogress():
        holding = asyncio.create_task(_hold(peer, services.ledger, services.drain, run_id, period))
        try:
            while await peer.receive() is not None:
                pass  # whatever it says is a sign of life, and no more
        finally:
            await end_tasks(holding)


async def _hold(peer: Socket, ledger: Ledger, drain: Drain, run_id: str, period: float) -> None:
    while not drain.started:
        try:
            run = await ledger.renew_run(run_id)
        except RunEnded:
            ended = await ledger.get_run(run_id)
            reclaim = None if ended is None or ended.reclaim is None else str(ended.reclaim)
            await peer.send_json({"op": "ended", "reclaim": reclaim})
            await peer.close(NORMAL, "the run has ended")
            return
        except RunNotFound:
            await peer.send_problem(Problem("not-found", "no such run"))
            await peer.close(POLICY, "no such run")
            return
        except LedgerUnavailable:
            # Leases do not expire while the ledger is away either.
            await peer.send_json({"op": "heartbeat"})
        else:
            expires = run.lease_expires_ms
            await peer.send_json(
                {"op": "held", "lease_expires_at": None if expires is None else expires / 1000}
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(period):
                await drain.wait()
    await peer.close(SERVICE_RESTART, "the server is restarting")
