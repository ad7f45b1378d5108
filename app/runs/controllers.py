"""The calls on runs."""

import csv
import hashlib
import io
import re
from typing import Any, Final

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from litestar.types import ASGIApp

from app.answers import Answer, json_answer
from app.auth.middleware import caller_of
from app.body import decode, read
from app.describe import Doc, opt
from app.ledger.errors import RunEnded, RunNotFound
from app.ledger.ledger import Ledger
from app.ledger.model import Run, is_run_id, new_run_id
from app.ledger.report import report_rows
from app.problems import Problem, invalid, not_found
from app.query import CURSOR, LIMIT, Parameter, Query, cursor_of
from app.runs.schemas import CreateRun, Report, RunList, RunView, view
from app.sandboxes.fields import Faults, check_idempotency_key, check_labels, lease_seconds
from app.sandboxes.schemas import RenewBody
from app.services import services_in

BODY_BYTES_MAX: Final = 64 * 1024
NAME_CHARACTERS_MAX: Final = 200
_NAME_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

_create_decoder: Final = msgspec.json.Decoder(CreateRun)
_renew_decoder: Final = msgspec.json.Decoder(RenewBody)

FORMAT: Final = Parameter("format", 'json (the default) or csv; "Accept: text/csv" does the same')

CREATE_DOC: Final = Doc(
    id="createRun",
    summary="Open a run",
    tag="runs",
    body=CreateRun,
    body_required=False,
    headers=(("Idempotency-Key", "The same key and body give the same run"),),
    answers=((201, "The run", RunView),),
)
LIST_DOC: Final = Doc(
    id="listRuns",
    summary="List runs, newest first",
    tag="runs",
    query=(LIMIT, CURSOR),
    answers=((200, "One page", RunList),),
)
GET_DOC: Final = Doc(id="getRun", summary="Look at a run", tag="runs", answers=((200, "The run", RunView),))
RENEW_DOC: Final = Doc(
    id="renewRun",
    summary="Renew a run's lease, and so that of all it owns",
    tag="runs",
    body=RenewBody,
    body_required=False,
    answers=((200, "The run", RunView),),
)
DELETE_DOC: Final = Doc(
    id="deleteRun",
    summary="End a run; everything it owns is taken back",
    tag="runs",
    answers=((200, "The run", RunView),),
    description="May be repeated.",
)
REPORT_DOC: Final = Doc(
    id="getRunReport",
    summary="What a run cost and how long it waited",
    tag="runs",
    query=(FORMAT,),
    answers=((200, "The report", Report),),
)


async def find_run(ledger: Ledger, run_id: str, tenant: str) -> Run:
    """The run; the same problem for what is unknown, malformed or another tenant's."""
    run = await ledger.get_run(run_id) if is_run_id(run_id) else None
    if run is None or run.tenant != tenant:
        raise not_found("run")
    return run


class RunController(Controller):
    path = "/v1/runs"

    @post("/", opt=opt(CREATE_DOC))
    async def create(self, request: Request[Any, Any, Any]) -> ASGIApp:
        services = services_in(request.app.state)
        Query(request.scope, ())
        key = check_idempotency_key(request.headers.get("idempotency-key"))
        raw = await read(request.receive, BODY_BYTES_MAX)
        body = decode(_create_decoder, raw) if raw.strip() else CreateRun()
        faults = Faults()
        name = body.name or ""
        if len(name) > NAME_CHARACTERS_MAX or _NAME_CONTROL.search(name):
            faults.add(
                "name", f"has at most {NAME_CHARACTERS_MAX} characters, none of them control characters"
            )
        labels = body.labels or {}
        check_labels(labels, faults)
        faults.raise_any()
        lease = lease_seconds(body.lease_seconds, services.settings.lease)
        canonical = msgspec.json.encode([name, labels, lease], order="sorted")
        run, existing = await services.ledger.create_run(
            new_run_id(),
            caller_of(request.scope).tenant,
            name=name,
            labels=labels,
            lease_seconds=lease,
            idempotency_key=key,
            fingerprint=hashlib.sha256(canonical).hexdigest(),
        )
        if existing and run.state == "ended":
            raise ended_run_problem(run)
        return json_answer(201, view(run), {"location": f"/v1/runs/{run.id}"})

    @get("/", opt=opt(LIST_DOC))
    async def list_all(self, request: Request[Any, Any, Any]) -> ASGIApp:
        query = Query(request.scope, LIST_DOC.query)
        page = await services_in(request.app.state).ledger.list_runs(
            caller_of(request.scope).tenant, int(query.number(LIMIT, 100)), cursor_of(query)
        )
        return json_answer(200, RunList([view(run) for run in page.items], page.next))

    @get("/{run_id:str}", opt=opt(GET_DOC))
    async def get_one(self, request: Request[Any, Any, Any], run_id: FromPath[str]) -> ASGIApp:
        Query(request.scope, ())
        ledger = services_in(request.app.state).ledger
        return json_answer(200, view(await find_run(ledger, run_id, caller_of(request.scope).tenant)))

    @post("/{run_id:str}/renew", opt=opt(RENEW_DOC))
    async def renew(self, request: Request[Any, Any, Any], run_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        Query(request.scope, ())
        raw = await read(request.receive, BODY_BYTES_MAX)
        body = decode(_renew_decoder, raw) if raw.strip() else RenewBody()
        seconds = None
        if body.lease_seconds is not None:
            seconds = lease_seconds(body.lease_seconds, services.settings.lease)
        run = await find_run(services.ledger, run_id, caller_of(request.scope).tenant)
        try:
            return json_answer(200, view(await services.ledger.renew_run(run_id, seconds)))
        except RunEnded:
            raise ended_run_problem(run) from None
        except RunNotFound:
            raise not_found("run") from None

    @delete("/{run_id:str}", status_code=200, opt=opt(DELETE_DOC))
    async def end(self, request: Request[Any, Any, Any], run_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        Query(request.scope, ())
        await find_run(services.ledger, run_id, caller_of(request.scope).tenant)
        try:
            return json_answer(200, view(await services.ledger.end_run(run_id)))
        except RunNotFound:
            raise not_found("run") from None

    @get("/{run_id:str}/report", opt=opt(REPORT_DOC))
    async def report(self, request: Request[Any, Any, Any], run_id: FromPath[str]) -> ASGIApp:
        services = services_in(request.app.state)
        form = Query(request.scope, REPORT_DOC.query).text("format")
        if form not in (None, "json", "csv"):
            raise invalid(("format", "is json or csv"))
        await find_run(services.ledger, run_id, caller_of(request.scope).tenant)
        try:
            report = await services.ledger.run_report(run_id)
        except RunNotFound:
            raise not_found("run") from None
        if form == "csv" or (form is None and "text/csv" in request.headers.get("accept", "")):
            return Answer(200, [(b"content-type", b"text/csv; charset=utf-8")], csv_of(report))
        return json_answer(200, report)


def csv_of(report: Report) -> bytes:
    """One line for each figure: its dotted name and value. Text that a spreadsheet would run as a formula is defused."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("name", "value"))
    for name, value in report_rows(report):
        writer.writerow((name, f"'{value}" if value[:1] in ("=", "+", "@", "\t", "\r") else value))
    return out.getvalue().encode()


def ended_run_problem(run: Run) -> Problem:
    why = f"the run has ended: {run.reclaim}" if run.reclaim is not None else "the run has ended"
    return Problem(
        "gone",
        why,
        run=run.id,
        state="ended",
        reclaim=None if run.reclaim is None else str(run.reclaim),
    )
