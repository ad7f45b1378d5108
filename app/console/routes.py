"""The console's routes: log in, log out, look.

A page is asked for by people and a fragment by htmx, and the two differ when nobody is logged in: a page leads to the login, a
fragment answers 401 with `HX-Redirect`, so that the *whole* page goes to the login and no form ever lands inside a table.
Nothing here but the login and logout forms changes anything, and those two go through `shield` and a form token.
"""

import hmac
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlencode

import structlog
from litestar import MediaType, Request, Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.exceptions import HTTPException
from litestar.params import FromPath, Parameter
from markupsafe import Markup
from redis.exceptions import RedisError

from app.console.origin import local_path, public_scheme, split_host
from app.console.pages import FRAGMENT_HEADERS
from app.console.service import Console, NoSuchSandbox, Subject, View, console_in
from app.console.sessions import ID_CHARACTERS, Session, new_token
from app.console.shield import ConsoleShield
from app.ledger.errors import LedgerError, LedgerUnavailable
from app.ledger.model import State

log = structlog.get_logger("sandman.console")

FORM_BYTES_MAX: Final = 8192
FORM_FIELDS_MAX: Final = 8
CURSOR_MAX: Final = 512
MOVING: Final = "/moving"

Page = Response[Any]
Asked = Request[Any, Any, Any]
StateQuery = Annotated[str, Parameter(query="state", max_length=20)]
CursorQuery = Annotated[str, Parameter(query="cursor", max_length=CURSOR_MAX)]
NextQuery = Annotated[str, Parameter(query="next", max_length=1000)]


class NotLoggedIn(Exception):
    """No session, or one that is over; `ended` tells the two apart for the words on the login page."""

    def __init__(self, ended: bool) -> None:
        super().__init__("not logged in")
        self.ended = ended


@get("/", name="console")
async def overview_page(request: Asked, wanted: StateQuery = "", cursor: CursorQuery = "") -> Page:
    console = console_in(request.app)
    session = await _session(request, console)
    view = _view(session, wanted, cursor)
    body, headers = console.pages.page(
        "overview.html",
        session=session,
        moving=Markup(await console.fragment(view)),
        fragment_href="/console/overview" + _query(view),
        page_href="/" + _query(view),
        poll_ms=int(console.settings.poll_seconds * 1000),
    )
    return Response(body, headers=headers, media_type=MediaType.HTML)


# The page asks for this every two seconds instead of holding an event stream open: an open stream counts against the server's
# bound on concurrent requests and holds up its shutdown, while a poll costs one shared answer, stops by itself in a hidden tab,
# slows down when the service is in trouble, and survives every restart without a word.
@get("/console/overview")
async def overview_fragment(request: Asked, wanted: StateQuery = "", cursor: CursorQuery = "") -> Page:
    console = console_in(request.app)
    session = await _session(request, console)
    html = await console.fragment(_view(session, wanted, cursor))
    return Response(html, headers=FRAGMENT_HEADERS, media_type=MediaType.HTML)


@get("/console/sandboxes/{sandbox_id:str}")
async def sandbox_page(request: Asked, sandbox_id: FromPath[str]) -> Page:
    console = console_in(request.app)
    session = await _session(request, console)
    moving = await console.sandbox_fragment(_subject(session, sandbox_id))
    body, headers = console.pages.page(
        "sandbox.html",
        session=session,
        sandbox_id=sandbox_id,
        moving=Markup(moving),
        fragment_href=f"/console/sandboxes/{sandbox_id}{MOVING}",
        page_href=f"/console/sandboxes/{sandbox_id}",
        poll_ms=int(console.settings.poll_seconds * 1000),
    )
    return Response(body, headers=headers, media_type=MediaType.HTML)


@get("/console/sandboxes/{sandbox_id:str}/moving")
async def sandbox_fragment(request: Asked, sandbox_id: FromPath[str]) -> Page:
    console = console_in(request.app)
    session = await _session(request, console)
    html = await console.sandbox_fragment(_subject(session, sandbox_id))
    return Response(html, headers=FRAGMENT_HEADERS, media_type=MediaType.HTML)


