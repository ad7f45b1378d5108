"""The calls on sandboxes."""

from typing import Any, Final

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from litestar.types import ASGIApp

from app.answers import json_answer
from app.auth.middleware import caller_of
from app.body import decode, read
from app.describe import Doc, opt
from app.ledger.errors import Ended, NotFound
from app.ledger.model import Reclaim, Record, State, is_run_id
from app.problems import invalid, not_found
from app.query import CURSOR, LIMIT, WAIT, Parameter, Query, cursor_of
from app.sandboxes.endings import ended_problem, failed_create_problem
from app.sandboxes.fields import check_idempotency_key, lease_seconds
from app.sandboxes.schemas import CreateSandbox, RenewBody, SandboxList, SandboxView, view
from app.sandboxes.service import SandboxService
from app.services import Services, services_in

# A create is small; what is big in it is env, which has its own bound far below this one: who sends too much of it is told
# that, not just that the body is large.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024

_create_decoder: Final = msgspec.json.Decoder(CreateSandbox)
_renew_decoder: Final = msgspec.json.Decoder(RenewBody)

STATE: Final = Parameter("state", "Only these states; may be repeated or separated by commas", many=True)
RUN: Final = Parameter("run", "Only those of this run")
LABEL: Final = Parameter("label", "Only those with this label, as KEY=VALUE; may be repeated", many=True)

CREATE_DOC: Final = Doc(
    id="createSandbox",
    summary="Ask for a sandbox, and wait for it",
    tag="sandboxes",
    body=CreateSandbox,
    query=(WAIT,),
    headers=(("Idempotency-Key", "The same key and body give the same sandbox; another body is a conflict"),),
    answers=(
        (201, "Ready", SandboxView),
        (202, "Not ready yet: ask again at `Location`", SandboxView),
    ),
    description=(
        "The sandbox is held while you wait. If you go away, it is taken back after a short grace unless somebody comes for it, "
        "with the same Idempotency-Key or by its id. Without `wait` the answer is 202 at once."
    ),
)
LIST_DOC: Final = Doc(
    id="listSandboxes",
    summary="List sandboxes, newest first",
    tag="sandboxes",
    query=(STATE, RUN, LABEL, LIMIT, CURSOR),
    answers=((200, "One page", SandboxList),),
)
GET_DOC: Final = Doc(
    id="getSandbox",
    summary="Look at a sandbox, or wait until it is ready or over",
    tag="sandboxes",
    query=(WAIT,),
    answers=((200, "The sandbox", SandboxView),),
)
RENEW_DOC: Final = Doc(
    id="renewSandbox",
    summary="Renew the lease",
    tag="sandboxes",
    body=RenewBody,
    body_required=False,
    answers=((200, "The sandbox", SandboxView),),
)
DELETE_DOC: Final = Doc(
    id="deleteSandbox",
    summary="Give a sandbox up",
    tag="sandboxes",
    query=(WAIT,),
    answers=(
        (200, "Nothing of it is left", SandboxView),
        (202, "It is being taken back", SandboxView),
    ),
    description="May be repeated. With `wait` the answer comes when nothing of it is left, or after that time.",
)


async def shown(services: Services, record: Record) -> SandboxView:
    position = await services.ledger.queue_position(record.id) if record.state is State.QUEUED else None
    return view(record, position)


class SandboxController(Controller):
    path = "/v1/sandboxes"

    @post("/", opt=opt(CREATE_DOC))
    async def create(self, request: Request[Any, Any, Any]) -> ASGIApp:
        services = services_in(request.app.state)
        wait = Query(request.scope, CREATE_DOC.query).number(WAIT, 0)
        key = check_idempotency_key(request.headers.get("idempotency-key"))
        body = decode(_create_decoder, await read(request.receive, BODY_BYTES_MAX))
        waited = await SandboxService(services).create(
            body, caller_of(request.scope).tenant, key, wait, request.receive
        )
        record = waited.record
        location = f"/v1/sandboxes/{record.id}"
        if record.state is State.READY:
            return json_answer(201, view(record), {"location": location})
        if record.live:
            return json_answer(202, await shown(services, record), {"location": location, "retry-after": "1"})
        raise failed_create_problem(record)

    @get("/", opt=opt(LIST_DOC))
    async def list_all(self, request: Request[Any, Any, Any]) -> ASGIApp:
        services = services_in(request.app.state)
        query = Query(request.scope, LIST_DOC.query)
        run = query.text("run")
        if run is not None and not is_run_id(run):
            raise invalid(("run", "is not the id of a run"))
        page = await services.ledger.list(
            caller_of(request.scope).tenant,
            states=_states(query.many("state")),
            run=run,
            labels=_labels(query.many("label")),
            limit=int(query.number(LIMIT, 100)),
            cursor=cursor_of(query),
        )
        return json_answer(200, SandboxList([view(record) for record in page.items], page.next))

    @get("/{sandbox_id:str}", opt=opt(GET_DOC))
    async def get_one(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        wait = Query(request.scope, GET_DOC.query).number(WAIT, 0)
        tenant = caller_of(request.scope).tenant
        await read(request.receive, BODY_BYTES_MAX)
        record = await SandboxService(services).look(sandbox_id, tenant, wait, request.receive)
        return json_answer(200, await shown(services, record))

    @post("/{sandbox_id:str}/renew", opt=opt(RENEW_DOC))
    async def renew(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        Query(request.scope, ())
        raw = await read(request.receive, BODY_BYTES_MAX)
        body = decode(_renew_decoder, raw) if raw.strip() else RenewBody()
        seconds = None
        if body.lease_seconds is not None:
            seconds = lease_seconds(body.lease_seconds, services.settings.lease)
        await SandboxService(services).get(sandbox_id, caller_of(request.scope).tenant)
        try:
            record = await services.ledger.renew(sandbox_id, seconds)
        except Ended as ended:
            raise ended_problem(ended.record) from None
        except NotFound:
            raise not_found("sandbox") from None
        return json_answer(200, await shown(services, record))

    @delete("/{sandbox_id:str}", status_code=200, opt=opt(DELETE_DOC))
    async def remove(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        wait = Query(request.scope, DELETE_DOC.query).number(WAIT, 0)
        await read(request.receive, BODY_BYTES_MAX)
        service = SandboxService(services)
        await service.get(sandbox_id, caller_of(request.scope).tenant)
        try:
            record = await services.ledger.request_delete(sandbox_id, Reclaim.DELETED)
        except NotFound:
            raise not_found("sandbox") from None
        services.gateway.routes.drop(sandbox_id)
        if wait > 0 and not _cleaned(record):
            record = await service.wait_cleaned(record, wait, request.receive)
        return json_answer(200 if _cleaned(record) else 202, view(record))


def _cleaned(record: Record) -> bool:
    return record.state is State.DELETED or "cleaned" in record.times


def _states(texts: list[str]) -> list[State]:
    states: list[State] = []
    for name in (part for text in texts for part in text.split(",") if part):
        if name not in State.__members__.values():
            raise invalid(("state", f"is one of {', '.join(State)}"))
        states.append(State(name))
    return states


def _labels(texts: list[str]) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise invalid(("label", "must be KEY=VALUE"))
        labels[key] = value
    return labels or None
