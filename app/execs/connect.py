"""WS …/sandboxes/{id}/connect: many commands over one socket."""

from typing import Any, Final

from litestar import WebSocket, websocket
from litestar.params import FromPath

from app.answers import send_problem
from app.auth.middleware import caller_of
from app.describe import Doc, opt
from app.errors import problem_of
from app.gateway.socket import connect_through
from app.services import services_in

CONNECT_DOC: Final = Doc(
    id="connect",
    summary="Run, follow and control many commands over one WebSocket (subprotocol sandman.v1)",
    tag="execs",
    answers=((101, "Open", None),),
    description="The frames are those of daemon/PROTOCOL.md.",
)


@websocket("/v1/sandboxes/{sandbox_id:str}/connect", opt=opt(CONNECT_DOC))
async def connect_sandbox(socket: WebSocket[Any, Any, Any], sandbox_id: FromPath[str]) -> None:
    services = services_in(socket.app.state)
    scope, receive, send = socket.scope, socket.receive, socket.send
    try:
        route = await services.gateway.routes.find(sandbox_id, caller_of(scope).tenant)
        await connect_through(services.gateway, services.drain, scope, receive, send, route)
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        await send_problem(scope, receive, send, problem)