@get("/login")
async def login_page(request: Asked, next_path: NextQuery = "/", ended: bool = False) -> Page:
    console = console_in(request.app)
    target = local_path(next_path)
    try:
        await _session(request, console)
    except NotLoggedIn:
        note = "Your session has ended. Log in again to go on." if ended else ""
        return _login_form(request, console, target, note=note)
    return _redirect(target)


@post("/login", status_code=200, request_max_body_size=FORM_BYTES_MAX)
async def log_in(request: Asked) -> Page:
    console = console_in(request.app)
    form = await _form(request)
    target = local_path(form.get("next", "/"))
    nonce = request.cookies.get(_cookie_name(request, "form"), "")
    if len(nonce) != ID_CHARACTERS or not _same(nonce, form.get("token", "")):
        return _login_form(request, console, target, error="This form was too old. Try again.", status=403)
    address = request.client.host if request.client else "local"
    wait = await console.attempts.refused_for(address)
    if wait:
        answer = _login_form(
            request, console, target, error=f"Too many attempts. Try again in {wait} seconds.", status=429
        )
        answer.headers["retry-after"] = str(wait)
        return answer
    caller = console.keys.find(form.get("key", "").strip().encode(errors="replace"))
    if caller is None:
        log.warning("login refused", address=address)
        return _login_form(request, console, target, error="This key is not known here.", status=401)
    await console.sessions.close(request.cookies.get(_cookie_name(request, "session"), ""))
    token, _ = await console.sessions.open(
        name=caller.name, tenant=caller.tenant, role=caller.role.value, key_sha256=caller.key_sha256
    )
    log.info("login", key_name=caller.name, tenant=caller.tenant, role=caller.role.value)
    answer = _redirect(target)
    answer.set_cookie(_cookie(request, console, "session", token, console.settings.session_seconds))
    return answer


@post("/logout", status_code=303, request_max_body_size=FORM_BYTES_MAX)
async def log_out(request: Asked) -> Page:
    console = console_in(request.app)
    session = await _session(request, console)
    form = await _form(request)
    if not session.owns_form(form.get("token", "")):
        return console.problem_answer(
            403, "Refused", "The form does not belong to this session. Reload the page and try again."
        )
    await console.sessions.close(request.cookies.get(_cookie_name(request, "session"), ""))
    answer = _redirect("/login")
    answer.set_cookie(_cookie(request, console, "session", "", 0))
    return answer


@get("/static/{digest:str}/{name:path}")
async def static_file(request: Asked, digest: str, name: str) -> Page:
    console = console_in(request.app)
    asset = console.assets.find(name.lstrip("/"))
    if asset is None:
        return console.problem_answer(404, "Not found", "There is no such file.")
    packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {
        # An address with another digest is of a page drawn before an upgrade: it gets the file of today, but not for ever.
        "cache-control": "public, max-age=31536000, immutable" if digest == asset.digest else "no-cache",
        "vary": "accept-encoding",
    }
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(asset.packed if packed else asset.body, headers=headers, media_type=asset.kind)


async def _session(request: Asked, console: Console) -> Session:
    token = request.cookies.get(_cookie_name(request, "session"), "")
    session = await console.sessions.find(token)
    if session is None:
        raise NotLoggedIn(ended=bool(token))
    if not console.keys.valid(session.key_sha256):
        await console.sessions.close(token)
        raise NotLoggedIn(ended=True)
    return session


