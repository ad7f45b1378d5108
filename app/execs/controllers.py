"""The calls on commands. What the daemon answers is passed on as it is; what is checked here never reaches it."""

from typing import Any, Final
from urllib.parse import quote

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from litestar.types import ASGIApp, Receive, Scope, Send

from app.auth.middleware import caller_of
from app.body import decode, read
from app.describe import Doc, opt
from app.execs.fields import EXEC_BODY_BYTES_MAX, check_exec, is_exec_id
from app.execs.schemas import ExecBody, ExecResult, SignalBody
from app.gateway.relay import Call
from app.gateway.routes import Route
from app.problems import invalid, not_found
from app.query import WAIT, Parameter, Query
from app.sandboxes.service import find_ready
from app.services import Services, services_in

SIGNAL_BYTES_MAX: Final = 4096

_exec_decoder: Final = msgspec.json.Decoder(ExecBody)
_signal_decoder: Final = msgspec.json.Decoder(SignalBody)

STREAM: Final = Parameter("stream", "stdout (the default) or stderr")
OFFSET: Final = Parameter("offset", "First byte wanted", "integer", 0, 2**62)
FOLLOW: Final = Parameter("follow", "Go on until the command ends", "boolean")

EXEC_DOC: Final = Doc(
    id="exec",
    summary="Run a command to its end",
    tag="execs",
    body=ExecBody,
    query=(WAIT,),
    answers=((200, "It ended", ExecResult), (202, "It runs in the background", ExecResult)),
    description=(
        "The same `id` again attaches and never runs twice. A command that ran is an answer, whatever its exit code. `wait` is for "
        "the sandbox to become ready. The command goes on if you go away; its result can be had by its id."
    ),
)
LIST_DOC: Final = Doc(
    id="listExecs",
    summary="What ran in the sandbox",
    tag="execs",
    answers=((200, "One page", dict[str, Any]),),
)
GET_DOC: Final = Doc(
    id="getExec",
    summary="A command's result, or wait for it",
    tag="execs",
    query=(WAIT,),
    answers=((200, "The command", ExecResult),),
)
OUTPUT_DOC: Final = Doc(
    id="getExecOutput",
    summary="A command's output from a byte offset",
    tag="execs",
    query=(STREAM, OFFSET, FOLLOW),
    answers=((200, "The bytes", bytes),),
)
SIGNAL_DOC: Final = Doc(
    id="signalExec",
    summary="Send a signal to a command",
    tag="execs",
    body=SignalBody,
    answers=((200, "Sent, or it had ended", dict[str, Any]),),
)
SESSIONS_DOC: Final = Doc(
    id="listSessions",
    summary="The persistent shells of a sandbox",
    tag="execs",
    answers=((200, "All of them", dict[str, Any]),),
)
END_SESSION_DOC: Final = Doc(
    id="endSession",
    summary="End a persistent shell",
    tag="execs",
    answers=((200, "Ended", dict[str, Any]),),
)


class ExecController(Controller):
    path = "/v1/sandboxes/{sandbox_id:str}"

    @post("/exec", opt=opt(EXEC_DOC))
    async def run(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        scope = request.scope
        wait = Query(scope, EXEC_DOC.query).number(WAIT, 0) if scope["query_string"] else 0
        body = await read(request.receive, EXEC_BODY_BYTES_MAX)
        asked = decode(_exec_decoder, body)
        check_exec(asked)
        tenant = caller_of(scope).tenant
        route = await find_ready(services, sandbox_id, tenant, wait, request.receive)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await services.gateway.exec(scope, receive, send, route, body, asked)

        return answer

    @get("/execs", opt=opt(LIST_DOC))
    async def list_all(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        # limit and cursor are the daemon's own
        return await _pass(request, sandbox_id, b"GET", b"/v1/execs")

    @get("/execs/{exec_id:str}", opt=opt(GET_DOC))
    async def get_one(
        self, request: Request[Any, Any, Any], sandbox_id: FromPath[str], exec_id: FromPath[str]
    ) -> ASGIApp:
        return await _pass(request, sandbox_id, b"GET", exec_target(exec_id))

    @get("/execs/{exec_id:str}/output", opt=opt(OUTPUT_DOC))
    async def output(
        self, request: Request[Any, Any, Any], sandbox_id: FromPath[str], exec_id: FromPath[str]
    ) -> ASGIApp:
        return await _pass(request, sandbox_id, b"GET", exec_target(exec_id) + b"/output")

    @post("/execs/{exec_id:str}/signal", status_code=200, opt=opt(SIGNAL_DOC))
    async def signal(
        self, request: Request[Any, Any, Any], sandbox_id: FromPath[str], exec_id: FromPath[str]
    ) -> ASGIApp:
        target = exec_target(exec_id) + b"/signal"
        body = await read(request.receive, SIGNAL_BYTES_MAX)
        asked = decode(_signal_decoder, body or b"{}")
        if asked.signal == "":
            raise invalid(("signal", "must not be empty"))
        # Sending it twice could hit what the first one has led to.
        return await _pass(request, sandbox_id, b"POST", target, body or b"{}")

    @get("/sessions", opt=opt(SESSIONS_DOC))
    async def sessions(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _pass(request, sandbox_id, b"GET", b"/v1/sessions")

    @delete("/sessions/{session_id:str}", status_code=200, opt=opt(END_SESSION_DOC))
    async def end_session(
        self, request: Request[Any, Any, Any], sandbox_id: FromPath[str], session_id: FromPath[str]
    ) -> ASGIApp:
        if not is_exec_id(session_id):
            raise not_found("session")
        target = b"/v1/sessions/" + quote(session_id, safe="").encode("ascii")
        return await _pass(request, sandbox_id, b"DELETE", target)


async def _pass(
    request: Request[Any, Any, Any], sandbox_id: str, method: bytes, target: bytes, body: bytes | None = None
) -> ASGIApp:
    services: Services = services_in(request.app.state)
    if body is None:
        await read(request.receive, SIGNAL_BYTES_MAX)
    route: Route = await services.gateway.routes.find(sandbox_id, caller_of(request.scope).tenant)
    query: bytes = request.scope["query_string"]
    call = Call(method, target + b"?" + query if query else target, body, repeatable=method == b"GET")
    headers = [(b"Content-Type", b"application/json")] if body is not None else None

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await services.gateway.forward(scope, receive, send, route, call, headers)

    return answer


def exec_target(exec_id: str) -> bytes:
    if not is_exec_id(exec_id):
        raise not_found("exec")
    return b"/v1/execs/" + quote(exec_id, safe="").encode("ascii")