async def _form(request: Asked) -> dict[str, str]:
    """The fields of an ordinary form; any other kind of body is no form of ours."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(status_code=415, detail="Only the console's own forms are taken here.")
    try:
        fields = parse_qs((await request.body()).decode("ascii"), max_num_fields=FORM_FIELDS_MAX)
    except ValueError as error:
        raise HTTPException(status_code=400, detail="The form cannot be read.") from error
    return {name: values[0] for name, values in fields.items()}


def _view(session: Session, state: str, cursor: str) -> View:
    try:
        chosen = State(state) if state else None
    except ValueError as error:
        raise HTTPException(status_code=400, detail="There is no such state.") from error
    return View(tenant=None if session.sees_all else session.tenant, state=chosen, cursor=cursor or None)


def _subject(session: Session, sandbox_id: str) -> Subject:
    return Subject(tenant=None if session.sees_all else session.tenant, id=sandbox_id)


def _query(view: View) -> str:
    query = {name: value for name, value in (("state", view.state), ("cursor", view.cursor)) if value}
    return "?" + urlencode(query) if query else ""


def _login_form(
    request: Asked, console: Console, target: str, *, note: str = "", error: str = "", status: int = 200
) -> Page:
    # One token for all tabs of a browser: a second login page must not spoil the form in the first.
    known = request.cookies.get(_cookie_name(request, "form"), "")
    token = known if len(known) == ID_CHARACTERS else new_token()
    body, headers = console.pages.page("login.html", target=target, token=token, note=note, error=error)
    answer: Page = Response(body, status_code=status, headers=headers, media_type=MediaType.HTML)
    answer.set_cookie(_cookie(request, console, "form", token, None))
    return answer


def _cookie_name(request: Asked, use: str) -> str:
    """Cookies are shared by all ports of a host: with the port in the name, two services on one machine keep apart."""
    parts = split_host(request.headers.get("host", ""))
    port = parts[1] if parts else None
    return f"sandman_{use}_{port}" if port else f"sandman_{use}"


def _cookie(request: Asked, console: Console, use: str, value: str, max_age: int | None) -> Cookie:
    scheme = public_scheme(request.headers.get("host", ""), request.scope["scheme"], console.settings.origins)
    return Cookie(
        key=_cookie_name(request, use),
        value=value,
        max_age=max_age,
        path="/",
        httponly=True,
        samesite="strict",
        secure=scheme == "https",
    )


def _redirect(target: str) -> Page:
    # 303: the browser follows with a GET whatever it sent.
    return Response(b"", status_code=303, headers={"location": target, "cache-control": "no-store"})


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _to_login(request: Asked, problem: NotLoggedIn) -> Page:
    wanted = request.url.path
    if request.url.query:
        wanted += "?" + request.url.query
    # A fragment is no place to come back to: what the user sees is the page that shows it.
    wanted = wanted.replace("/console/overview", "/", 1)
    if wanted.startswith("/console/"):
        wanted = wanted.removesuffix(MOVING)
    query = {"next": local_path(wanted)} if request.method == "GET" and wanted != "/" else {}
    if problem.ended:
        query["ended"] = "true"
    address = "/login" + ("?" + urlencode(query) if query else "")
    if request.headers.get("hx-request") == "true":
        return Response(b"", status_code=401, headers={"hx-redirect": address, "cache-control": "no-store"})
    return _redirect(address)


def _to_nothing(request: Asked, problem: NoSuchSandbox) -> Page:
    return console_in(request.app).problem_answer(
        404, "No such sandbox", "It never was, or ended so long ago that its record has been forgotten."
    )


def _to_problem(request: Asked, error: HTTPException) -> Page:
    return console_in(request.app).problem_answer(error.status_code, "That did not work", error.detail)


def _to_unavailable(request: Asked, error: Exception) -> Page:
    log.warning("no ledger", error=type(error).__name__)
    answer = console_in(request.app).problem_answer(
        503,
        "The ledger cannot be reached",
        "Sandboxes that run are not touched by this. Reload in a few seconds.",
    )
    answer.headers["retry-after"] = "2"
    return answer


def _to_refusal(request: Asked, error: Exception) -> Page:
    log.error("page failed", exc_info=error)
    return console_in(request.app).problem_answer(
        500, "This page could not be drawn", "The service's log says why."
    )


console_routes: Final = [
    Router(
        path="/",
        route_handlers=[
            overview_page,
            overview_fragment,
            sandbox_page,
            sandbox_fragment,
            login_page,
            log_in,
            log_out,
            static_file,
        ],
        middleware=[ConsoleShield()],
        exception_handlers={
            NotLoggedIn: _to_login,
            NoSuchSandbox: _to_nothing,
            HTTPException: _to_problem,
            LedgerUnavailable: _to_unavailable,
            RedisError: _to_unavailable,
            LedgerError: _to_refusal,
            Exception: _to_refusal,
        },
        # "public" to the API's key check: these routes know people by their session, and by nothing else.
        opt={"public": True},
        include_in_schema=False,
    )
]
